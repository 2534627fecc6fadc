package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"flashsale/bench/internal/meter"
)

func TestArena_Summary(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	a := &arena{samples: [][]sample{
		{
			{began: 0, got: 5 * ms, handover: -1},                            // before the window
			{began: 9 * ms, got: 12 * ms, handover: 2 * ms},                  // began before it
			{began: 13 * ms, got: 14 * ms, handover: ms / 2, byItself: true}, // not handed over
			{began: 15 * ms, got: 18 * ms, handover: 4 * ms},                 // counts fully
			{began: 19 * ms, got: 21 * ms, handover: 90 * ms},                // after it
		},
		{{began: 0, got: 25 * ms, handover: ms}},
	}}
	a.overlaps.Store(3)
	got, err := a.summary(10*ms, 20*ms)
	if err != nil {
		t.Fatal(err)
	}
	if got.acquired != 3 || got.byItself != 1 || got.unserved != 1 || got.overlaps != 3 {
		t.Errorf("acquired %d, by itself %d, unserved %d, overlaps %d; want 3, 1, 1, 3",
			got.acquired, got.byItself, got.unserved, got.overlaps)
	}
	if got.meanWait != 2*ms || got.longestWait != 3*ms || got.longestToMean() != 1.5 {
		t.Errorf("waits: mean %s, longest %s", got.meanWait, got.longestWait)
	}
	if d := got.p99 - 4*ms; d < 0 || d > 4*ms/100 {
		t.Errorf("p99 = %s, want 4ms within the histogram's precision", got.p99)
	}
	if d := got.p50 - 2*ms; d < 0 || d > 2*ms/100 {
		t.Errorf("p50 = %s, want 2ms", got.p50)
	}
}

func TestResults_Bars(t *testing.T) {
	t.Parallel()
	all, err := choose("ours, redislock")
	if err != nil {
		t.Fatal(err)
	}
	r := newResults(all, options{}.runs)
	second := meter.Usage{Elapsed: time.Second}
	for name, ops := range map[string]int64{"ours": 90, "redislock": 100} {
		r.of[name].uncontended[8] = []uncontended{{Usage: second, ops: ops}}
	}
	r.of["ours"].contended[0] = []contended{{p99: 20}}
	r.of["redislock"].contended[0] = []contended{{p99: 100}}
	r.of["ours"].contended[time.Millisecond] = []contended{{meanWait: 100, longestWait: 151, p99: 60}}
	r.of["redislock"].contended[time.Millisecond] = []contended{{longestWait: 604, p99: 100}}
	r.of["ours"].commandsContended = commands{sent: map[string]int{"evalsha": 9}, acquired: 3}
	r.of["ours"].waiting = waiting{sent: map[string]int{"evalsha": 2 * waiters}, elapsed: 2 * time.Second}
	r.of["ours"].overlaps = 1
	var out bytes.Buffer
	r.bars(&out)
	want := `BAR lock_uncontended_8/fastest 0.900 0.95 missed
BAR lock_handover_p99_hold0/best_other 0.200 1.00 met
BAR lock_handover_p99_hold1/best_other 0.600 0.50 missed
BAR lock_longest_wait/best_other 0.250 0.20 missed
BAR lock_overlaps 1 0 missed
BAR lock_longest_wait/mean 1.51 1.50 missed
BAR lock_commands_contended 3.00 4.00 met
BAR lock_commands_waiting/liveness 1.000 1.10 met
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestChoose_Unknown(t *testing.T) {
	t.Parallel()
	if _, err := choose("ours,nobody"); err == nil || !strings.Contains(err.Error(), "redsync-5ms") {
		t.Errorf("err = %v, want one that lists the contenders", err)
	}
}

func TestParse_Phases(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"-phases", "uncontended,contended"}, io.Discard)
	if err != nil || !o.runs(phaseUncontended) || !o.runs(phaseContended) || o.runs(phaseCommands) {
		t.Errorf("options %+v, %v; want the two phases", o, err)
	}
	if _, err := parse([]string{"-phases=uncontended,nothing"}, io.Discard); err == nil {
		t.Error("an unknown phase was accepted")
	}
}
