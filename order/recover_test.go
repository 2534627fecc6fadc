package order

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/queue"
)

// backup copies the site's database.
func (s *site) backup() string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "backup.db")
	if err := s.store.Writer().Exec("VACUUM INTO ?", path).Error; err != nil {
		s.t.Fatal(err)
	}
	return path
}

// restore puts the backup's data into the site's database, and returns the HighWater of a
// process that starts on it.
func (s *site) restore(path string) *HighWater {
	s.t.Helper()
	run := func(text string, args ...any) {
		s.t.Helper()
		if err := s.store.Writer().Exec(text, args...).Error; err != nil {
			s.t.Fatalf("%s: %v", text, err)
		}
	}
	run("ATTACH ? AS backup", path)
	// The orders first: a trigger updates the counts in their items' rows.
	for _, table := range []string{"orders", "items", "buyers", "payments", "releases", "stock_changes", "audit", "meta"} {
		run("DELETE FROM main." + table)
		run("INSERT INTO main." + table + " SELECT * FROM backup." + table)
	}
	run("DETACH backup")
	return s.highWater()
}

// stops checks all items, and expects only the site's to be stopped.
func (s *site) stops(h *HighWater) []Behind {
	s.t.Helper()
	stopped := h.mustCheck(s.t)
	if len(stopped) != 1 || stopped[0].ItemID != s.item {
		s.t.Fatalf("stopped %+v, want %s", stopped, s.item)
	}
	return stopped
}

// recover decides about items; during is called when the list is synced.
func (s *site) recover(h *HighWater, from RecoverFrom, items []Behind, during func() error) (RecoveredItem, map[string]int, error) {
	s.t.Helper()
	var list bytes.Buffer
	if during == nil {
		during = func() error { return nil }
	}
	var done RecoveredItem
	err := NewRecoverer(RecovererConfig{
		Store: s.store, Redis: s.rdb, Partitions: 1, Tasks: []Tasks{s.queue}, HighWater: h, List: &list, Sync: during, By: By{Actor: "root"},
	}).Recover(await.Context(s.t), from, items, func(i RecoveredItem) { done = i })
	actions := make(map[string]int)
	for line := range strings.Lines(list.String()) {
		var o RecoveredOrder
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		actions[o.Action]++
	}
	return done, actions, err
}

// buys places purchases of new buyers, and returns the number of confirmed ones.
func (s *site) buys(users ...string) (confirmed int) {
	s.t.Helper()
	for _, user := range users {
		p, err := s.service.Place(await.Context(s.t), s.purchase(user, "k", 1, limit))
		switch {
		case err == nil && p.Order.Status == StatusConfirmed:
			confirmed++
		case err != nil && !errors.Is(err, inventory.ErrSoldOut):
			s.t.Fatalf("%s buys: %v", user, err)
		}
	}
	return confirmed
}

// resumes expects that no item is stopped, and that the database is consistent.
func (s *site) resumes(h *HighWater) {
	s.t.Helper()
	if stopped := h.mustCheck(s.t); len(stopped) != 0 {
		s.t.Fatalf("stopped %+v after the decision", stopped)
	}
	row := itemOf(s.t, s.store, s.item)
	var changes int64
	if err := s.store.Writer().Raw("SELECT COALESCE(SUM(quantity), 0) FROM stock_changes WHERE item_id = ?", s.item).Scan(&changes).Error; err != nil {
		s.t.Fatal(err)
	}
	if row.Initial+changes != row.Total {
		s.t.Errorf("initial %d + changes %d is not the total %d", row.Initial, changes, row.Total)
	}
	auditStore(s.t, s.store)
}

