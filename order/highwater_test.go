package order

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
)

// TestHighWater_Behind: every change of an item's orders raises the mark in Redis, and a
// database below the mark is detected until its revision is above it.
func TestHighWater_Behind(t *testing.T) {
	alone(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		h := s.highWater()
		s.work()
		placed := s.mustPlace(s.purchase("u1", "k1", 1, limit))
		mark := func() int64 {
			t.Helper()
			marks, err := inventory.Revisions(await.Context(t), rdb, 1, h.lineage, []string{s.item})
			if err != nil {
				t.Fatal(err)
			}
			if now := itemOf(t, s.store, s.item).Revision; marks[0] != now {
				t.Errorf("Redis records revision %d, the database is at %d", marks[0], now)
			}
			return marks[0]
		}
		s.drained()
		before := mark()
		if before == 0 {
			t.Fatal("the commit of an order is not recorded")
		}
		steps := []struct {
			name string
			do   func() error
		}{
			{"pay", func() error {
				_, err := s.service.Pay(await.Context(t), placed.Order.ID, Payment{"psp-1", 1999, "EUR"})
				return err
			}},
			{"cancel", func() error {
				other := s.mustPlace(s.purchase("u2", "k1", 1, limit))
				_, err := s.service.Cancel(await.Context(t), other.Order.ID, Canceller{Admin: true, UserID: "root"})
				return err
			}},
			{"mismatch", func() error {
				_, err := s.service.Pay(await.Context(t), placed.Order.ID, Payment{"psp-2", 1, "EUR"})
				return ignore(err, ErrAmountMismatch)
			}},
			{"mark a payment", func() error {
				_, err := (&PaymentService{Store: s.store}).MarkRefunded(await.Context(t), paymentIDs(t, s.store)["psp-2"], root)
				return err
			}},
			{"refund", func() error {
				_, err := s.service.Refund(await.Context(t), placed.Order.ID, Refund{By: root})
				return err
			}},
			{"refund with a restock", func() error {
				_, err := s.service.Refund(await.Context(t), s.mustPay("u4", "k1", 1).ID, Refund{Restock: true, By: root})
				return err
			}},
			{"restock", func() error {
				_, _, err := s.sales.Restock(await.Context(t), s.item, Restock{Quantity: 1, Reason: "r", IdempotencyKey: "r1"}, By{})
				return err
			}},
		}
		for _, step := range steps {
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			if now := mark(); now <= before {
				t.Errorf("%s: revision %d after %d", step.name, now, before)
			} else {
				before = now
			}
		}
		if stopped := h.mustCheck(t); len(stopped) != 0 {
			t.Fatalf("stopped %+v, and nothing was restored", stopped)
		}
		paid := s.mustPay("u5", "k1", 1)
		before = mark()
		s.rollBack(before - 1)
		stopped := h.mustCheck(t)
		if len(stopped) != 1 || stopped[0] != (Behind{s.item, before - 1, before}) {
			t.Fatalf("stopped %+v, want %s at %d of %d", stopped, s.item, before-1, before)
		}
		if _, err := s.service.Place(await.Context(t), s.purchase("u3", "k1", 1, limit)); !errors.Is(err, inventory.ErrStopped) {
			t.Errorf("a purchase of a stopped sale: %v, want %v", err, inventory.ErrStopped)
		}
		if o, err := s.service.Refund(await.Context(t), paid.ID, Refund{By: root}); !errors.Is(err, inventory.ErrStopped) {
			t.Errorf("a refund in a stopped sale: %+v, %v, want %v", o, err, inventory.ErrStopped)
		}
		refused, err := h.MayLoad(await.Context(t), []string{s.item, "none"})
		if err != nil || len(refused) != 1 || !errors.Is(refused[s.item], inventory.ErrStopped) {
			t.Errorf("load: %v, %v, want %v", refused, err, inventory.ErrStopped)
		}
		s.rollBack(before + 1)
		if stopped := h.mustCheck(t); len(stopped) != 1 {
			t.Errorf("stopped %+v after commits on the old database, want it to stay so", stopped)
		}
	})
}

// TestHighWater_Busy: checks concurrent with commits find nothing, whatever is in progress.
func TestHighWater_Busy(t *testing.T) {
	alone(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 1000, 1))
		h := s.highWater()
		s.work()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 200 {
				if _, err := s.service.Place(await.Context(t), s.purchase(fmt.Sprint("u", i), "k", 1, limit)); err != nil {
					t.Errorf("place: %v", err)
					return
				}
			}
		}()
		checks := 0
		for ended := false; !ended || checks < 20; checks++ {
			if stopped := h.mustCheck(t); len(stopped) != 0 {
				t.Fatalf("stopped %+v, and nothing was restored", stopped)
			}
			select {
			case <-done:
				ended = true
			default:
			}
		}
	})
}

// TestHighWater_OtherDatabase: marks of another database do not stop this one.
func TestHighWater_OtherDatabase(t *testing.T) {
	alone(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		s.highWater()
		s.work()
		s.mustPlace(s.purchase("u1", "k1", 1, limit))
		s.drained()
		other := newStore(t)
		// The test's databases are copies of one file, and so have the same lineage.
		if err := other.Writer().Exec("UPDATE meta SET value = 'another' WHERE key = 'lineage'").Error; err != nil {
			t.Fatal(err)
		}
		n := newItem(s.item, 10, 5)
		mustInsert(t, other, n)
		found, err := FindBehind(await.Context(t), other, rdb, 1)
		if err != nil || len(found) != 0 {
			t.Errorf("doctor finds %+v, %v", found, err)
		}
		h, err := NewHighWater(await.Context(t), HighWaterConfig{Store: other, Redis: rdb, Partitions: 1})
		if err != nil {
			t.Fatal(err)
		}
		if stopped := h.mustCheck(t); len(stopped) != 0 {
			t.Errorf("stopped %+v for the revisions of another database", stopped)
		}
	})
}

// TestHighWater_RedisAway: a revision that cannot be recorded is recorded later.
func TestHighWater_RedisAway(t *testing.T) {
	t.Parallel()
	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() {
		if err := gone.Close(); err != nil {
			t.Error(err)
		}
	})
	failed := 0
	h := &HighWater{
		HighWaterConfig: HighWaterConfig{Redis: gone, Partitions: 1, OnError: func(error) { failed++ }},
		pending:         make(map[string]int64),
	}
	h.commit(map[string]int64{"a": 7, "b": 2})
	h.note(await.Context(t))
	h.commit(map[string]int64{"a": 6, "b": 3})
	if got := h.take(); failed != 1 || got["a"] != 7 || got["b"] != 3 || len(got) != 2 {
		t.Errorf("%d failures, still to be recorded %v, want a at 7 and b at 3", failed, got)
	}
}
