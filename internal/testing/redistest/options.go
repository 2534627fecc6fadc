package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// ClusterOptions are the settings of Options for a client of a Redis Cluster;
// addrs are some of its nodes.
//
// MaxRetries alone does not keep a cluster client from sending a script twice:
// its MaxRedirects counts redirects and repeats after a network error alike,
// and without it no MOVED or ASK is followed. So redirects stay on, and the
// connections report their errors in a form the client does not repeat after.
// Such an error is no io.EOF and no net.Error; errors.Is finds what else it
// wraps. Refusals that come before anything ran (CLUSTERDOWN, TRYAGAIN,
// LOADING) and connections that were never made are still tried again.
func ClusterOptions(addrs ...string) *redis.ClusterOptions {
	one := Options("")
	dialer := redis.NewDialer(one)
	return &redis.ClusterOptions{
		Addrs: addrs,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			tcp, ok := c.(*net.TCPConn)
			if !ok {
				return nil, errors.Join(fmt.Errorf("redistest: dial %s: %T is no TCP connection", addr, c), c.Close())
			}
			return &onceConn{TCPConn: tcp}, nil
		},
		MaxRedirects:          3,
		MaxRetries:            one.MaxRetries,
		ContextTimeoutEnabled: one.ContextTimeoutEnabled,
		DialTimeout:           one.DialTimeout,
		ReadTimeout:           one.ReadTimeout,
		WriteTimeout:          one.WriteTimeout,
		PoolSize:              one.PoolSize,
		// A redirect to a slot's new owner reloads the map of slots at once;
		// this is for what no redirect tells.
		ClusterStateReloadInterval: 10 * time.Second,
	}
}

// onceConn is a connection whose errors do not make a cluster client repeat
// what it has sent. It keeps the methods of TCPConn by which the client sees
// that an idle connection was closed: that one carried nothing.
type onceConn struct {
	*net.TCPConn
	// subscribes is set once the connection serves a subscription. It carries
	// no commands whose reply could be lost, and its reader has to tell a quiet
	// channel (a time-out) from a lost connection.
	subscribes atomic.Bool
}

// Read is Read of the connection beneath.
func (c *onceConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	return n, c.final(err)
}

// Write is Write of the connection beneath.
func (c *onceConn) Write(p []byte) (int, error) {
	if subscribes(p) {
		c.subscribes.Store(true)
	}
	n, err := c.TCPConn.Write(p)
	return n, c.final(err)
}

func (c *onceConn) final(err error) error {
	if err == nil || c.subscribes.Load() {
		return err
	}
	return &finalError{err}
}

// subscribes reports whether p begins with a command that subscribes; the
// client writes such a command by itself.
func subscribes(p []byte) bool {
	// "*2\r\n$9\r\nsubscribe\r\n…": the name is the third line.
	lines := bytes.SplitN(p, []byte("\r\n"), 4)
	if len(lines) < 3 || !bytes.HasPrefix(lines[0], []byte("*")) {
		return false
	}
	switch string(bytes.ToLower(lines[2])) {
	case "subscribe", "psubscribe", "ssubscribe":
		return true
	default:
		return false
	}
}

// finalError is a network error after which nothing is sent again.
type finalError struct{ cause error }

func (e *finalError) Error() string {
	return "connection lost, nothing is sent again: " + e.cause.Error()
}

// Is finds what the cause wraps. It has no Unwrap, and hides the end of the
// stream, because by these the client would recognise an error to repeat after.
func (e *finalError) Is(target error) bool {
	return target != io.EOF && target != io.ErrUnexpectedEOF && errors.Is(e.cause, target)
}