// TestHighWater_Sticks: neither commits after the restore nor a loss in Redis end the stop;
// replacing the database with a newer file does.
func TestHighWater_Sticks(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 6, 1))
	s.highWater()
	stop := s.work()
	first := s.mustPlace(s.purchase("u1", "k", 1, limit))
	old := s.backup()
	s.mustPlace(s.purchase("u2", "k", 1, limit))
	s.drained()
	stop()
	queued := s.mustPlace(s.purchase("u3", "k", 1, 0))
	newer := s.backup()
	h := s.restore(old)
	s.stops(h)
	for _, reference := range []string{"psp-1", "psp-2", "psp-3"} {
		// Only the first one pays, but each of them is committed.
		if _, err := s.service.Pay(await.Context(t), first.Order.ID, Payment{reference, 1999, "EUR"}); err != nil && !errors.Is(err, ErrOrderFinal) {
			t.Fatal(err)
		}
	}
	s.stops(h)
	stop = s.work()
	await.True(t, "the queued order to be snoozed", func() bool {
		st, err := s.queue.Stats(await.Context(t))
		return err == nil && st.Ready+st.Leased == 0 && st.Delayed == 1
	})
	stop()
	if _, err := s.store.Order(await.Context(t), queued.Order.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("the queued order of a stopped sale was committed (%v)", err)
	}
	s.stops(h)
	if err := s.rdb.FlushAll(await.Context(t)).Err(); err != nil {
		t.Fatal(err)
	}
	s.stops(h)
	if stopped := s.restore(newer).mustCheck(t); len(stopped) != 0 {
		t.Errorf("stopped %+v with the newer database back", stopped)
	}
}

// TestHighWater_OtherDatabaseMeanwhile: another database on the same Redis does not remove
// the marks of this one.
func TestHighWater_OtherDatabaseMeanwhile(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 3, 1))
	s.highWater()
	stop := s.work()
	s.mustPlace(s.purchase("u1", "k", 1, limit))
	old := s.backup()
	s.mustPlace(s.purchase("u2", "k", 1, limit))
	s.drained()
	stop()
	other := newStore(t)
	if err := other.Writer().Exec("UPDATE meta SET value = 'another' WHERE key = 'lineage'").Error; err != nil {
		t.Fatal(err)
	}
	h, err := NewHighWater(await.Context(t), HighWaterConfig{Store: other, Redis: s.rdb, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	h.mustCheck(t)
	s.stops(s.restore(old))
}

// TestRecover_Twice: of two decisions about an item the second fails, and sells nothing.
func TestRecover_Twice(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 3, 1))
	s.highWater()
	stop := s.work()
	s.mustPlace(s.purchase("u1", "k", 1, limit))
	old := s.backup()
	s.mustPlace(s.purchase("u2", "k", 1, limit))
	s.mustPlace(s.purchase("u3", "k", 1, limit))
	s.drained()
	stop()
	h := s.restore(old)
	stopped := s.stops(h)
	s.work()
	decided := false
	_, _, err := s.recover(h, RecoverFromRedis, stopped, func() error {
		if decided {
			return nil
		}
		decided = true
		if _, _, err := s.recover(h, RecoverFromDatabase, stopped, nil); err != nil {
			t.Errorf("the other decision: %v", err)
		}
		h.mustCheck(t)
		if n := s.buys("x", "y"); n != 2 {
			t.Errorf("%d units are sold after the other decision, want 2", n)
		}
		return nil
	})
	if !errors.Is(err, ErrDecided) {
		t.Errorf("the second decision: %v, want %v", err, ErrDecided)
	}
	if row := itemOf(t, s.store, s.item); row.Sold != 3 || row.Total != 3 {
		t.Errorf("sold %d of %d, want 3 of 3", row.Sold, row.Total)
	}
	s.resumes(h)
}

