package recovery

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/payments"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
)

// highWaterStep is a change that raises an item's revision.
type highWaterStep struct {
	name string
	do   func() error
}

// highWaterSteps change an item in each way. The order is committed and not paid.
func highWaterSteps(s *shoptest.Shop, placed order.Placed) []highWaterStep {
	t := s.T
	return []highWaterStep{
		{"pay", func() error {
			_, err := s.Service.Pay(await.Context(t), placed.Order.ID, order.Payment{Reference: "psp-1", AmountMinor: 1999, Currency: "EUR"})
			return err
		}},
		{"cancel", func() error {
			other := s.MustPlace(s.Purchase("u2", "k1", 1, ordertest.Limit))
			_, err := s.Service.Cancel(await.Context(t), other.Order.ID, order.Canceller{Admin: true, UserID: "root"})
			return err
		}},
		{"mismatch", func() error {
			_, err := s.Service.Pay(await.Context(t), placed.Order.ID, order.Payment{Reference: "psp-2", AmountMinor: 1, Currency: "EUR"})
			return ordertest.Ignore(err, order.ErrAmountMismatch)
		}},
		{"mark a payment", func() error {
			_, err := (&payments.Service{Store: s.Store}).MarkRefunded(await.Context(t), ordertest.PaymentIDs(t, s.Store)["psp-2"], ordertest.Root)
			return err
		}},
		{"refund", func() error {
			_, err := s.Service.Refund(await.Context(t), placed.Order.ID, checkout.Refund{By: ordertest.Root})
			return err
		}},
		{"refund with a restock", func() error {
			_, err := s.Service.Refund(await.Context(t), s.MustPay("u4", "k1", 1).ID, checkout.Refund{Restock: true, By: ordertest.Root})
			return err
		}},
		{"restock", func() error {
			_, _, err := s.Sales.Restock(await.Context(t), s.Item, items.Restock{Quantity: 1, Reason: "r", IdempotencyKey: "r1"}, order.By{})
			return err
		}},
	}
}

// TestHighWater_Behind: every change of an item's orders raises the mark in Redis, and a
// database below the mark is detected until its revision is above it.
func TestHighWater_Behind(t *testing.T) {
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		h := s.HighWater()
		s.Work()
		placed := s.MustPlace(s.Purchase("u1", "k1", 1, ordertest.Limit))
		mark := func() int64 {
			t.Helper()
			marks, err := inventory.Revisions(await.Context(t), rdb, 1, h.Lineage, []string{s.Item})
			if err != nil {
				t.Fatal(err)
			}
			if now := ordertest.ItemOf(t, s.Store, s.Item).Revision; marks[0] != now {
				t.Errorf("Redis records revision %d, the database is at %d", marks[0], now)
			}
			return marks[0]
		}
		s.Drained()
		before := mark()
		if before == 0 {
			t.Fatal("the commit of an order is not recorded")
		}
		for _, step := range highWaterSteps(s, placed) {
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			if now := mark(); now <= before {
				t.Errorf("%s: revision %d after %d", step.name, now, before)
			} else {
				before = now
			}
		}
		if stopped := shoptest.MustCheck(h, t); len(stopped) != 0 {
			t.Fatalf("stopped %+v, and nothing was restored", stopped)
		}
		paid := s.MustPay("u5", "k1", 1)
		before = mark()
		s.RollBack(before - 1)
		stopped := shoptest.MustCheck(h, t)
		if len(stopped) != 1 || stopped[0] != (store.Behind{ItemID: s.Item, Database: before - 1, Redis: before}) {
			t.Fatalf("stopped %+v, want %s at %d of %d", stopped, s.Item, before-1, before)
		}
		if _, err := s.Service.Place(await.Context(t), s.Purchase("u3", "k1", 1, ordertest.Limit)); !errors.Is(err, inventory.ErrStopped) {
			t.Errorf("a purchase of a stopped sale: %v, want %v", err, inventory.ErrStopped)
		}
		if o, err := s.Service.Refund(await.Context(t), paid.ID, checkout.Refund{By: ordertest.Root}); !errors.Is(err, inventory.ErrStopped) {
			t.Errorf("a refund in a stopped sale: %+v, %v, want %v", o, err, inventory.ErrStopped)
		}
		refused, err := h.MayLoad(await.Context(t), []string{s.Item, "none"})
		if err != nil || len(refused) != 1 || !errors.Is(refused[s.Item], inventory.ErrStopped) {
			t.Errorf("load: %v, %v, want %v", refused, err, inventory.ErrStopped)
		}
		s.RollBack(before + 1)
		if stopped := shoptest.MustCheck(h, t); len(stopped) != 1 {
			t.Errorf("stopped %+v after commits on the old database, want it to stay so", stopped)
		}
	})
}

// TestHighWater_Busy: checks concurrent with commits find nothing, whatever is in progress.
func TestHighWater_Busy(t *testing.T) {
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 1000, 1))
		h := s.HighWater()
		s.Work()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 200 {
				if _, err := s.Service.Place(await.Context(t), s.Purchase(fmt.Sprint("u", i), "k", 1, ordertest.Limit)); err != nil {
					t.Errorf("place: %v", err)
					return
				}
			}
		}()
		checks := 0
		for ended := false; !ended || checks < 20; checks++ {
			if stopped := shoptest.MustCheck(h, t); len(stopped) != 0 {
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
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		s.HighWater()
		s.Work()
		s.MustPlace(s.Purchase("u1", "k1", 1, ordertest.Limit))
		s.Drained()
		other := storetest.New(t)
		n := ordertest.NewItem(s.Item, 10, 5)
		storetest.MustInsert(t, other, n)
		found, err := store.FindBehind(await.Context(t), other, rdb, 1)
		if err != nil || len(found) != 0 {
			t.Errorf("doctor finds %+v, %v", found, err)
		}
		h, err := store.NewHighWater(await.Context(t), store.HighWaterConfig{Store: other, Redis: rdb, Partitions: 1})
		if err != nil {
			t.Fatal(err)
		}
		if stopped := shoptest.MustCheck(h, t); len(stopped) != 0 {
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
	h := &store.HighWater{
		HighWaterConfig: store.HighWaterConfig{Redis: gone, Partitions: 1, OnError: func(error) { failed++ }},
	}
	h.Committed(map[string]int64{"a": 7, "b": 2})
	h.Note(await.Context(t))
	h.Committed(map[string]int64{"a": 6, "b": 3})
	if got := h.Take(); failed != 1 || got["a"] != 7 || got["b"] != 3 || len(got) != 2 {
		t.Errorf("%d failures, still to be recorded %v, want a at 7 and b at 3", failed, got)
	}
}
