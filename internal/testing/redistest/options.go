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

// ClusterOptions are the settings of Options for a client of a Redis Cluster; addrs are some of
// its nodes.
//
// Setting MaxRetries is not enough to keep a cluster client from sending a script twice: its
// MaxRedirects counts both redirects and retries after a network error, and with 0 it follows
// no MOVED or ASK. So redirects stay enabled, and the connections return their errors in a form
// after which the client does not retry. Such an error is neither io.EOF nor a net.Error;
// errors.Is finds everything else that it wraps. The client still retries after refusals that
// precede any execution (CLUSTERDOWN, TRYAGAIN, LOADING) and after failed dials.
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
		// A redirect to the new owner of a slot reloads the slot map immediately. This interval
		// covers changes that no redirect reveals.
		ClusterStateReloadInterval: 10 * time.Second,
	}
}

// onceConn is a connection after whose errors a cluster client does not repeat a command. It
// keeps the methods of TCPConn with which the client detects that an idle connection was
// closed, because such a connection carried no command.
type onceConn struct {
	*net.TCPConn
	// subscribes is set once the connection serves a subscription. A subscription carries no
	// commands whose reply could be lost, and its reader must distinguish a quiet channel (a
	// timeout) from a lost connection.
	subscribes atomic.Bool
}

// Read reads from the TCP connection and makes its error final.
func (c *onceConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	return n, c.final(err)
}

// Write writes to the TCP connection and makes its error final.
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

// subscribes reports whether p begins with a subscribe command. The client sends such a command
// in a write of its own.
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

// finalError is a network error after which the client does not retry.
type finalError struct{ cause error }

func (e *finalError) Error() string {
	return "connection lost, nothing is sent again: " + e.cause.Error()
}

// Is finds the errors that the cause wraps, except the end of the stream. There is no Unwrap.
// Otherwise the client would recognize an error after which it retries.
func (e *finalError) Is(target error) bool {
	return target != io.EOF && target != io.ErrUnexpectedEOF && errors.Is(e.cause, target)
}
