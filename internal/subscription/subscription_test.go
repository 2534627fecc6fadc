package subscription

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

var errRefused = errors.New("connection refused")

// line is the connection between a client and an embedded server, in virtual time.
type line struct {
	server *miniredis.Miniredis
	refuse atomic.Bool // connections are refused
	deaf   atomic.Bool // nothing arrives at the server
	dials  atomic.Int64

	mu    sync.Mutex
	conns []net.Conn
}

func (l *line) dial(context.Context, string, string) (net.Conn, error) {
	l.dials.Add(1)
	if l.refuse.Load() {
		return nil, errRefused
	}
	c, err := l.server.Dial()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return &lineConn{Conn: c, deaf: &l.deaf}, nil
}

// cut ends all connections.
func (l *line) cut(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	l.conns = nil
}

type lineConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c *lineConn) Write(p []byte) (int, error) {
	if c.deaf.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// event is a call of one of the listener's callbacks.
type event struct {
	at   time.Time
	what string // "subscribed", "message …", "lost" or "error"
	err  error
}

// listening is a Listener on a line, and what it has called so far.
type listening struct {
	*line
	cancel context.CancelFunc
	ended  atomic.Bool
	// catchUp is what OnSubscribed returns.
	catchUp func() error

	mu     sync.Mutex
	events []event
}

func (l *listening) note(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event{time.Now(), what, err})
}

// take removes and returns the events so far, once all that is due now has run.
func (l *listening) take() []event {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	events := l.events
	l.events = nil
	return events
}

// names returns what the events so far were.
func (l *listening) names() []string {
	var names []string
	for _, e := range l.take() {
		names = append(names, e.what)
	}
	return names
}

func (l *listening) want(t *testing.T, want ...string) {
	t.Helper()
	if got := l.names(); !slices.Equal(got, want) {
		t.Errorf("the listener called %q, want %q", got, want)
	}
}

// listen runs test in a bubble with a Listener of the channels a and b.
func listen(t *testing.T, refuse bool, test func(t *testing.T, l *listening)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		defer server.Close()
		l := &listening{line: &line{server: server}, catchUp: func() error { return nil }}
		l.refuse.Store(refuse)
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: l.dial, DialerRetries: 1, MaxRetries: -1, ContextTimeoutEnabled: true})
		defer rdb.Close()
		ctx, cancel := context.WithCancel(t.Context())
		l.cancel = cancel
		defer synctest.Wait()
		defer cancel()
		listener := Listener{
			Redis: rdb, Channels: []string{"a", "b"}, Name: "tests",
			OnSubscribed: func() error {
				l.note("subscribed", nil)
				return l.catchUp()
			},
			OnMessage: func(payload string) { l.note("message "+payload, nil) },
			OnLost:    func() { l.note("lost", nil) },
			OnError:   func(err error) { l.note("error", err) },
		}
		go func() {
			listener.Run(ctx)
			l.ended.Store(true)
		}()
		test(t, l)
	})
}

func (l *listening) publish(t *testing.T, channel, payload string) {
	t.Helper()
	if n := l.server.Publish(channel, payload); n != 1 {
		t.Errorf("%d subscribers of %s, want 1", n, channel)
	}
}

