package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// timeline calls plannedKills at fixed times: in milliseconds after the start.
type timeline struct {
	*plannedKills
	start time.Time
}

func newTimeline(victims []victim, orders, connections, targets int) *timeline {
	l := &timeline{newPlannedKills(victims, orders, connections, targets), time.Now().Add(-time.Hour)}
	l.begin(l.start, new(counters))
	return l
}

func (l *timeline) accept(n int) {
	for range n {
		l.live.settle(kindAccepted)
	}
}

// due sends requests to a target until the kills that are due have been made, and
// returns how many, or -1 if a hundred are not enough.
func (l *timeline) due(target, plannedKill int) int {
	for n := range 100 {
		if l.list[plannedKill].began.Load() != 0 {
			return n
		}
		l.sent(context.Background(), target)
	}
	return -1
}

// attempt records an attempt that was written and ended so long before or after a kill.
func (l *timeline) attempt(plannedKill, target int, a answer, written, end time.Duration) {
	at := l.start.Add(time.Duration(l.list[plannedKill].began.Load()))
	if written > 0 {
		at = l.start.Add(time.Duration(l.list[plannedKill].ended.Load()))
	}
	l.seen(&a, attempt{target, at.Add(written), at.Add(written), at.Add(end)})
}

func TestPlannedKills_CarriedOutByProgress(t *testing.T) {
	t.Parallel()
	var killed []string
	kill := func(name string) func() error {
		return func() error { killed = append(killed, name); return nil }
	}
	l := newTimeline([]victim{{name: "api", target: 0, kill: kill("api")}, {name: "worker", target: anyTarget, kill: kill("worker")}}, 50, 16, 2)
	l.accept(9)
	if n := l.due(0, 0); n != -1 {
		t.Errorf("killed after 9 of 50 orders, with request %d", n)
	}
	l.accept(1)
	if n := l.due(1, 0); n != -1 {
		t.Errorf("killed the API with request %d to another", n)
	}
	if n := l.due(0, 0); n != 5 {
		t.Errorf("killed with request %d to the API, want 5: one more than half of its 8 connections", n)
	}
	l.accept(10)
	if n := l.due(1, 1); n != 9 {
		t.Errorf("killed with request %d, want 9", n)
	}
	if got := strings.Join(killed, " "); got != "api worker" {
		t.Errorf("killed %q", got)
	}
	if n := l.due(0, 0); n != 0 || len(killed) != 2 {
		t.Errorf("killed again: %q", killed)
	}
}

// TestPlannedKills_InTurn: if one batch of acknowledgements makes two kills due, they are carried out one after the other.
func TestPlannedKills_InTurn(t *testing.T) {
	t.Parallel()
	kill := func() error { return nil }
	l := newTimeline([]victim{{name: "worker", target: anyTarget, kill: kill, share: 0.4}, {name: "api", target: 0, kill: kill, share: 0.2}}, 1000, 16, 2)
	l.accept(500)
	if n := l.due(1, 0); n != -1 {
		t.Errorf("killed the worker with request %d to the other API, before the API", n)
	}
	if api, worker := l.due(0, 1), l.due(1, 0); api < 1 || worker < 1 {
		t.Errorf("killed the API with request %d and the worker with request %d, want both", api, worker)
	}
}

