package order

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
)

// TestSweeper_KeepEnded: an ended sale is removed from Redis once its end, its payment
// window and KeepEnded are over, and its buyers still get their orders.
func TestSweeper_KeepEnded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const window, keep = 10 * time.Minute, time.Hour
		s := newSite(t, rdb, false, asking("", 10, 3, window))
		stop := s.work()
		bought := s.mustPlace(s.purchase("alice", "k", 2, long)).Order
		s.drained()
		stop()
		if _, err := s.store.pay(await.Context(t), bought.ID, money("m", 2)); err != nil {
			t.Fatal(err)
		}
		endings["Closed"](s)
		sweeper := NewSweeper(s.fulfiller, SweeperConfig{})
		sweeper.KeepEnded = keep
		c := setClock(s.store)
		closed := itemOf(t, s.store, s.item).UpdatedAt
		c.Store(closed + (window + keep).Milliseconds() - 1)
		mustSweep(t, sweeper, Swept{})
		if placed := s.mustPlace(s.purchase("alice", "k", 2, long)); placed.Order.ID != bought.ID {
			t.Errorf("a repeat before: %+v", placed)
		}
		c.Add(1)
		mustSweep(t, sweeper, Swept{Freed: 1})
		s.unloaded("the end")
		if itemOf(t, s.store, s.item).Freed {
			t.Error("done before Redis was checked again")
		}
		await.True(t, "the item to be done once its lock is free", func() bool {
			mustSweep(t, sweeper, Swept{})
			return itemOf(t, s.store, s.item).Freed
		})
		if placed := s.mustPlace(s.purchase("alice", "k", 2, long)); placed.Order.ID != bought.ID || !placed.Replayed {
			t.Errorf("a repeat afterwards: %+v", placed)
		}
		if _, err := s.service.Place(await.Context(t), s.purchase("bob", "k", 1, 0)); !errors.Is(err, inventory.ErrClosed) {
			t.Errorf("a purchase afterwards: %v", err)
		}
		s.unloaded("purchases")
	})
}

// TestSweeper_KeepEnded_Changed: after a change an item is checked again, and if its end
// was moved it keeps its sale.
func TestSweeper_KeepEnded_Changed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		s := newSite(t, rdb, false, newItem("", 10, 3))
		sweeper := NewSweeper(s.fulfiller, SweeperConfig{})
		sweeper.KeepEnded = time.Minute
		endings["Past"](s)
		if err := rdb.Del(ctx, s.saleKeys()...).Err(); err != nil {
			t.Fatal(err)
		}
		c := setClock(s.store)
		c.Add(time.Hour.Milliseconds())
		mustSweep(t, sweeper, Swept{})
		if !itemOf(t, s.store, s.item).Freed {
			t.Fatal("not done")
		}
		page, err := s.store.freeable(ctx, c.Load(), freeableItem{})
		if err != nil || len(page) != 0 {
			t.Fatalf("still to be removed: %v, %v", page, err)
		}
		later := time.UnixMilli(c.Load()).Add(time.Hour)
		if _, err := s.sales.ChangeItem(ctx, s.item, ItemChange{ClosesAt: &later}, By{Actor: "admin"}); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the sale to be loaded", func() bool {
			left, err := s.stock.Left(ctx, []string{s.item})
			return err == nil && left[0] == 10
		})
		mustSweep(t, sweeper, Swept{})
		// A page that a sweeper has read before the change neither removes the sale nor
		// records it as removed.
		stale := freeableItem{id: s.item, version: itemOf(t, s.store, s.item).Version - 1}
		if status, err := inventory.Free(ctx, rdb, 1, []string{s.item}); err != nil || status[0] != inventory.FreeKept {
			t.Errorf("free: %v, %v", status, err)
		}
		if err := s.store.noteFreed(ctx, []freeableItem{stale}); err != nil || itemOf(t, s.store, s.item).Freed {
			t.Errorf("recorded although it was changed, %v", err)
		}
	})
}

