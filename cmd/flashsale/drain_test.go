//go:build unix

package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/process"
)

// term stops a process with SIGTERM and checks how it exits.
func term(t *testing.T, p *process.P) {
	t.Helper()
	if code := p.Stop(); code != 0 {
		t.Errorf("after SIGTERM the exit code is %d:\n%s", code, p.Log())
	}
}

// TestDrain_ClosedTerminal: SIGHUP stops a process in order, like SIGTERM, also when it comes twice.
func TestDrain_ClosedTerminal(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	// A child inherits an ignored signal, as under nohup, and not one that is handled.
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, syscall.SIGHUP)
	defer signal.Stop(handled)
	p := newShop(t).serve()
	for range 2 {
		if err := syscall.Kill(p.Pid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	if code, err := p.Wait(await.Context(t)); err != nil || code != 0 {
		t.Errorf("after SIGHUP: exit code %d, %v", code, err)
	}
	if !strings.Contains(p.Log(), `"message":"stopped"`) {
		t.Errorf("after SIGHUP the log lacks the end of the drain:\n%s", p.Log())
	}
}

// TestDrain_Nohup: a process that was started with SIGHUP ignored, as by nohup, serves on when its terminal is
// closed.
func TestDrain_Nohup(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShop(t)
	spec := s.spec("serve", []string{"--demo=false"})
	nohup := filepath.Join(t.TempDir(), "nohup.sh")
	script := "#!/bin/sh\ntrap '' HUP\nexec '" + spec.Binary + "' \"$@\"\n"
	if err := os.WriteFile(nohup, []byte(script), 0o700); err != nil { //nolint:gosec // it is executed
		t.Fatal(err)
	}
	spec.Binary = nohup
	p := process.Start(t, spec)
	if err := syscall.Kill(p.Pid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	c := dial(t, p)
	for range 3 {
		if r := c.get("/readyz", "u"); r.Status != 200 {
			t.Fatalf("after SIGHUP under nohup: %d %s", r.Status, r.Body)
		}
	}
	term(t, p)
}

// TestDrain_Starting: a signal stops a process that waits for Redis at its start. It is no failure.
func TestDrain_Starting(t *testing.T) {
	needProcesses(t)
	dir := t.TempDir()
	args := []string{"--db", "sqlite:" + dir + "/shop.db", "--data-dir", dir}
	wantCode(t, 0, process.Run(t, process.Spec{Command: "migrate", Args: append([]string{"up"}, args...)}))
	loading := fakeRedis(t, "-LOADING Redis is loading the dataset in memory\r\n")
	p := process.Start(t, process.Spec{
		Command: "worker", Args: append([]string{"--redis", "redis://" + loading}, args...), Env: []string{"FLASHSALE_JWT_SECRET=" + secret}, NoWait: true,
	})
	eventually(t, "it waits for Redis", soon, func() (bool, any) { return strings.Contains(p.Log(), "waiting for Redis"), p.Log() })
	term(t, p)
	if log := p.Log(); !strings.Contains(log, "stopped before it was ready") || !strings.Contains(log, "still loading its data") {
		t.Errorf("the log of a start that was stopped:\n%s", log)
	}
}

// TestDrain_AnswersRequestsInFlight stops an API while requests wait for their commit: each is
// answered first. The test blocks the commits until the process has received the signal, so
// that all requests are in progress then.
func TestDrain_AnswersRequestsInFlight(t *testing.T) {
	needProcesses(t)
	run := func(t *testing.T, s *shop, api *process.P) {
		c := dial(t, api)
		item := s.newItem(c, 50, 1)
		unlock := s.lockDatabase()
		answers := make(chan []purchase, 1)
		go func() {
			answers <- crowd(40, func(i int) purchase {
				return c.buy(item, fmt.Sprintf("u%d", i), "k", untilCommitted...)
			})
		}()
		eventually(t, "the orders are taken", soon, func() (bool, any) {
			l := s.ledger(c, item)
			return l.Left == 10, l
		})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			term(t, api)
		}()
		eventually(t, "the process accepts no more requests", soon, func() (bool, any) {
			c.close()
			a, err := c.do("GET", "/healthz", "", "")
			return errors.As(err, new(errDial)), a.verdict()
		})
		unlock()
		got := <-answers
		only(t, got, "201")
		<-ended
		next := dial(t, process.Start(t, api.Spec()))
		if rows := s.audit(next, item, 1, got); len(rows) != 40 {
			t.Errorf("%d rows, want 40", len(rows))
		}
		if p := next.buy(item, "late", "k", untilCommitted...); p.verdict() != "201" || p.replayed() {
			t.Errorf("the late purchase: %s, replayed %v", p.verdict(), p.replayed())
		}
	}
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		run(t, s, s.serve(noLimit...))
	})
	t.Run("api", func(t *testing.T) {
		t.Parallel()
		s := newRedisShop(t)
		s.worker()
		run(t, s, s.api(noLimit...))
	})
}

