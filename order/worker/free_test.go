package worker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
)

// TestSweeper_KeepEnded: an ended sale is removed from Redis once its end, its payment
// window and KeepEnded are over, and its buyers still get their orders.
func TestSweeper_KeepEnded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const window, keep = 10 * time.Minute, time.Hour
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 10, 3, window))
		stop := s.Work()
		bought := s.MustPlace(s.Purchase("alice", "k", 2, ordertest.Long)).Order
		s.Drained()
		stop()
		if _, err := s.Store.Pay(await.Context(t), bought.ID, ordertest.Money("m", 2)); err != nil {
			t.Fatal(err)
		}
		shoptest.Endings["Closed"](s)
		sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{})
		sweeper.KeepEnded = keep
		c := storetest.SetClock(s.Store)
		closed := ordertest.ItemOf(t, s.Store, s.Item).UpdatedAt
		c.Store(closed + (window + keep).Milliseconds() - 1)
		shoptest.MustSweep(t, sweeper, worker.Swept{})
		if placed := s.MustPlace(s.Purchase("alice", "k", 2, ordertest.Long)); placed.Order.ID != bought.ID {
			t.Errorf("a repeat before: %+v", placed)
		}
		c.Add(1)
		shoptest.MustSweep(t, sweeper, worker.Swept{Freed: 1})
		s.Unloaded("the end")
		if ordertest.ItemOf(t, s.Store, s.Item).Freed {
			t.Error("done before Redis was checked again")
		}
		await.True(t, "the item to be done once its lock is free", func() bool {
			shoptest.MustSweep(t, sweeper, worker.Swept{})
			return ordertest.ItemOf(t, s.Store, s.Item).Freed
		})
		if placed := s.MustPlace(s.Purchase("alice", "k", 2, ordertest.Long)); placed.Order.ID != bought.ID || !placed.Replayed {
			t.Errorf("a repeat afterwards: %+v", placed)
		}
		if _, err := s.Service.Place(await.Context(t), s.Purchase("bob", "k", 1, 0)); !errors.Is(err, inventory.ErrClosed) {
			t.Errorf("a purchase afterwards: %v", err)
		}
		s.Unloaded("purchases")
	})
}

// TestSweeper_KeepEnded_Changed: after a change an item is checked again, and if its end
// was moved it keeps its sale.
func TestSweeper_KeepEnded_Changed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 3))
		sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{})
		sweeper.KeepEnded = time.Minute
		shoptest.Endings["Past"](s)
		if err := rdb.Del(ctx, s.SaleKeys()...).Err(); err != nil {
			t.Fatal(err)
		}
		c := storetest.SetClock(s.Store)
		c.Add(time.Hour.Milliseconds())
		shoptest.MustSweep(t, sweeper, worker.Swept{})
		if !ordertest.ItemOf(t, s.Store, s.Item).Freed {
			t.Fatal("not done")
		}
		page, err := worker.Freeable(ctx, s.Store, c.Load(), worker.FreeableItem{})
		if err != nil || len(page) != 0 {
			t.Fatalf("still to be removed: %v, %v", page, err)
		}
		later := time.UnixMilli(c.Load()).Add(time.Hour)
		if _, err := s.Sales.ChangeItem(ctx, s.Item, items.Change{ClosesAt: &later}, order.By{Actor: "admin"}); err != nil {
			t.Fatal(err)
		}
		s.AwaitLoaded(10)
		shoptest.MustSweep(t, sweeper, worker.Swept{})
		// A page that a sweeper has read before the change neither removes the sale nor
		// records it as removed.
		stale := worker.NewFreeableItem(s.Item, ordertest.ItemOf(t, s.Store, s.Item).Version-1)
		if status, err := inventory.Free(ctx, rdb, 1, []string{s.Item}); err != nil || status[0] != inventory.FreeKept {
			t.Errorf("free: %v, %v", status, err)
		}
		if err := worker.NoteFreedItems(ctx, s.Store, []worker.FreeableItem{stale}); err != nil || ordertest.ItemOf(t, s.Store, s.Item).Freed {
			t.Errorf("recorded although it was changed, %v", err)
		}
	})
}

