package recovery

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
)

// loseItem sells an item, one order of which stays queued, and then restores a backup that does not have
// the item. It returns the confirmed and the queued order.
func loseItem(t *testing.T, rdb *redis.Client) (s *shoptest.Shop, h *store.HighWater, n order.NewItem, confirmed, queued string) {
	t.Helper()
	n = ordertest.NewItem("", 3, 1)
	s = shoptest.New(t, rdb, false, n)
	s.HighWater()
	empty := backup(s)
	stop := s.Work()
	confirmed = s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit)).Order.ID
	s.Drained()
	stop()
	queued = s.MustPlace(s.Purchase("u2", "k", 1, 0)).Order.ID
	h = restore(s, empty)
	mustRun(s, "DELETE FROM items") // which the backup had
	s.Restart()
	n.ID = s.Item
	return s, h, n, confirmed, queued
}

// stopsLost checks all items, and expects the site's to be stopped, which the database does not have.
func stopsLost(s *shoptest.Shop, h *store.HighWater) []store.Behind {
	s.T.Helper()
	stopped := stops(s, h)
	if !stopped[0].Lost || stopped[0].Redis == 0 {
		s.T.Fatalf("stopped %+v, want an item that is lost", stopped)
	}
	return stopped
}

// TestRecover_ItemLost: an item was created after the backup. Its sale is stopped, and its queued
// orders wait, until it is created again and recovered: no order is lost.
func TestRecover_ItemLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s, h, n, confirmed, queued := loseItem(t, rdb)
		stopped := stopsLost(s, h)
		if h.AllStopped() {
			t.Error("the database has no item, and all are stopped")
		}
		found, err := store.FindBehind(await.Context(t), s.Store, rdb, 1)
		if err != nil || len(found) != 1 || found[0] != stopped[0] {
			t.Errorf("doctor finds %+v, %v, want %+v", found, err, stopped)
		}
		stop := s.Work()
		await.True(t, "the queued order to be snoozed", func() bool {
			st, err := s.Queue.Stats(await.Context(t))
			return err == nil && st.Ready+st.Leased == 0 && st.Delayed == 1
		})
		stop()
		if _, err := s.Store.Order(await.Context(t), queued); !errors.Is(err, order.ErrNotFound) {
			t.Errorf("the queued order of a lost item has a row (%v)", err)
		}
		if _, _, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); !errors.Is(err, ErrItemLost) {
			t.Errorf("recovery of a lost item: %v, want %v", err, ErrItemLost)
		}
		if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
			t.Fatal(err)
		}
		if stopped = stops(s, h); stopped[0].Lost {
			t.Fatalf("stopped %+v, and the item was created again", stopped)
		}
		if _, _, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); err != nil {
			t.Fatal(err)
		}
		resumes(s, h)
		s.Work()
		for _, id := range []string{confirmed, queued} {
			await.True(t, "order "+id+" to be confirmed", func() bool {
				o, err := s.Store.Order(await.Context(t), id)
				return err == nil && o.Status == order.StatusConfirmed
			})
		}
		if n := buys(s, "x", "y"); n != 1 {
			t.Errorf("%d more units are sold, want 1 of 3", n)
		}
		resumes(s, h)
	})
}

// TestRecover_ItemLostForGood: the orders of an item that is not created again are discarded and
// listed, and the queued ones are rejected.
func TestRecover_ItemLostForGood(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s, h, _, _, queued := loseItem(t, rdb)
		broken := errors.New("the disk is full")
		if _, _, err := recoverItem(s, h, RecoverFromDatabase, stopsLost(s, h), func() error { return broken }); !errors.Is(err, broken) {
			t.Errorf("a list that is not durable: %v, want %v", err, broken)
		}
		done, actions, err := recoverItem(s, h, RecoverFromDatabase, stopsLost(s, h), nil)
		if err != nil || done.Discarded != 1 || actions[recoverDiscarded] != 1 {
			t.Fatalf("recovered %+v, listed %v, %v, want one order discarded", done, actions, err)
		}
		if stopped := shoptest.MustCheck(h, t); len(stopped) != 0 {
			t.Fatalf("stopped %+v after the decision", stopped)
		}
		s.Work()
		await.True(t, "the queued order to be rejected", func() bool {
			o, err := s.Store.Order(await.Context(t), queued)
			return err == nil && o.Status == order.StatusRejected && o.Reason == order.ReasonNoItem
		})
	})
}

// TestRecover_ItemLostUnsold: an item was created after the backup, and none of its orders is committed.
// Its queued order waits too, and is committed once the item is created again: there is nothing
// to decide about.
func TestRecover_ItemLostUnsold(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 1, 1))
		s.HighWater()
		before := backup(s)
		n := ordertest.NewItem(s.Item+"-new", 3, 1)
		if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
			t.Fatal(err)
		}
		s.Item = n.ID
		queued := s.MustPlace(s.Purchase("u1", "k", 1, 0)).Order.ID
		h := restore(s, before)
		s.Restart()
		if stopped := stops(s, h); !stopped[0].Lost {
			t.Fatalf("stopped %+v, want an item that is lost", stopped)
		}
		if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
			t.Fatal(err)
		}
		if stopped := shoptest.MustCheck(h, t); len(stopped) != 0 {
			t.Fatalf("stopped %+v, and the item was created again", stopped)
		}
		s.Work()
		await.True(t, "the queued order to be confirmed", func() bool {
			o, err := s.Store.Order(await.Context(t), queued)
			return err == nil && o.Status == order.StatusConfirmed
		})
		if n := buys(s, "x", "y", "z"); n != 2 {
			t.Errorf("%d more units are sold, want 2 of 3", n)
		}
	})
}
