package main

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/runner"
)

func TestJob_Index(t *testing.T) {
	t.Parallel()
	for _, want := range []int{0, 1, 15<<32 + 7} {
		got, err := indexOf(newJob(want).payload)
		if err != nil || got != want {
			t.Errorf("index %d comes back as %d, %v", want, got, err)
		}
	}
	if _, err := indexOf([]byte("short")); err == nil {
		t.Error("a payload of another size has an index")
	}
}

func TestLedger_Complete(t *testing.T) {
	t.Parallel()
	l := newLedger(4, func(index int) bool { return index == 2 })
	if errs := l.handle([]int{0, 1}); errs != nil {
		t.Fatalf("errs = %v, want none", errs)
	}
	errs := l.handle([]int{3, 2})
	if len(errs) != 2 || errs[0] != nil || errs[1] == nil {
		t.Fatalf("errs = %v, want one for the second", errs)
	}
	select {
	case <-l.done:
		t.Fatal("done before the task that failed ran again")
	default:
	}
	if got := l.outcome(0).err(); got == nil {
		t.Error("no error although a task is missing")
	}
	if errs := l.handle([]int{2}); errs != nil {
		t.Fatalf("errs = %v at the second run", errs)
	}
	select {
	case <-l.done:
	default:
		t.Fatal("not done although all ran")
	}
	if err := l.outcome(0).err(); err != nil {
		t.Error(err)
	}
}

func TestLedger_Wrong(t *testing.T) {
	t.Parallel()
	l := newLedger(3, func(index int) bool { return index == 1 })
	l.due = []time.Time{{}, {}, time.Now().Add(time.Hour)}
	for _, index := range []int{0, 0, 0, 1, 1, 1, 2, 3, -1} {
		l.handle([]int{index})
	}
	want := outcome{duplicates: 3, early: 1, unknown: 2, left: 5}
	if got := l.outcome(5); got != want {
		t.Errorf("outcome = %+v, want %+v", got, want)
	}
	if want.err() == nil {
		t.Error("no error")
	}
}

func TestInParts_CoversAll(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ n, size int }{{0, 1}, {1, 1}, {100, 7}, {64, 64}, {5, 100}, {1000, 1}} {
		type part struct{ from, to int }
		parts := make(chan part, tc.n+1)
		if err := inParts(tc.n, tc.size, func(from, to int) error {
			parts <- part{from, to}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		close(parts)
		seen := make([]int, tc.n)
		for p := range parts {
			if p.to-p.from > tc.size {
				t.Errorf("%+v: part %+v is too large", tc, p)
			}
			for i := p.from; i < p.to; i++ {
				seen[i]++
			}
		}
		if i := slices.IndexFunc(seen, func(n int) bool { return n != 1 }); i >= 0 {
			t.Errorf("%+v: %d was covered %d times", tc, i, seen[i])
		}
	}
}

func TestInParts_Error(t *testing.T) {
	t.Parallel()
	if err := inParts(100, 3, func(int, int) error { return io.EOF }); err == nil {
		t.Error("the error is lost")
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	for rounds := 1; rounds <= 7; rounds++ {
		sum := 0
		for round := range rounds {
			sum += share(200, rounds, round)
		}
		if sum != 200 {
			t.Errorf("%d rounds share out %d of 200", rounds, sum)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, tc := range []struct {
		in      []time.Duration
		percent int
		want    time.Duration
	}{{nil, 99, 0}, {hundred[:1], 50, 1}, {hundred, 50, 50}, {hundred, 99, 99}, {hundred[:10], 99, 10}} {
		if got := quantile(tc.in, tc.percent); got != tc.want {
			t.Errorf("%d %% of %d times = %d, want %d", tc.percent, len(tc.in), got, tc.want)
		}
	}
}

func TestPick_BestInAnyOrder(t *testing.T) {
	t.Parallel()
	all := contenders()
	for round := range all {
		order := runner.Turn(all, round)
		if c, ok := pick(order, true); !ok || c.name != "ours-batch64" {
			t.Errorf("ours = %q, %t", c.name, ok)
		}
		if c, ok := pick(order, false); !ok || c.name != "asynq-tuned" {
			t.Errorf("the other = %q, %t", c.name, ok)
		}
		if n := len(emptyQueueSettings(order)); n != 3 {
			t.Errorf("%d settings on an empty queue, want 3", n)
		}
	}
	if c, ok := pick(all[:1], false); ok {
		t.Errorf("picked %q out of ours", c.name)
	}
}

func TestChoose_Unknown(t *testing.T) {
	t.Parallel()
	if _, err := choose("ours-batch1,nobody"); err == nil || !strings.Contains(err.Error(), "asynq-tuned") {
		t.Errorf("err = %v, want one that lists the contenders", err)
	}
}

func TestParse_Refused(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"-rounds=0", "-tasks=999", "-tasks=1000001", "-phases=enqueue,nothing", "-appendfsync=no", "extra",
	} {
		if _, err := parse([]string{args}, io.Discard); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
}

func TestAwaited_SplitText(t *testing.T) {
	t.Parallel()
	a := awaitLine("holds all\n")
	for i, part := range []string{"before\nhol", "ds all", "\nafter", "more"} {
		if n, err := a.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
		seen := false
		select {
		case <-a.seen:
			seen = true
		default:
		}
		if seen != (i >= 2) {
			t.Errorf("after part %d: seen = %t", i, seen)
		}
	}
}

func TestResults_Bars(t *testing.T) {
	t.Parallel()
	r := newResults(contenders())
	second := meter.Usage{Elapsed: time.Second}
	for _, n := range producers {
		for i, name := range r.ways {
			r.noteEnqueued(name, n, enqueued{Usage: second, tasks: []int64{10, 45 + int64(n), 7}[i]})
		}
	}
	for name, tasks := range map[string]int{"ours-batch1": 400, "ours-batch64": 399, "asynq": 20, "asynq-tuned": 19} {
		r.of[name].endToEnd = []endToEnd{{Usage: second, tasks: tasks}}
	}
	best := r.of["ours-batch64"]
	best.latency = []latency{{times: []time.Duration{time.Millisecond}}, {times: []time.Duration{6 * time.Millisecond}}}
	best.recovery = []recovery{{elapsed: 1500 * time.Millisecond}}
	best.deep = 1_000_000
	best.depth = [2][]depth{{{Usage: second, tasks: 1000}}, {{Usage: second, tasks: 899}}}
	best.depthOutcome = outcome{duplicates: 2}
	var out bytes.Buffer
	r.bars(&out)
	want := `BAR queue_enqueue_batched/one_by_one 4.60 5.00 missed
BAR queue_batch1/asynq 20.00 20.00 met
BAR queue_batch64/asynq 19.95 20.00 missed
BAR queue_empty_p99_ms 6.00 5.00 missed
BAR queue_recovery_s 1.50 2.00 met
BAR queue_1M/1k_pending 0.899 0.90 missed
BAR queue_duplicates 2 0 missed
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if err := r.faults(); err == nil {
		t.Error("no fault although tasks ran again")
	}
}

func TestResults_NothingRun(t *testing.T) {
	t.Parallel()
	r := newResults(contenders())
	var out bytes.Buffer
	if err := r.report(&out); err != nil || out.Len() > 0 {
		t.Errorf("report of nothing: %q, %v", out.String(), err)
	}
	if err := r.faults(); err != nil {
		t.Error(err)
	}
}

func TestAwait_Cancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := await(ctx, newLedger(1, noFailures)); err == nil {
		t.Error("a run that was cancelled counts as complete")
	}
}