// TestRecover_Interrupted: an interrupted recovery is finished by the next, and the units
// and the changes of the total count once.
func TestRecover_Interrupted(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 2, 1))
	s.highWater()
	stop := s.work()
	s.mustPlace(s.purchase("u1", "k", 1, limit))
	old := s.backup()
	if _, _, err := s.sales.Restock(await.Context(t), s.item, Restock{Quantity: 4, Reason: "r", IdempotencyKey: "r1"}, By{}); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"u2", "u3", "u4"} {
		s.mustPlace(s.purchase(user, "k", 1, limit))
	}
	s.drained()
	stop()
	queued := s.mustPlace(s.purchase("u5", "k", 1, 0))
	h := s.restore(old)
	broken := errors.New("the disk is full")
	syncs := 0
	_, _, err := s.recover(h, RecoverFromRedis, s.stops(h), func() error {
		if syncs++; syncs == 2 { // after the first page
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) {
		t.Fatalf("the first recovery: %v, want %v", err, broken)
	}
	if rows := allRows(t, s.store); len(rows) != 4 {
		t.Fatalf("%d orders after the interrupted recovery, want 4", len(rows))
	}
	done, _, err := s.recover(h, RecoverFromRedis, s.stops(h), nil)
	if err != nil || done.TotalAfter != 6 {
		t.Fatalf("recovered %+v, %v, want a total of 6", done, err)
	}
	s.resumes(h)
	s.work()
	if n := s.buys("x", "y"); n != 1 {
		t.Errorf("%d more units are sold, want 1 of 6", n)
	}
	await.True(t, "the queued order to be committed", func() bool {
		o, err := s.store.Order(await.Context(t), queued.Order.ID)
		return err == nil && o.Status == StatusConfirmed
	})
	s.resumes(h)
}

// TestRecover_DeadLetter: the units of a dead letter whose order was rejected after the
// backup are released, and count once.
func TestRecover_DeadLetter(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 3, 1))
	s.highWater()
	ctx := await.Context(t)
	s.mustPlace(s.purchase("u1", "k", 1, 0))
	f, err := s.queue.Dequeue(ctx, 1)
	if err != nil || len(f.Tasks) != 1 {
		t.Fatal(f, err)
	}
	if _, err := s.queue.Reject(ctx, queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
		t.Fatal(err)
	}
	old := s.backup()
	clock := setClock(s.store)
	sweeper := NewSweeper(s.fulfiller, SweeperConfig{Dead: []DeadLetters{s.queue}})
	for _, ms := range []int64{deadLetterAfter.Milliseconds() + 1000, sweepGrace.Milliseconds() + 1} {
		clock.Add(ms)
		if _, err := sweeper.Sweep(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.sales.Restock(ctx, s.item, Restock{Quantity: 1, Reason: "r", IdempotencyKey: "r1"}, By{}); err != nil {
		t.Fatal(err)
	}
	h := s.restore(old)
	done, actions, err := s.recover(h, RecoverFromRedis, s.stops(h), nil)
	if err != nil || done.TotalAfter != 4 || actions[recoverCancelled] != 1 {
		t.Fatalf("recovered %+v, %v, %v, want a total of 4 and one order cancelled", done, actions, err)
	}
	s.resumes(h)
	s.work()
	if n := s.buys("v1", "v2", "v3", "v4", "v5", "v6"); n != 4 {
		t.Errorf("%d units are sold, want 4", n)
	}
}

// TestRecover_PaidMeanwhile: a payment that arrives during the stop, for an order that was
// cancelled after the backup, needs a refund afterwards.
func TestRecover_PaidMeanwhile(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, asking("", 2, 1, time.Minute))
	s.highWater()
	stop := s.work()
	ctx := await.Context(t)
	cancelled, kept := s.mustPlace(s.purchase("u1", "k", 1, limit)), s.mustPlace(s.purchase("u2", "k", 1, limit))
	old := s.backup()
	if _, err := s.service.Cancel(ctx, cancelled.Order.ID, Canceller{UserID: "u1"}); err != nil {
		t.Fatal(err)
	}
	s.mustPlace(s.purchase("u3", "k", 1, limit))
	s.drained()
	stop()
	h := s.restore(old)
	stopped := s.stops(h)
	if _, err := s.service.Pay(ctx, cancelled.Order.ID, Payment{"psp-1", 1999, "EUR"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.recover(h, RecoverFromRedis, stopped, nil); err != nil {
		t.Fatal(err)
	}
	s.resumes(h)
	if o, err := s.store.Order(ctx, cancelled.Order.ID); err != nil || o.Status != StatusCancelled || o.Reason != reasonRecovered {
		t.Errorf("the cancelled order is %s (%s), %v", o.Status, o.Reason, err)
	}
	var owed int64
	if err := s.store.Writer().Raw("SELECT COUNT(*) FROM payments WHERE order_id = ? AND "+paymentsOwed, cancelled.Order.ID).Scan(&owed).Error; err != nil || owed != 1 {
		t.Errorf("%d payments of the cancelled order need a refund, %v, want 1", owed, err)
	}
	o, err := s.store.Order(ctx, kept.Order.ID)
	if err != nil || o.ExpiresAt.Before(time.Now().Add(recoverPayWithin-time.Hour)) {
		t.Errorf("an unpaid order expires at %v, %v, want it to have at least a day", o.ExpiresAt, err)
	}
}

// TestRecover_Erased: an order was cancelled and its buyer erased after the backup. Redis
// has the buyer's pseudonym, and the row the name; the units are subtracted from the row's
// buyer.
func TestRecover_Erased(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, asking("", 2, 1, time.Minute)).erasing()
	s.highWater()
	stop := s.work()
	ctx := await.Context(t)
	cancelled := s.mustPlace(s.purchase("u1", "k", 1, limit))
	s.drained()
	old := s.backup()
	if _, err := s.service.Cancel(ctx, cancelled.Order.ID, Canceller{UserID: "u1"}); err != nil {
		t.Fatal(err)
	}
	s.mustErase("u1")
	stop()
	h := s.restore(old)
	if _, _, err := s.recover(h, RecoverFromRedis, s.stops(h), nil); err != nil {
		t.Fatal(err)
	}
	s.resumes(h)
}

// TestRecover_Incomplete: if Redis has lost a part of its data, the data is not used.
func TestRecover_Incomplete(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 3, 1))
	s.highWater()
	stop := s.work()
	old := s.backup()
	s.mustPlace(s.purchase("u1", "k", 1, limit))
	s.drained()
	stop()
	// The state after a load that was killed after its first step.
	ctx, key := await.Context(t), "fs:{p0}:"
	if _, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, key+"sale:"+s.item, key+"idempotency:"+s.item, key+"buyers:"+s.item)
		p.HSet(ctx, key+"sale:"+s.item, "building", "x")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	h := s.restore(old)
	if _, _, err := s.recover(h, RecoverFromRedis, s.stops(h), nil); !errors.Is(err, inventory.ErrIncomplete) {
		t.Errorf("from Redis: %v, want %v", err, inventory.ErrIncomplete)
	}
	if _, _, err := s.recover(h, RecoverFromDatabase, s.stops(h), nil); err != nil {
		t.Errorf("from the database: %v", err)
	}
	s.resumes(h)
}