func TestPlannedKills_Report(t *testing.T) {
	t.Parallel()
	ok, none := answer{kind: kindAccepted, status: 201}, answer{kind: kindUnknown, code: "connection_cut"}
	const ms = time.Millisecond
	type try struct {
		target       int
		a            answer
		written, end time.Duration
	}
	cut, later := try{0, none, -ms, ms}, try{1, ok, ms, 2 * ms}
	tests := []struct {
		name   string
		target int
		kill   error
		seen   []try
		void   string // part of the reason, empty: none
	}{
		{"cut and served", 0, nil, []try{cut, later}, ""},
		{"nothing cut", 0, nil, []try{{0, ok, -ms, ms}, {1, none, -ms, ms}, {0, none, ms, 2 * ms}, later}, "no request in flight"},
		{"cut before", 0, nil, []try{{0, none, -2 * ms, -ms}, later}, "no request in flight"},
		{"nothing served later", 0, nil, []try{cut, {1, ok, -ms, ms}, {1, answer{kind: kindRefused, status: 409}, ms, 2 * ms}}, "got an order"},
		{"worker", anyTarget, nil, []try{{1, ok, -ms, ms}, later}, ""},
		{"idle worker", anyTarget, nil, []try{{1, ok, -2 * ms, -ms}, later}, "no request in flight"},
		{"gone already", 0, errors.New("api ended before"), []try{cut, later}, "ended before"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newTimeline([]victim{{name: "victim", target: tt.target, kill: func() error { return tt.kill }}}, 3, 2, 2)
			l.accept(1)
			if l.due(0, 0) < 0 {
				t.Fatal("never killed")
			}
			for _, a := range tt.seen {
				l.attempt(0, a.target, a.a, a.written, a.end)
			}
			kills, void := l.report()
			if got := strings.Join(void.examples, "; "); (tt.void == "") != (got == "") || !strings.Contains(got, tt.void) {
				t.Errorf("void %q, want %q; kills %+v", got, tt.void, kills)
			}
		})
	}
	l := newTimeline([]victim{{name: "victim", kill: func() error { return nil }}}, 300, 2, 2)
	if kills, void := l.report(); len(kills) != 0 || void.count != 1 || !strings.Contains(void.examples[0], "never killed") {
		t.Errorf("a kill that never came: %+v, %+v", kills, void)
	}
}

// struck runs the load test against a fake at two addresses and returns the verdict.
func struck(t *testing.T, f *fake, kill func(first *httptest.Server) error) *summary {
	t.Helper()
	first := httptest.NewServer(f.mux)
	t.Cleanup(first.Close)
	o := options4test(t, "--target", f.url, "--buyers", "200", "--stock", "50", "--connections", "16", "--timeout", "5s", "--admin-token", fakeAdmin)
	at := place{
		urls: []string{first.URL, f.url}, db: f.dsn, secret: fakeSecret,
		victims: []victim{{name: "first", kill: func() error { return kill(first) }}},
	}
	s, err := at.test(t.Context(), o, t.Logf, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(s.Line, s.Kills)
	return s
}

// If one of two APIs dies, the crowd buys all units from the other.
func TestPlace_CrowdMovesOn(t *testing.T) {
	t.Parallel()
	s := struck(t, (&fake{}).serve(t), func(first *httptest.Server) error {
		err := first.Listener.Close()
		first.CloseClientConnections()
		return err
	})
	// The scheduler decides whether a request was in flight during the kill.
	if want := "accepted=50 persisted=50 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"; !strings.Contains(s.Line, want) {
		t.Errorf("%s lacks %s", s.Line, want)
	}
	if s.RetriedUnknown == 0 || s.GaveUp != 0 {
		t.Errorf("%d repeated after an unknown outcome, %d given up", s.RetriedUnknown, s.GaveUp)
	}
}

// A kill that loses a row fails the run.
func TestPlace_LostRow(t *testing.T) {
	t.Parallel()
	f := (&fake{}).serve(t)
	s := struck(t, f, func(*httptest.Server) error {
		_, err := f.db.ExecContext(t.Context(), `DELETE FROM orders WHERE rowid = (SELECT min(rowid) FROM orders)`)
		return err
	})
	if s.Pass || !strings.HasPrefix(s.Line, "FAIL accepted=50 persisted=49 oversold=0 lost=1 ") {
		t.Error(s.Line)
	}
}

// A void run fails with a reason, although all promises were kept.
func TestPlace_Void(t *testing.T) {
	t.Parallel()
	s := struck(t, (&fake{}).serve(t), func(*httptest.Server) error { return errors.New("first ended before the planned kill") })
	if s.Pass || s.Line != "FAIL accepted=50 persisted=50 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 void=1" {
		t.Error(s.Line)
	}
}
