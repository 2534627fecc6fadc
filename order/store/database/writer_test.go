package database

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/pooltest"
	"flashsale/order/timeouts"
)

// shared and alike are kinds of changes.
var shared, alike = &Kind{Shared: true}, new(Kind)

// queued makes a write on another goroutine, and returns once it waits.
func queued(t *testing.T, db *DB, own *Write) (ended <-chan error) {
	t.Helper()
	batches, changes := db.Waiting()
	end := make(chan error, 1)
	go func() {
		_, err := db.Do(await.Context(t), own)
		end <- err
	}()
	await.True(t, "a write to wait", func() bool { b, n := db.Waiting(); return b+n == batches+changes+1 })
	return end
}

// TestWriter_Bounds: in a batch's transaction, changes get a share of its time; without a
// batch they have their own bound; at least one is accepted in every case.
func TestWriter_Bounds(t *testing.T) {
	t.Parallel()
	long := 2 * timeouts.Group
	now := time.Now()
	for name, c := range map[string]struct {
		tx   *Tx
		full bool
	}{
		"the first":           {&Tx{began: now.Add(-long)}, false},
		"within its time":     {&Tx{began: now, changes: 1}, false},
		"beyond its time":     {&Tx{began: now.Add(-long), changes: 1}, true},
		"too many":            {&Tx{began: now, changes: groupChanges}, true},
		"beside a batch":      {&Tx{began: now.Add(-long), batchTook: long, hasBatch: true, changes: 1}, false},
		"beside a long batch": {&Tx{began: now.Add(-11 * long), batchTook: 10 * long, hasBatch: true, changes: 1}, false},
		"more than its share": {&Tx{began: now.Add(-14 * long), batchTook: 10 * long, hasBatch: true, changes: 1}, true},
	} {
		if full := c.tx.isFull(); full != c.full {
			t.Errorf("%s: full %v, want %v", name, full, c.full)
		}
	}
}

// TestWriter_next_Left: a change of a kind that is Shared does not join other changes on Postgres, which need another lock,
// behind a change whose caller has left.
func TestWriter_next_Left(t *testing.T) {
	t.Parallel()
	first, left, own := new(Write), &Write{abandoned: true}, &Write{Kind: shared}
	w := newWriter(&DB{url: "postgres://none"})
	w.changes = []*Write{first, left, own}
	tx := &Tx{db: w.db, began: time.Now()}
	if bunch := w.popShared(); len(bunch) > 0 {
		t.Fatalf("%d shared changes are next, want none before the first change", len(bunch))
	}
	if bunch := w.next(tx); !slices.Equal(bunch, []*Write{first}) {
		t.Fatalf("%d changes begin the transaction, want the first", len(bunch))
	}
	if bunch := w.next(tx); len(bunch) > 0 {
		t.Errorf("%d changes join it, want none", len(bunch))
	}
	if bunch := w.popShared(); !slices.Equal(bunch, []*Write{own}) {
		t.Errorf("%d shared changes are next, want 1", len(bunch))
	}
}

// TestWriter_next_Bunch: changes of a kind are made together in small bunches, except after a wait for another process.
func TestWriter_next_Bunch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tx   Tx
		want int
	}{
		"alone":              {Tx{}, maxBunch},
		"beside a batch":     {Tx{hasBatch: true}, maxBunch},
		"batch after a wait": {Tx{hasBatch: true, beside: true}, maxBunch},
		"after a wait":       {Tx{beside: true}, groupChanges},
		"after some changes": {Tx{beside: true, changes: groupChanges - 7}, 7},
	} {
		w := newWriter(new(DB))
		for range groupChanges + 1 {
			w.changes = append(w.changes, &Write{Kind: alike})
		}
		c.tx.began = time.Now()
		if got := len(w.next(&c.tx)); got != c.want {
			t.Errorf("%s: %d changes are made together, want %d", name, got, c.want)
		}
	}
}

// TestWriter_yield: the writer leaves the database to another process until the time is over, a batch waits, or the
// database closes.
func TestWriter_yield(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then  func(w *writer)
		early bool
	}{
		"nothing": {func(*writer) {}, false},
		"a change": {func(w *writer) {
			w.running = make(chan struct{})
			if err := w.enqueue(t.Context(), &w.changes, new(Write)); err != nil {
				t.Error(err)
			}
		}, false},
		"a batch": {func(w *writer) {
			w.running = make(chan struct{})
			if err := w.enqueue(t.Context(), &w.batches, &Write{Batch: true}); err != nil {
				t.Error(err)
			}
		}, true},
		"the end": {func(w *writer) { w.stop() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWriter(new(DB))
				defer w.stop()
				w.yieldUntil = time.Now().Add(yieldMost)
				go c.then(w)
				w.yield()
				if early := time.Now().Before(w.yieldUntil); early != c.early {
					t.Errorf("the wait ended early: %v, want %v", early, c.early)
				}
			})
		})
	}
}

