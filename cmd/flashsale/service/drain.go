package service

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/pause"
)

// lameDuck is how long a stopping server still accepts connections while it closes existing
// ones: each answer closes its connection, and /readyz answers 503.
const lameDuck = 250 * time.Millisecond

// newConnWait bounds the wait for connections whose first request has not arrived yet.
const newConnWait = time.Second

var errDraining = errors.New("draining")

// drain stops a server without dropping a request. http.Server.Shutdown on its own drops
// requests that the server has read but not begun to handle: it marks the server as closing,
// and a connection that sees the mark after reading a request ends without an answer. So drain
// waits until the server is no longer used before it calls Shutdown.
type drain struct {
	on atomic.Bool
	mu sync.Mutex
	// owed are the connections that may have a request read but not begun: new ones and, while
	// draining, those that became active. The server calls its hook before it decides to drop a
	// request, so only the start of the handler removes a connection.
	owed map[net.Conn]struct{}
	// accepted is closed when the server no longer accepts connections and has announced every
	// accepted one.
	accepted chan struct{}
}

func newDrain() *drain {
	return &drain{owed: make(map[net.Conn]struct{}), accepted: make(chan struct{})}
}

type connKey struct{}

// check fails once draining has begun; /readyz uses it.
func (d *drain) check() error {
	if d.on.Load() {
		return errDraining
	}
	return nil
}

// part runs the server until it has drained.
func (d *drain) part(name string, l net.Listener, srv *http.Server) part {
	strict := srv.ConnState // the handler's limits on connections
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		if strict != nil {
			strict(c, state)
		}
		d.watch(c, state)
	}
	before := srv.ConnContext
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if before != nil {
			ctx = before(ctx, c)
		}
		return context.WithValue(ctx, connKey{}, c)
	}
	next := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.on.Load() {
			d.begun(r)
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
	run := serving(srv, l, func() { close(d.accepted) })
	return part{name: name, run: run, stop: func(ctx context.Context) error { return d.stop(ctx, l, srv) }}
}

// watch is the server's ConnState hook. Outside draining it changes the set only twice per
// connection, and never per request.
func (d *drain) watch(c net.Conn, state http.ConnState) {
	on := d.on.Load()
	if state == http.StateActive && on {
		state = http.StateNew
	}
	if state == http.StateIdle && !on {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if state == http.StateNew {
		d.owed[c] = struct{}{}
	} else {
		delete(d.owed, c)
	}
}

// begun removes the request's connection from owed.
func (d *drain) begun(r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(net.Conn)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.owed, c)
}

func (d *drain) owing() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.owed)
}

func (d *drain) stop(ctx context.Context, l net.Listener, srv *http.Server) error {
	d.on.Store(true)
	pause.For(ctx, lameDuck)
	// Close the listener here and not in Shutdown, so that accepted connections are served
	// before the server counts as closing.
	err := ignoreClosed(l.Close())
	select {
	case <-d.accepted:
	case <-ctx.Done():
	}
	for end := time.Now().Add(newConnWait); d.owing() > 0 && time.Now().Before(end); {
		pause.For(ctx, 5*time.Millisecond)
	}
	// Shutdown may close the listener a second time if the server still has it in its list.
	if serr := ignoreClosed(srv.Shutdown(ctx)); serr != nil {
		err = errors.Join(err, serr, srv.Close())
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// serving runs a server until its part is cancelled. closed is called when it no longer accepts
// connections.
func serving(srv *http.Server, l net.Listener, closed func()) func(context.Context) error {
	return func(ctx context.Context) error {
		err := srv.Serve(l)
		closed()
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			return err
		}
		// Serve returns as soon as the stop begins; the part ends when the requests in progress
		// have been answered.
		<-ctx.Done()
		return nil
	}
}
