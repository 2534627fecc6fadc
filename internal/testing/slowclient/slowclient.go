// Package slowclient gives tests clients that send their requests byte by byte, to hold a
// server's connections for as long as the server allows.
package slowclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/internal/pause"
)

// pace is the time between two bytes: short enough for a server that only checks whether bytes
// arrive.
const pace = 250 * time.Millisecond

// Crowd is a number of slow clients. A client whose connection the server closes reconnects
// immediately, until the crowd is stopped.
type Crowd struct {
	stop func()
	all  sync.WaitGroup

	open    atomic.Int64
	ended   atomic.Int64
	refused atomic.Int64
}

// Headers starts n clients that never finish their headers. addr is a host:port.
func Headers(t testing.TB, addr string, n int) *Crowd {
	t.Helper()
	return start(t, addr, n, "GET / HTTP/1.1\r\nHost: "+addr+"\r\nX-Slow: ")
}

// Bodies starts n clients that send the headers of a POST at once, and never finish its body.
// headers are additional header lines, each with its line end; they must not declare the length
// of the body.
func Bodies(t testing.TB, addr string, n int, path, headers string) *Crowd {
	t.Helper()
	return start(t, addr, n, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000\r\n%s\r\n", path, addr, headers))
}

// start starts the clients. Each sends head, and then one byte after another.
func start(t testing.TB, addr string, n int, head string) *Crowd {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &Crowd{stop: cancel}
	for range n {
		c.all.Go(func() {
			for ctx.Err() == nil {
				c.come(ctx, addr, head)
			}
		})
	}
	t.Cleanup(c.Stop)
	return c
}

// Stop ends all clients and returns when their goroutines have ended. A second call does
// nothing.
func (c *Crowd) Stop() {
	c.stop()
	c.all.Wait()
}

// Open is the number of clients that hold a connection now.
func (c *Crowd) Open() int64 { return c.open.Load() }

// Ended is how often the server has closed a client's connection, with or without an answer.
func (c *Crowd) Ended() int64 { return c.ended.Load() }

// Refused is how often a client could not connect.
func (c *Crowd) Refused() int64 { return c.refused.Load() }

// come runs one connection until it ends.
func (c *Crowd) come(ctx context.Context, addr, head string) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() == nil { // otherwise it was stopped while connecting
			c.refused.Add(1)
		}
		pause.For(ctx, pace) // a refused client must not retry in a busy loop
		return
	}
	defer conn.Close() //nolint:errcheck // there is nothing to lose
	c.open.Add(1)
	defer c.open.Add(-1)
	for send := []byte(head); ctx.Err() == nil; send = []byte(" ") {
		if _, err := conn.Write(send); err != nil || ends(conn) {
			c.ended.Add(1)
			return
		}
	}
}

// ends waits until the next byte is due, and reports whether the server has answered or closed
// the connection by then.
func ends(conn net.Conn) bool {
	if err := conn.SetReadDeadline(time.Now().Add(pace)); err != nil {
		return true
	}
	_, err := conn.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}