// wantEnd ends ctx and checks that the listener ends at once, without an error.
func (l *listening) wantEnd(t *testing.T, want ...string) {
	t.Helper()
	l.cancel()
	l.want(t, want...)
	if !l.ended.Load() {
		t.Error("the listener did not end with its context")
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// errorsIn returns the errors among events.
func errorsIn(events []event) []event {
	return slices.DeleteFunc(events, func(e event) bool { return e.what != "error" })
}

// inBounds reports whether a pause has the bound.
func inBounds(pause, bound time.Duration) bool { return pause >= bound/2 && pause < bound }

// TestListener_Run_Pauses: while no connection can be made, the pauses double up to the longest, and
// each attempt connects once and reports one error, which names the listener.
func TestListener_Run_Pauses(t *testing.T) {
	t.Parallel()
	listen(t, true, func(t *testing.T, l *listening) {
		pass(10 * pauseMax)
		failed := errorsIn(l.take())
		if n := l.dials.Load(); n < 10 || int64(len(failed)) != n {
			t.Fatalf("%d errors for %d attempts, want one for each of at least 10", len(failed), n)
		}
		bound := pauseMin
		for i, e := range failed {
			if !errors.Is(e.err, errRefused) || !strings.HasPrefix(e.err.Error(), "listen for tests: ") {
				t.Errorf("reported %v", e.err)
			}
			if i == 0 {
				continue
			}
			if pause := e.at.Sub(failed[i-1].at); !inBounds(pause, bound) {
				t.Errorf("pause %d took %v, want from %v to %v", i, pause, bound/2, bound)
			}
			bound = min(2*bound, pauseMax)
		}
		if bound != pauseMax {
			t.Errorf("the last pause was bounded by %v, and not by the longest", bound)
		}
	})
}

// TestListener_Run_Reset: after a subscription that was confirmed the pauses begin again with the
// shortest, and the new subscription receives messages.
func TestListener_Run_Reset(t *testing.T) {
	t.Parallel()
	listen(t, true, func(t *testing.T, l *listening) {
		pass(5 * pauseMax) // the pauses have their greatest length
		l.take()
		l.refuse.Store(false)
		pass(pauseMax)
		l.want(t, "subscribed")
		l.publish(t, "a", "1")
		l.publish(t, "b", "2")
		l.want(t, "message 1", "message 2")
		for range 2 {
			l.cut(t)
			l.want(t, "lost", "error")
			pass(pauseMin)
			l.want(t, "subscribed")
			l.publish(t, "b", "3")
			l.want(t, "message 3")
		}
		l.refuse.Store(true)
		l.cut(t)
		pass(pauseMax / 2)
		failed := errorsIn(l.take())
		if len(failed) < 4 {
			t.Fatalf("%d attempts in %v", len(failed), pauseMax/2)
		}
		for i, bound := 1, pauseMin; i < 4; i, bound = i+1, 2*bound {
			if pause := failed[i].at.Sub(failed[i-1].at); !inBounds(pause, bound) {
				t.Errorf("pause %d took %v, want from %v to %v", i, pause, bound/2, bound)
			}
		}
	})
}

// TestListener_Run_Unconfirmed: connections that end before the subscription is confirmed do not
// shorten the pauses.
func TestListener_Run_Unconfirmed(t *testing.T) {
	t.Parallel()
	listen(t, true, func(t *testing.T, l *listening) {
		pass(5 * pauseMax)
		l.server.SetError("LOADING")
		l.refuse.Store(false)
		pass(pauseMax)
		l.take()
		pass(3 * pauseMax)
		if names := l.names(); len(names) < 2 || len(names) > 2*6 || slices.Contains(names, "subscribed") {
			t.Errorf("in the time of at most 6 attempts the listener called %q", names)
		}
	})
}

// TestListener_Run_EndsInPause: the end of ctx ends a pause at once, and is not reported.
func TestListener_Run_EndsInPause(t *testing.T) {
	t.Parallel()
	listen(t, true, func(t *testing.T, l *listening) {
		pass(5 * pauseMax)
		l.take()
		began := time.Now()
		l.wantEnd(t)
		if took := time.Since(began); took != 0 {
			t.Errorf("the listener ended after %v", took)
		}
	})
}

// TestListener_Run_EndsSubscribed: the end of ctx ends a subscription at once, and is not reported.
func TestListener_Run_EndsSubscribed(t *testing.T) {
	t.Parallel()
	listen(t, false, func(t *testing.T, l *listening) {
		l.want(t, "subscribed")
		pass(3 * signOfLife) // it answers pings
		l.want(t)
		l.wantEnd(t, "lost")
		if n := l.server.Publish("a", "late"); n != 0 {
			t.Errorf("%d subscribers are left", n)
		}
	})
}

// TestListener_Run_Silent: a connection that no longer carries anything is given up after a ping
// without an answer.
func TestListener_Run_Silent(t *testing.T) {
	t.Parallel()
	listen(t, false, func(t *testing.T, l *listening) {
		l.want(t, "subscribed")
		l.deaf.Store(true)
		pass(2*signOfLife - 1)
		l.want(t)
		pass(1)
		events := l.take()
		if len(events) != 2 || events[0].what != "lost" || !errors.Is(events[1].err, ErrSilent) {
			t.Errorf("the listener called %+v, want ErrSilent", events)
		}
		l.deaf.Store(false)
		pass(pauseMin)
		l.want(t, "subscribed")
	})
}

// TestListener_OnSubscribed_Error: an OnSubscribed that fails is called again, even if no message
// arrives, until it succeeds. Each error is reported, and messages do not add calls.
func TestListener_OnSubscribed_Error(t *testing.T) {
	t.Parallel()
	listen(t, true, func(t *testing.T, l *listening) {
		errBusy := errors.New("database is busy")
		var busy atomic.Bool
		busy.Store(true)
		l.catchUp = func() error {
			if busy.Load() {
				return errBusy
			}
			return nil
		}
		l.refuse.Store(false)
		pass(pauseMax)
		events := l.take()
		if e := errorsIn(events); !errors.Is(e[len(e)-1].err, errBusy) || !strings.HasPrefix(e[len(e)-1].err.Error(), "listen for tests: ") {
			t.Errorf("reported %v", e[len(e)-1].err)
		}
		for i := range 1000 {
			l.publish(t, "a", fmt.Sprint(i))
			pass(5 * time.Millisecond)
		}
		events = l.take()
		tries := 0
		for i, e := range events {
			if e.what != "subscribed" {
				continue
			}
			if tries++; i+1 >= len(events) || !errors.Is(events[i+1].err, errBusy) {
				t.Errorf("the error of try %d was not reported", tries)
			}
		}
		if most := int(5*time.Second/(pauseMax/2)) + 5; tries < 3 || tries > most || len(events) != 1000+2*tries {
			t.Errorf("%d tries and %d calls during 1000 messages in 5 s", tries, len(events))
		}
		busy.Store(false)
		pass(2 * pauseMax)
		l.want(t, "subscribed")
		pass(5 * pauseMax)
		l.want(t)
	})
}
