package main

import (
	"context"
	"io"
	"net"
	"sync"
)

// relay is a load balancer: it passes TCP connections on to several addresses in turn.
type relay struct {
	listener net.Listener
	all      sync.WaitGroup
}

// newRelay listens on a free port. Its connections end when a client or a server closes them, or
// with ctx.
func newRelay(ctx context.Context, addrs []string) (*relay, error) {
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l}
	r.all.Go(func() {
		for n := 0; ; n++ {
			client, err := l.Accept()
			if err != nil {
				return // closed
			}
			r.all.Go(func() { pass(ctx, client, addrs[n%len(addrs)]) })
		}
	})
	return r, nil
}

// addr is the relay's host and port.
func (r *relay) addr() string { return r.listener.Addr().String() }

// close ends the relay once its clients have closed their connections.
func (r *relay) close() error {
	err := r.listener.Close()
	r.all.Wait()
	return err
}

// pass copies both directions until either side closes the connection.
func pass(ctx context.Context, client net.Conn, addr string) {
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		_ = client.Close() //nolint:errcheck // nothing was written
		return
	}
	// The copies close each connection after the other.
	stop := context.AfterFunc(ctx, func() { _ = client.Close() }) //nolint:errcheck // the run has ended
	defer stop()
	var back sync.WaitGroup
	back.Go(func() { copyThenClose(client, server) })
	copyThenClose(server, client)
	back.Wait()
}

// copyThenClose copies until either connection ends, and closes the one it writes to.
func copyThenClose(to, from net.Conn) {
	_, _ = io.Copy(to, from) //nolint:errcheck // a client that sees the end repeats its request
	_ = to.Close()           //nolint:errcheck // every byte was written
}