// TestSweeper_KeepEnded_Pages: many ended sales are removed in pages, also after some that
// are kept, and later sweeps read none of the removed ones.
func TestSweeper_KeepEnded_Pages(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const sales, kept = freePage + 20, 3
		ctx := await.Context(t)
		s := newSite(t, rdb, false, newItem("", 10, 3))
		for i := range sales {
			n := newItem(fmt.Sprintf("%s-%03d", s.item, i), 1, 1)
			mustInsert(t, s.store, n)
			fields := []any{"epoch", 1, "left", 1, "control", "closed", "closes_ms", 0}
			if i < kept {
				fields = append(fields, "changing", "stopped")
			}
			if err := rdb.HSet(ctx, "fs:{p0}:sale:"+n.ID, fields...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.store.Writer().Exec("UPDATE items SET control = ? WHERE id LIKE ?", catalog.ControlClosed, s.item+"-%").Error; err != nil {
			t.Fatal(err)
		}
		c := setClock(s.store)
		c.Add(time.Hour.Milliseconds())
		sweeper := NewSweeper(s.fulfiller, SweeperConfig{})
		sweeper.KeepEnded = time.Minute
		mustSweep(t, sweeper, Swept{Freed: sales - kept})
		mustSweep(t, sweeper, Swept{})
		page, err := s.store.freeable(ctx, c.Load(), freeableItem{})
		if err != nil || len(page) != kept {
			t.Errorf("%d are still to be removed, %v; want %d", len(page), err, kept)
		}
	})
}

// TestFreeable_Plan: the sales to remove are found by an index, for any number of items.
func TestFreeable_Plan(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for query, args := range map[string][]any{
		selectFreeable: {1, 2, "3", 4},
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

// TestSweeper_Returns_Ended: units of an ended sale that is not in Redis do not wait: the
// database has counted them already.
func TestSweeper_Returns_Ended(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		s := newSite(t, rdb, false, newItem("", 10, 3))
		epoch, err := s.store.Epoch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.stock.Declare(ctx, epoch); err != nil {
			t.Fatal(err)
		}
		stop := s.work()
		bought := s.mustPlace(s.purchase("alice", "k", 2, long)).Order
		s.drained()
		stop()
		endings["Past"](s)
		// The process that closed the order dies.
		if _, _, err := s.store.cancel(ctx, bought.ID, Canceller{UserID: "alice"}); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Del(ctx, s.saleKeys()...).Err(); err != nil {
			t.Fatal(err)
		}
		c := setClock(s.store)
		c.Add(sweepGrace.Milliseconds())
		mustSweep(t, NewSweeper(s.fulfiller, SweeperConfig{}), Swept{Returned: 1})
		var waiting int64
		if err := s.store.Reader().Raw("SELECT COUNT(*) FROM releases").Scan(&waiting).Error; err != nil || waiting != 0 {
			t.Errorf("%d units still wait, %v", waiting, err)
		}
		s.unloaded("the sweep")
		if l := ledgerOf(s); l != (Ledger{Initial: 10, Left: 10}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestSweeper_Returns_Idle: any number of waiting units costs a sweep a bounded number of
// reads, and all of them get their turn.
func TestSweeper_Returns_Idle(t *testing.T) {
	t.Parallel()
	const orders = 2*idlePages*sweepPage + 5
	s := newStore(t)
	c := setClock(s)
	f, shelf := onShelf(t, s)
	mustInsert(t, s, newItem("item", 10, 1))
	err := s.Writer().Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO releases (order_id, item_id, user_id, idempotency_key, quantity, created_at)
		SELECT printf('o%06d', i), 'item', 'u', 'k' || i, 1, ? FROM n`, orders, c.Load()).Error
	if err != nil {
		t.Fatal(err)
	}
	c.Add(sweepGrace.Milliseconds())
	shelf.set(inventory.ReleaseNotLoaded, nil)
	sweeper := NewSweeper(f, SweeperConfig{})
	mustSweep(t, sweeper, Swept{Waiting: idlePages * sweepPage})
	mustSweep(t, sweeper, Swept{Waiting: idlePages * sweepPage})
	mustSweep(t, sweeper, Swept{Waiting: 5})
	if len(shelf.calls) != orders {
		t.Errorf("%d of %d orders had their turn", len(shelf.calls), orders)
	}
	shelf.set(inventory.ReleaseNotNeeded, nil)
	mustSweep(t, sweeper, Swept{Returned: orders})
	mustSweep(t, sweeper, Swept{})
}
