package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/handler"
)

// lameDuck is how long a stopping server still takes connections while it asks
// its clients to go: each answer closes its connection, and /readyz says 503.
const lameDuck = 250 * time.Millisecond

// newConnWait bounds the wait for connections whose first request has not
// arrived yet.
const newConnWait = time.Second

var errDraining = errors.New("draining")

// drain stops a server without dropping a request. http.Server.Shutdown alone
// drops what it has read but not begun: it marks the server as closing first,
// and a connection that finds it so after reading a request ends without an
// answer. So the server stops being used before it is shut down.
type drain struct {
	on    atomic.Bool
	mu    sync.Mutex
	fresh map[net.Conn]struct{} // connections without a first request
}

// check fails once draining has begun, for /readyz.
func (d *drain) check() error {
	if d.on.Load() {
		return errDraining
	}
	return nil
}

// part runs the server until it has drained.
func (d *drain) part(name string, l net.Listener, srv *http.Server) part {
	d.fresh = make(map[net.Conn]struct{})
	srv.ConnState = d.watch
	next := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.on.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
	return part{name: name, run: serving(srv, l), stop: func(ctx context.Context) error {
		return d.stop(ctx, l, srv)
	}}
}

func (d *drain) watch(c net.Conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if state == http.StateNew {
		d.fresh[c] = struct{}{}
	} else {
		delete(d.fresh, c)
	}
}

func (d *drain) freshConns() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.fresh)
}

func (d *drain) stop(ctx context.Context, l net.Listener, srv *http.Server) error {
	d.on.Store(true)
	pause(ctx, lameDuck)
	// The listener is closed here and not by Shutdown, so that what was
	// accepted is served before the server counts as closing.
	err := ignoreClosed(l.Close())
	for end := time.Now().Add(newConnWait); d.freshConns() > 0 && time.Now().Before(end); {
		pause(ctx, 5*time.Millisecond)
	}
	// It may find the listener not yet taken off its list, and close it again.
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

// serving runs a server until its part is cancelled.
func serving(srv *http.Server, l net.Listener) func(context.Context) error {
	return func(ctx context.Context) error {
		err := srv.Serve(l)
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			return err
		}
		// Serve returns as soon as stopping begins; the part has ended when
		// the requests in flight have been answered.
		<-ctx.Done()
		return nil
	}
}

// server makes a server that logs as the process does.
func (a *app) server(h http.Handler) *http.Server {
	srv := handler.NewServer(h)
	srv.ErrorLog = handler.ServerLog(a.log)
	return srv
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