// TestRecover_Reopened: an item that had ended when the backup was made, and was reopened,
// is removed from Redis after its next end.
func TestRecover_Reopened(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		h := s.highWater()
		stop := s.work()
		s.exec("UPDATE items SET opens_at = ?, closes_at = ?, freed = 1 WHERE id = ?", time.Now().Add(-2*time.Hour).UnixMilli(), time.Now().Add(-time.Hour).UnixMilli(), s.item)
		backup := s.backup()
		closes := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		if _, err := s.sales.ChangeItem(await.Context(t), s.item, ItemChange{ClosesAt: &closes}, By{Actor: "root"}); err != nil {
			t.Fatal(err)
		}
		s.load()
		s.buys("a", "b")
		stop()
		h.note(await.Context(t))
		h = s.restore(backup)
		if _, _, err := s.recover(h, RecoverFromRedis, s.stops(h), nil); err != nil {
			t.Fatal(err)
		}
		if row := itemOf(t, s.store, s.item); row.Freed || row.ClosesAt != closes.UnixMilli() {
			t.Errorf("after it: freed %v, closes at %d, want %d", row.Freed, row.ClosesAt, closes.UnixMilli())
		}
	})
}

// TestSweeper_Buried_Stopped: a dead letter of a stopped sale may belong to an order that
// was committed, and that the database has lost. It waits for the decision.
func TestSweeper_Buried_Stopped(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 3, 1))
		h := s.highWater()
		ctx := await.Context(t)
		old := s.backup()
		p := s.mustPlace(s.purchase("u1", "k", 1, 0))
		f, err := s.queue.Dequeue(ctx, 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatal(f, err)
		}
		// It is committed, and the work after the commit has failed in every attempt.
		mustCommit(t, s.store, mustParse(t, f.Tasks[0].ID, f.Tasks[0].Payload))
		h.note(ctx)
		if _, err := s.queue.Reject(ctx, queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		h = s.restore(old)
		stopped := s.stops(h)
		clock := setClock(s.store)
		sweeper := NewSweeper(s.fulfiller, SweeperConfig{Dead: []DeadLetters{s.queue}})
		sweep := func() {
			t.Helper()
			clock.Add(deadLetterAfter.Milliseconds() + 1000)
			if _, err := sweeper.Sweep(ctx); err != nil {
				t.Fatal(err)
			}
		}
		sweep()
		if rows := allRows(t, s.store); len(rows) != 0 {
			t.Fatalf("the sweeper has decided about %+v", rows)
		}
		if _, _, err := s.recover(h, RecoverFromRedis, stopped, nil); err != nil {
			t.Fatal(err)
		}
		s.resumes(h)
		// The letter still belongs to a purchase that may be committed.
		sweep()
		if row := allRows(t, s.store)[p.Order.ID]; row.Status == "" {
			t.Error("the letter was not read after the decision")
		}
	})
}