// TestWriter_yield_Waited: a transaction of changes that waits for another process still has its full time, and the
// next one leaves the database to that process.
func TestWriter_yield_Waited(t *testing.T) {
	t.Parallel()
	setting := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	own, other := openDB(t, setting), openDB(t, setting)
	var tx *Tx
	var ran time.Time
	write := func(batch bool) *Write {
		return &Write{Batch: batch, Run: func(_ context.Context, in *Tx) error { tx, ran = in, time.Now(); return nil }}
	}
	if _, err := own.Do(await.Context(t), write(false)); err != nil {
		t.Fatal(err)
	}
	if yields := own.changeWriter.yieldUntil; tx.waited || !yields.IsZero() {
		t.Fatalf("without another process, the transaction waited (%v), and the writer yields until %v", tx.waited, yields)
	}
	afterWait := func(batch bool) {
		await.True(t, "a transaction to wait for the other process", func() bool {
			begun := other.Writer().Begin()
			if begun.Error != nil {
				t.Fatal(begun.Error)
			}
			ended := queued(t, own, write(batch))
			released := time.Now()
			if err := errors.Join(begun.Rollback().Error, <-ended); err != nil {
				t.Fatal(err)
			}
			if tx.waited && tx.began.Before(released) {
				t.Error("the wait for the other process is part of the time for changes")
			}
			return tx.waited
		})
	}
	afterWait(true)
	if yields := own.changeWriter.yieldUntil; !yields.IsZero() {
		t.Errorf("after a batch, the writer yields until %v", yields)
	}
	afterWait(false)
	if yields := own.changeWriter.yieldUntil; !yields.After(ran) {
		t.Errorf("the writer yields until %v, want a time after the transaction", yields)
	}
}

// TestWriter_yield_Abandoned: beside another process, a transaction whose only write was withdrawn ends like any other.
func TestWriter_yield_Abandoned(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	db.changeWriter.waited = time.Now().Add(time.Hour)
	release := pooltest.Hold(t, db.Writer())
	ctx, leave := context.WithCancel(await.Context(t))
	ended := make(chan error, 1)
	go func() { ended <- change(ctx, db, nothing) }()
	await.True(t, "a write to wait", func() bool { _, n := db.Waiting(); return n == 1 })
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a withdrawn write: %v", err)
	}
	release()
	await.True(t, "the writer to end", func() bool {
		db.changeWriter.mu.Lock()
		defer db.changeWriter.mu.Unlock()
		return db.changeWriter.running == nil
	})
	if err := change(await.Context(t), db, nothing); err != nil {
		t.Errorf("the next write: %v", err)
	}
	if yields := db.changeWriter.yieldUntil; yields.IsZero() {
		t.Error("the transactions did not run beside another process")
	}
}

// TestWriter_yield_Separate: beside another process, the writer does not pause after a batch that had to run again, in
// a transaction of its own, because a change had lost their common one.
func TestWriter_yield_Separate(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	db.changeWriter.waited = time.Now().Add(time.Hour)
	release := pooltest.Hold(t, db.Writer())
	lost := queued(t, db, &Write{Run: func(context.Context, *Tx) error { return &lostError{errTest} }})
	runs := 0
	batch := queued(t, db, &Write{Batch: true, Run: func(context.Context, *Tx) error { runs++; return nil }})
	release()
	if err := <-lost; !errors.Is(err, errTest) {
		t.Errorf("the change that lost the transaction: %v", err)
	}
	if err := <-batch; err != nil || runs != 2 {
		t.Errorf("the batch ran %d times, %v, want twice", runs, err)
	}
	if yields := db.changeWriter.yieldUntil; !yields.IsZero() {
		t.Errorf("after a batch, the writer yields until %v", yields)
	}
}

// TestWriter_yield_Joined: changes that arrive while the writer leaves the database to another process wait for the next
// batch.
func TestWriter_yield_Joined(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	db.changeWriter.yieldUntil = time.Now().Add(time.Hour)
	var of [2]*Tx
	in := func(i int) func(context.Context, *Tx) error {
		return func(_ context.Context, tx *Tx) error { of[i] = tx; return nil }
	}
	changed := queued(t, db, &Write{Run: in(0)})
	if _, err := db.Do(await.Context(t), &Write{Batch: true, Run: in(1)}); err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if of[0] != of[1] {
		t.Error("the change was made before the batch")
	}
}