// TestSweeper_KeepEnded_Pages: many ended sales are removed in pages, also after some that
// are kept, and later sweeps read none of the removed ones.
func TestSweeper_KeepEnded_Pages(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const sales, kept = worker.FreePage + 20, 3
		ctx := await.Context(t)
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 3))
		for i := range sales {
			n := ordertest.NewItem(fmt.Sprintf("%s-%03d", s.Item, i), 1, 1)
			storetest.MustInsert(t, s.Store, n)
			fields := []any{"epoch", 1, "left", 1, "control", "closed", "closes_ms", 0}
			if i < kept {
				fields = append(fields, "changing", "stopped")
			}
			if err := rdb.HSet(ctx, "fs:{p0}:sale:"+n.ID, fields...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Store.Writer().Exec("UPDATE items SET control = ? WHERE id LIKE ?", catalog.ControlClosed, s.Item+"-%").Error; err != nil {
			t.Fatal(err)
		}
		c := storetest.SetClock(s.Store)
		c.Add(time.Hour.Milliseconds())
		sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{})
		sweeper.KeepEnded = time.Minute
		shoptest.MustSweep(t, sweeper, worker.Swept{Freed: sales - kept})
		shoptest.MustSweep(t, sweeper, worker.Swept{})
		page, err := worker.Freeable(ctx, s.Store, c.Load(), worker.FreeableItem{})
		if err != nil || len(page) != kept {
			t.Errorf("%d are still to be removed, %v; want %d", len(page), err, kept)
		}
	})
}

// TestFreeable_Plan: the sales to remove are found by an index, for any number of items.
func TestFreeable_Plan(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	for query, args := range map[string][]any{
		worker.SelectFreeable: {1, 2, "3", 4},
	} {
		var plan []struct{ Detail string }
		if err := s.Reader().Raw("EXPLAIN QUERY PLAN "+query, args...).Scan(&plan).Error; err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(plan)
		if !strings.Contains(text, "INDEX") || strings.Contains(text, "SCAN items") || strings.Contains(text, "SCAN o") || strings.Contains(text, "TEMP B-TREE") {
			t.Errorf("plan %s of %s", text, query)
		}
		t.Log(text)
	}
}

// TestSweeper_Releases_Ended: units of an ended sale that is not in Redis do not wait: the
// database has counted them already.
func TestSweeper_Releases_Ended(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 3))
		epoch, err := s.Store.Epoch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Stock.Declare(ctx, epoch); err != nil {
			t.Fatal(err)
		}
		stop := s.Work()
		bought := s.MustPlace(s.Purchase("alice", "k", 2, ordertest.Long)).Order
		s.Drained()
		stop()
		shoptest.Endings["Past"](s)
		// The process that closed the order dies.
		if _, _, err := s.Store.Cancel(ctx, bought.ID, order.Canceller{UserID: "alice"}); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Del(ctx, s.SaleKeys()...).Err(); err != nil {
			t.Fatal(err)
		}
		c := storetest.SetClock(s.Store)
		c.Add(worker.SweepGrace.Milliseconds())
		shoptest.MustSweep(t, worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{}), worker.Swept{Released: 1})
		var waiting int64
		if err := s.Store.Reader().Raw("SELECT COUNT(*) FROM releases").Scan(&waiting).Error; err != nil || waiting != 0 {
			t.Errorf("%d units still wait, %v", waiting, err)
		}
		s.Unloaded("the sweep")
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 10, Left: 10}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestSweeper_Releases_Idle: any number of waiting units costs a sweep a bounded number of
// reads, and all of them get their turn.
func TestSweeper_Releases_Idle(t *testing.T) {
	t.Parallel()
	const orders = 2*worker.IdlePages*worker.SweepPage + 5
	s := storetest.New(t)
	c := storetest.SetClock(s)
	f, shelf := shoptest.OnShelf(t, s)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 1))
	err := s.Writer().Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO releases (order_id, item_id, user_id, idempotency_key, quantity, created_at)
		SELECT 'o' || (1000000 + i), 'item', 'u', 'k' || i, 1, CAST(? AS BIGINT) FROM n`, orders, c.Load()).Error
	if err != nil {
		t.Fatal(err)
	}
	c.Add(worker.SweepGrace.Milliseconds())
	shelf.Set(inventory.ReleaseNotLoaded, nil)
	sweeper := worker.NewSweeper(f, worker.SweeperConfig{})
	shoptest.MustSweep(t, sweeper, worker.Swept{Waiting: worker.IdlePages * worker.SweepPage})
	shoptest.MustSweep(t, sweeper, worker.Swept{Waiting: worker.IdlePages * worker.SweepPage})
	shoptest.MustSweep(t, sweeper, worker.Swept{Waiting: 5})
	if len(shelf.Calls) != orders {
		t.Errorf("%d of %d orders had their turn", len(shelf.Calls), orders)
	}
	shelf.Set(inventory.ReleaseNotNeeded, nil)
	shoptest.MustSweep(t, sweeper, worker.Swept{Released: orders})
	shoptest.MustSweep(t, sweeper, worker.Swept{})
}
