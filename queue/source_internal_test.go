package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// TestRejection_Verdicts: a verdict holds even if Run has ended the handler's context, and always has a reason. Another
// error is then no attempt.
func TestRejection_Verdicts(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		err  error
		want Rejection
	}{
		"error":              {broken, Rejection{Uncounted: true, Reason: "broken"}},
		"discard":            {Discard(broken), Rejection{Dead: true, Reason: "broken"}},
		"discard without":    {Discard(nil), Rejection{Dead: true, Reason: "discarded by its handler"}},
		"discard, wrapped":   {fmt.Errorf("task: %w", Discard(broken)), Rejection{Dead: true, Reason: "task: broken"}},
		"retry":              {RetryIn(time.Minute, broken), Rejection{Delay: time.Minute, Reason: "broken"}},
		"retry in the past":  {RetryIn(-time.Second, nil), Rejection{Reason: "to be retried in 0s"}},
		"snooze":             {Snooze(time.Minute), Rejection{Delay: time.Minute, Uncounted: true, Reason: "snoozed for 1m0s"}},
		"return":             {Return(broken), Rejection{Uncounted: true, Reason: "broken"}},
		"snooze for no time": {Snooze(0), Rejection{Delay: time.Millisecond, Uncounted: true, Reason: "snoozed for 1ms"}},
	} {
		got := rejection(Leased{ID: "a"}, c.err, true)
		if got.Task.ID != "a" || !errors.Is(got.cause, c.err) {
			t.Errorf("%s: of %s, cause %v", name, got.Task.ID, got.cause)
		}
		got.Task, got.cause = Leased{}, nil
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if d, ok := Snoozed(c.err); ok != strings.HasPrefix(name, "snooze") || ok && d != c.want.Delay {
			t.Errorf("%s: snoozed for %v, %v", name, d, ok)
		}
	}
}

// TestQueue_Pass: a wake-up is passed on only if a task is ready.
func TestQueue_Pass(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q, err := New(rdb, Config{Prefix: redistest.Prefix(t), Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		want := func(ready bool, from, to time.Duration) {
			t.Helper()
			got, next, err := q.pass(ctx)
			if err != nil || got != ready || next < from || next > to {
				t.Fatalf("%v, %v, %v; want %v and %v to %v", got, next, err, ready, from, to)
			}
			n, err := rdb.Del(ctx, q.keys.wake).Result()
			if err != nil || n == 1 != ready {
				t.Fatalf("%d tokens, %v", n, err)
			}
		}
		add := func(task Task) {
			t.Helper()
			if _, err := q.Enqueue(ctx, task); err != nil {
				t.Fatal(err)
			}
			if err := rdb.Del(ctx, q.keys.wake).Err(); err != nil {
				t.Fatal(err)
			}
		}
		want(false, -time.Millisecond, -time.Millisecond)
		add(Task{ID: "later", Due: time.Now().Add(time.Hour)})
		want(false, 50*time.Minute, time.Hour+time.Second) // by Redis's clock, rounded up
		add(Task{ID: "now"})
		want(true, 0, 0)
		if err := q.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		want(false, -time.Millisecond, -time.Millisecond)
		if err := q.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		f, err := q.Dequeue(ctx, 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatalf("%v, %v", f, err)
		}
		if err := rdb.Del(ctx, q.keys.wake).Err(); err != nil {
			t.Fatal(err)
		}
		want(false, time.Second, time.Minute+time.Millisecond) // the lease, rounded up
		if err := rdb.ZAdd(ctx, q.keys.all[2], redis.Z{Score: 1, Member: "now"}).Err(); err != nil {
			t.Fatal(err)
		}
		want(true, 0, 0)
	})
}

// TestQueue_Pass_Fails: a failure of Redis is not taken for a queue without ready tasks.
func TestQueue_Pass_Fails(t *testing.T) {
	t.Parallel()
	q := queueAt(t, func(context.Context, redis.Cmder) error { return redis.ErrClosed }, Config{})
	if _, _, err := q.pass(t.Context()); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("%v, want the failure", err)
	}
}