// TestTx_run_Over: changes of a bunch that must be made one by one are left for another transaction when the time for
// changes is over.
func TestTx_run_Over(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	for name, c := range map[string]struct {
		began time.Time
		left  int
	}{
		"in time": {time.Now(), 0},
		"over":    {time.Now().Add(-2 * timeouts.Group), 2},
	} {
		tx, err := begin(await.Context(t), db)
		if err != nil {
			t.Fatal(err)
		}
		tx.began = c.began
		kind := &Kind{Together: func(_ context.Context, _ *Tx, bunch []*Write) ([]*Write, error) { return bunch, nil }}
		left, _, err := tx.run([]*Write{{Kind: kind, Run: nothing}, {Kind: kind, Run: nothing}, {Kind: kind, Run: nothing}})
		if err := errors.Join(err, tx.End(false)); err != nil || len(left) != c.left {
			t.Errorf("%s: %d are left, %v, want %d", name, len(left), err, c.left)
		}
	}
}

// TestWriter_putBack_Closed: changes that must run again while the database closes are answered.
func TestWriter_putBack_Closed(t *testing.T) {
	t.Parallel()
	w := newWriter(&DB{url: "postgres://none"})
	w.close()
	own := &Write{Kind: shared, done: make(chan struct{})}
	w.putBack([]*Write{own})
	select {
	case <-own.done:
		if !errors.Is(own.err, errClosed) {
			t.Errorf("got %v, want errClosed", own.err)
		}
	default:
		t.Error("the change has no answer")
	}
}

// TestWriter_alike: changes of the same kind are taken up to a number. Those whose callers have left stay, and the
// callers of the others cannot leave any more.
func TestWriter_alike(t *testing.T) {
	t.Parallel()
	one := func() *Write { return &Write{Kind: shared} }
	left := one()
	left.abandoned = true
	changes := []*Write{left, one(), {Kind: alike}, {}, one(), one()}
	w := &writer{changes: slices.Clone(changes)}
	if more := w.popAlike(one(), 2); !slices.Equal(more, []*Write{changes[1], changes[4]}) {
		t.Errorf("%d changes were taken, want the two oldest of the kind", len(more))
	}
	if want := []*Write{left, changes[2], changes[3], changes[5]}; !slices.Equal(w.changes, want) {
		t.Errorf("%d changes wait, want %d", len(w.changes), len(want))
	}
	if w.withdraw(changes[1]) || !w.withdraw(changes[5]) {
		t.Error("a caller left a change that had begun, or could not leave one that waits")
	}
}

// TestWriter_each_NoConnection: if no transaction can begin, all writes that were to run one by one get the error.
func TestWriter_each_NoConnection(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.changeWriter.stop()
	rest := make([]*Write, 3)
	for i := range rest {
		rest[i] = &Write{done: make(chan struct{})}
	}
	db.changeWriter.runSeparately(slices.Clone(rest))
	for i, one := range rest {
		select {
		case <-one.done:
			if one.err == nil {
				t.Errorf("write %d succeeded", i)
			}
		default:
			t.Errorf("write %d has no answer", i)
		}
	}
}

// TestWriter_Full: the list of waiting changes is bounded, and batches are not refused.
func TestWriter_Full(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.changeWriter.limit = 3
	release := pooltest.Hold(t, db.Writer())
	var waiting []<-chan error
	for range 3 {
		waiting = append(waiting, queued(t, db, &Write{Run: nothing}))
	}
	waiting = append(waiting, queued(t, db, &Write{Batch: true, Run: nothing}))
	if err := change(await.Context(t), db, nothing); !errors.Is(err, ErrQueueFull) || !Transient(err) {
		t.Errorf("a change beyond the bound: %v", err)
	}
	release()
	for i, ended := range waiting {
		if err := <-ended; err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if err := change(await.Context(t), db, nothing); err != nil {
		t.Errorf("once there is room: %v", err)
	}
}

// TestWriter_close_Held: close does not wait for a connection that is not returned.
func TestWriter_close_Held(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	release := pooltest.Hold(t, db.Writer())
	ended := queued(t, db, &Write{Run: nothing})
	db.changeWriter.close()
	if err := <-ended; !errors.Is(err, errClosed) {
		t.Errorf("a change that waited: %v", err)
	}
	release()
}