// TestDrain_CutsOffNoAdmittedRequest replaces processes under load. No admitted request is cut
// off, and no acknowledged order is lost.
func TestDrain_CutsOffNoAdmittedRequest(t *testing.T) {
	needProcesses(t)
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		stopUnderLoad(t, s, s.serve(noLimit...))
	})
	t.Run("api", func(t *testing.T) {
		t.Parallel()
		s := newRedisShop(t)
		s.worker()
		stopUnderLoad(t, s, s.api(noLimit...))
	})
	t.Run("worker", func(t *testing.T) {
		t.Parallel()
		s := newRedisShop(t)
		w := s.worker()
		c := dial(t, s.api(noLimit...))
		item := s.newItem(c, 500, 1)
		got := burst(600, 32, 200, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d", i), "k") }, func() {
			term(t, w)
			// The worker has completed or returned its leased orders: none waits for a lease to
			// expire.
			if st := s.stats(); st.Leased != 0 {
				t.Errorf("the worker left leases behind: %+v", st)
			}
			s.worker()
		})
		only(t, got, "201", "202", "409 sold_out")
		if rows := s.audit(c, item, 1, accepted(got)); len(rows) != 500 {
			t.Errorf("%d rows, want 500", len(rows))
		}
	})
}

// stopUnderLoad stops an API under load, until the buyers find its listener closed, and then
// starts another process in its place.
func stopUnderLoad(t *testing.T, s *shop, api *process.P) {
	t.Helper()
	c := dial(t, api)
	item := s.newItem(c, 1_000_000, 1)
	var next atomic.Int64
	enough := make(chan struct{})
	load := make(chan [][]purchase, 1)
	go func() {
		load <- crowd(32, func(int) []purchase {
			var mine []purchase
			for {
				i := next.Add(1)
				if i == 300 {
					close(enough)
				}
				// Each purchase has its own connection: HTTP allows a server to close a kept
				// one just when the next request is sent.
				p := c.buy(item, fmt.Sprintf("u%d", i), "k", "Connection", "close")
				mine = append(mine, p)
				if errors.As(p.err, new(errDial)) {
					return mine
				}
			}
		})
	}()
	<-enough
	term(t, api)
	first := slices.Concat(<-load...)
	for _, p := range first {
		if p.err != nil && !notLetIn(s, item, p) {
			t.Errorf("%s was admitted and cut off: %v", p.user, p.err)
		}
		if p.err == nil && p.Status != 201 && p.Status != 202 {
			t.Errorf("%s was answered %s", p.user, p.verdict())
		}
	}
	again := dial(t, process.Start(t, api.Spec()))
	done := accepted(first)
	last := stream(len(done), 32, func(i int) purchase { return again.settle(item, again.buy(item, done[i].user, "k", untilCommitted...)) })
	only(t, last, "201")
	for i, p := range last {
		if p.Order.ID != done[i].Order.ID || !p.replayed() {
			t.Errorf("%s got %s, and for the same key then %s %s, replayed %v", p.user, done[i].Order.ID, p.verdict(), p.Order.ID, p.replayed())
		}
	}
	s.audit(again, item, 1, append(done, last...))
}

// notLetIn reports whether a purchase failed before the process accepted its connection: the
// listener was already closed, or was closed while the connection was in its accept queue. The
// kernel resets such a connection. A connection that the process accepts and then closes ends
// without a reset.
func notLetIn(s *shop, item string, p purchase) bool {
	s.t.Helper()
	switch {
	case errors.As(p.err, new(errDial)):
		return true
	case errors.Is(p.err, syscall.ECONNRESET), errors.Is(p.err, syscall.EPIPE):
		return !slices.ContainsFunc(s.rows(item), func(r orderRow) bool { return r.User == p.user })
	default:
		return false
	}
}

// TestDrain_WorkerKeepsOrders stops a worker that cannot commit because the database is locked:
// it gives up in time and returns its orders.
func TestDrain_WorkerKeepsOrders(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	c := dial(t, s.api(noLimit...))
	w := s.worker("--drain", "1s")
	item := s.newItem(c, 20, 1)
	unlock := s.lockDatabase()
	got := crowd(20, func(i int) purchase {
		return c.buy(item, fmt.Sprintf("u%d", i), "k", "Prefer", "respond-async")
	})
	only(t, got, "202")
	eventually(t, "the worker holds the orders", soon, func() (bool, any) { st := s.stats(); return st.Leased > 0, st })
	// A statement that waits for the lock cannot be cancelled, so the exit code may be 1. No
	// order may be lost.
	if code := w.Stop(); code != 0 && code != 1 {
		t.Errorf("exit code %d", code)
	}
	if st := s.stats(); st.Leased != 0 || st.Entries != 20 {
		t.Errorf("orders were not returned: %+v", st)
	}
	unlock()
	s.worker()
	if rows := s.audit(c, item, 1, got); len(rows) != 20 {
		t.Errorf("%d rows, want 20", len(rows))
	}
}