// TestRenewer_OneEnded: a lost lease whose handler still runs does not stop the renewal of the
// others.
func TestRenewer_OneEnded(t *testing.T) {
	t.Parallel()
	q, err := New(redistest.Embedded(t), Config{Prefix: redistest.Prefix(t), Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Enqueue(t.Context(), Task{ID: "a"}, Task{ID: "b"}); err != nil {
		t.Fatal(err)
	}
	p, s := bench(t, RunConfig{Batch: 1}, 1)
	s[0].Queue = q
	f, err := q.Dequeue(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	p.fetched(s[0], f.Tasks, false, false)
	now := time.Now()
	*f.Tasks[0].end, *f.Tasks[1].end = now.Add(-time.Second), now.Add(time.Minute)
	if !s[0].extend(t.Context()) {
		t.Fatal("it failed")
	}
	if end := *f.Tasks[1].end; end.Before(now.Add(time.Hour)) {
		t.Fatalf("the other ends at %v and was not extended", end)
	}
	if end := *f.Tasks[0].end; end.After(now) {
		t.Fatalf("the ended lease was extended to %v", end)
	}
}

// TestAcker_Send: items are sent in chunks, in order, and a failed chunk is repeated until the leases have ended
// or the drain is over.
func TestAcker_Send(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		_, s := bench(t, RunConfig{}, 1)
		r := s[0].r
		var reported int
		r.cfg.OnError = func(error) { reported++ }
		work, cut := context.WithCancel(t.Context())
		r.work = work
		var sent [][]int
		ok := send(s[0].acker, time.Now(), []int{1, 2, 3, 4, 5}, 2, func(_ context.Context, some []int) error {
			sent = append(sent, some)
			if len(sent) == 2 {
				return refused
			}
			return nil
		})
		if ok || fmt.Sprint(sent) != "[[1 2] [3 4]]" || reported != 1 {
			t.Errorf("after the leases: sent %v, %v, reported %d", sent, ok, reported)
		}
		sent, reported = nil, 0
		ok = send(s[0].acker, time.Now().Add(time.Hour), []int{1, 2, 3, 4, 5}, 2, func(_ context.Context, some []int) error {
			sent = append(sent, some)
			if len(sent) == 2 {
				return refused
			}
			return nil
		})
		if !ok || fmt.Sprint(sent) != "[[1 2] [3 4] [3 4] [5]]" || reported != 1 {
			t.Errorf("sent %v, %v, reported %d", sent, ok, reported)
		}
		start, tries := time.Now(), 0
		refuse := func(context.Context, []int) error {
			if tries++; tries >= 1000 {
				return nil
			}
			return refused
		}
		if ok := send(s[0].acker, start.Add(time.Minute), []int{1}, 1, refuse); ok || time.Since(start) < time.Minute {
			t.Errorf("%v after %d tries in %v, want a minute", ok, tries, time.Since(start))
		}
		cut()
		tries = 0
		if ok := send(s[0].acker, time.Now().Add(time.Minute), []int{1}, 1, refuse); ok || tries != 1 {
			t.Errorf("after the drain: %v after %d tries, want one", ok, tries)
		}
	})
}

// TestFetch_Size: each failed fetch halves the next one, down to a single entry, and each success doubles it.
func TestFetch_Size(t *testing.T) {
	t.Parallel()
	var asked []any // how many entries each fetch may take
	failing := false
	q := queueAt(t, func(_ context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		asked = append(asked, args[3+args[2].(int)])
		if failing {
			return context.DeadlineExceeded
		}
		cmd.(*redis.Cmd).SetVal([]any{"1", "0", "0", "", "0"})
		return nil
	}, Config{})
	_, s := bench(t, RunConfig{Batch: 512, Workers: 1}, 1)
	s[0].Queue, s[0].size = q, chunkTasks
	for i := range 22 {
		failing = i < 11
		if err := s[0].turn(t.Context()); (err != nil) != failing {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprint(asked), "[512 256 128 64 32 16 8 4 2 1 1 1 2 4 8 16 32 64 128 256 512 512]"; got != want {
		t.Errorf("fetched %s, want %s", got, want)
	}
}

// TestFetch_Linger: after a fetch that found fewer entries than a batch has, the next one begins after the time that Linger
// returned, or after a second if that is less.
func TestFetch_Linger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queueAt(t, func(_ context.Context, cmd redis.Cmder) error {
			cmd.(*redis.Cmd).SetVal([]any{"0", "-1", "0", "", "0", "a", "payload", "1,0"})
			return nil
		}, Config{})
		var linger time.Duration
		_, s := bench(t, RunConfig{Batch: 4, Workers: 9, Linger: func([]Leased) time.Duration { return linger }}, 1)
		s[0].Queue, s[0].size = q, chunkTasks
		began, want := time.Now(), time.Duration(0)
		for _, linger = range []time.Duration{0, 20 * time.Millisecond, time.Hour, 0} {
			if err := s[0].turn(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(began); got != want {
				t.Fatalf("fetched after %v, want %v", got, want)
			}
			want += min(linger, time.Second)
		}
	})
}

// TestStrays_Bounded: a check for lost tasks reads a bounded number of pages, the next one begins a second later,
// and it starts again when it has seen everything. A number of lost tasks is reported once, and again after there was
// none; so is each failure, which ends the check.
func TestStrays_Bounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("no way to Redis")
		pages, cursor, scanErr := 0, uint64(1), error(nil) // of the scans, which find nothing
		q := queueAt(t, func(ctx context.Context, cmd redis.Cmder) error {
			pages++
			err := errors.Join(ctx.Err(), scanErr)
			if scan, ok := cmd.(*redis.ScanCmd); ok && err == nil {
				scan.SetVal(nil, cursor)
			}
			return err
		}, Config{})
		ended, cancel := context.WithCancel(t.Context())
		cancel() // the end of Run does not cancel a check
		var s strays
		look := func(what string, n int64, wantPages int, want ...error) {
			t.Helper()
			pages = 0
			var got []error
			s.look(ended, q, n, func(err error) { got = append(got, err) })
			if pages != wantPages || len(got) != len(want) {
				t.Fatalf("%s: %d pages, reported %v; want %d and %v", what, pages, got, wantPages, want)
			}
			for i := range want {
				if !errors.Is(got[i], want[i]) {
					t.Errorf("%s: reported %v, want %v", what, got[i], want[i])
				}
			}
		}
		later := func() { <-time.After(strayEvery) }
		look("none", 0, 0)
		look("two", 2, strayPages, ErrTaskLost)
		look("at once", 2, 0)
		look("three at once", 3, 0, ErrTaskLost)
		later()
		look("later", 3, strayPages)
		later()
		cursor = 0
		look("the other keys", 3, len(verifyKeys))
		later()
		look("all keys again", 3, len(verifyKeys))
		later()
		scanErr = failed
		look("failing", 3, 1, failed)
		look("at once after a failure", 3, 0)
		look("repaired", 0, 0)
		look("three again", 3, 1, ErrTaskLost, failed)
	})
}

// TestAcker_GivesUp: when the first call fails at the end of the drain, the calls for the other
// outcomes are not made, because each could take as long again.
func TestAcker_GivesUp(t *testing.T) {
	t.Parallel()
	_, s := bench(t, RunConfig{}, 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s[0].r.work = ended
	s[0].r.cfg.OnError = func(error) {}
	calls := 0
	s[0].Queue = queueAt(t, func(context.Context, redis.Cmder) error {
		calls++
		return redis.ErrClosed
	}, Config{})
	tasks := brought("a", 0, 3)
	for what, o := range map[string]results{
		"acknowledged":      {done: tasks[:1], then: []Completion{{Task: tasks[1]}}, back: []Rejection{{Task: tasks[2]}}},
		"with what follows": {then: []Completion{{Task: tasks[1]}}, back: []Rejection{{Task: tasks[2]}}},
	} {
		calls = 0
		s[0].acker.settle(time.Now().Add(time.Hour), o)
		if calls != 1 {
			t.Errorf("%s: %d calls, want 1", what, calls)
		}
	}
}
