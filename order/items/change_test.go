package items_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
)

// TestService_ChangeItem: each field applies to the next purchase, and earlier orders do
// not change.
func TestService_ChangeItem(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 2))
		s.Work()
		first := s.MustPlace(s.Purchase("u", "k", 2, ordertest.Long)).Order
		item := s.MustChange(items.Change{
			Name: ordertest.Ptr("Other"), Description: ordertest.Ptr("Text"), PriceMinor: ordertest.Ptr(int64(5)), PaymentWindow: ordertest.Ptr(time.Minute), Match: order.Match{7, 1},
		})
		if item.Name != "Other" || item.Description != "Text" || item.PriceMinor != 5 || item.PaymentWindow != time.Minute || item.Version != 2 || item.StockLeft != 18 {
			t.Errorf("changed to %+v", item)
		}
		if shown, err := s.Items.Item(await.Context(t), s.Item); err != nil || shown != item {
			t.Errorf("shown is %+v, %v, and it was changed to %+v", shown, err, item)
		}
		second := s.MustPlace(s.Purchase("v", "k", 1, ordertest.Long)).Order
		if second.UnitPriceMinor != 5 || second.ExpiresAt.Sub(second.ConfirmedAt) != time.Minute {
			t.Errorf("an order after the change: %+v", second)
		}
		if got := s.MustGet(first.ID); got != first {
			t.Errorf("an order before the change was %+v and is %+v", first, got)
		}
		// Lower than what a buyer holds, and higher again.
		s.MustChange(items.Change{PerUserLimit: ordertest.Ptr(int64(1))})
		s.Refused(s.Purchase("u", "k2", 1, ordertest.Long), inventory.ErrUserLimit)
		s.Refused(s.Purchase("v", "k2", 1, ordertest.Long), inventory.ErrUserLimit)
		s.MustPlace(s.Purchase("w", "k", 1, ordertest.Long))
		if got := s.MustGet(first.ID); got != first {
			t.Errorf("an order above the limit was %+v and is %+v", first, got)
		}
		s.MustChange(items.Change{PerUserLimit: ordertest.Ptr(int64(3))})
		s.MustPlace(s.Purchase("u", "k2", 1, ordertest.Long))
		s.Refused(s.Purchase("u", "k3", 1, ordertest.Long), inventory.ErrUserLimit)
		// The window.
		later := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
		if item = s.MustChange(items.Change{OpensAt: &later}); !item.OpensAt.Equal(later) {
			t.Errorf("opens at %v, want %v", item.OpensAt, later)
		}
		var early *inventory.NotOpenError
		if _, err := s.Service.Place(await.Context(t), s.Purchase("x", "k", 1, ordertest.Long)); !errors.As(err, &early) || !early.OpensAt.Equal(later) {
			t.Errorf("before the opening: %v", err)
		}
		past := time.Now().Add(-time.Hour)
		s.MustChange(items.Change{OpensAt: ordertest.Ptr(past.Add(-time.Hour)), ClosesAt: &past})
		s.Refused(s.Purchase("x", "k", 1, ordertest.Long), inventory.ErrClosed)
		if item = s.MustChange(items.Change{ClosesAt: &time.Time{}}); !item.ClosesAt.IsZero() {
			t.Errorf("closes at %v, want never", item.ClosesAt)
		}
		s.MustPlace(s.Purchase("x", "k", 1, ordertest.Long))
		s.Drained()
		if l := reconciletest.LedgerOf(s); !l.Balanced() || l.Left != 20-6 {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

func TestService_ChangeItem_Refusals(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 5, 2)
		n.OpensAt = time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
		n.ClosesAt = n.OpensAt.Add(2 * time.Hour)
		s := shoptest.New(t, rdb, false, n)
		before, sale := ordertest.ItemOf(t, s.Store, s.Item), rdb.HGetAll(await.Context(t), "fs:{p0}:sale:"+s.Item).Val()
		for _, c := range []struct {
			c    items.Change
			want error
		}{
			{items.Change{Name: ordertest.Ptr("a"), Match: order.Match{}}, order.ErrVersion},
			{items.Change{Name: ordertest.Ptr("a"), Match: order.Match{2, 0}}, order.ErrVersion},
			{items.Change{OpensAt: &n.ClosesAt}, order.ErrWindow},
			{items.Change{ClosesAt: &n.OpensAt}, order.ErrWindow},
			{items.Change{ClosesAt: &n.OpensAt, Match: order.Match{2}}, order.ErrVersion},
			{items.Change{Name: &n.Name}, nil},
			{items.Change{OpensAt: &n.OpensAt, ClosesAt: &n.ClosesAt, PerUserLimit: ordertest.Ptr(int64(2)), Match: order.Match{1}}, nil},
			{items.Change{}, nil},
		} {
			item, err := s.Sales.ChangeItem(await.Context(t), s.Item, c.c, ordertest.Root)
			if !errors.Is(err, c.want) || err == nil && item.Version != 1 {
				t.Errorf("%+v: %+v, %v, want %v", c.c, item, err, c.want)
			}
		}
		if _, err := s.Sales.ChangeItem(await.Context(t), "none", items.Change{Name: ordertest.Ptr("a")}, ordertest.Root); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("change of no item: %v", err)
		}
		if _, err := s.Sales.ControlItem(await.Context(t), s.Item, items.Control{To: "ajar"}, ordertest.Root); err == nil {
			t.Error("an unknown control: no error")
		}
		if after := ordertest.ItemOf(t, s.Store, s.Item); after != before {
			t.Errorf("changed %+v to %+v", before, after)
		}
		if after := rdb.HGetAll(await.Context(t), "fs:{p0}:sale:"+s.Item).Val(); fmt.Sprint(after) != fmt.Sprint(sale) || len(sale) == 0 {
			t.Errorf("the sale was %v and is %v", sale, after)
		}
		if got := ordertest.AuditLog(t, s.Store, s.Item); len(got) != 1 || !strings.HasPrefix(got[0], "  item.create  -> {") {
			t.Errorf("audit %q", got)
		}
	})
}

// TestService_ChangeItem_SameVersion: of several changes for the same version one is made,
// and the others get ErrVersion.
func TestService_ChangeItem_SameVersion(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 1))
		for round := range int64(5) {
			var wg sync.WaitGroup
			var made atomic.Int64
			for i := range 6 {
				wg.Go(func() {
					_, err := s.Change(items.Change{Name: ordertest.Ptr(fmt.Sprintf("Name %d %d", round, i)), Match: order.Match{round + 1}})
					if err == nil {
						made.Add(1)
					} else if !errors.Is(err, order.ErrVersion) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := made.Load(); n != 1 {
				t.Fatalf("round %d: %d changes of one version were made", round, n)
			}
		}
		if got := ordertest.AuditLog(t, s.Store, s.Item); len(got) != 6 {
			t.Errorf("audit %q", got)
		}
	})
}

// TestService_ChangeItem_LimitOfQueued: an order that was accepted under a higher limit is
// committed under the lower one.
func TestService_ChangeItem_LimitOfQueued(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 3))
		kept := []order.Placed{
			s.MustPlace(s.Purchase("once", "k1", 3, 0)), // above the new limit on its own
			s.MustPlace(s.Purchase("twice", "k1", 1, 0)),
			s.MustPlace(s.Purchase("twice", "k2", 1, 0)), // above it with another order
		}
		s.MustChange(items.Change{PerUserLimit: ordertest.Ptr(int64(2))})
		s.MustChange(items.Change{PerUserLimit: ordertest.Ptr(int64(1))})
		kept = append(kept, s.MustPlace(s.Purchase("new", "k", 1, 0)))
		s.Refused(s.Purchase("new", "k2", 1, 0), inventory.ErrUserLimit)
		// If Redis wrongly accepts an order, the database still refuses it.
		strange := ordertest.Bought("0strange", s.Item, "new", "x", 1)
		strange.CreatedAt = time.Now().Add(time.Minute).UnixMilli()
		s.Work()
		s.Drained()
		for _, p := range kept {
			if o := s.MustGet(p.Order.ID); o.Status != order.StatusConfirmed {
				t.Errorf("an accepted order became %s: %+v", o.Status, o)
			}
		}
		fourth := ordertest.Bought("0fourth", s.Item, "once", "x", 1) // above the old limit, too
		fourth.CreatedAt = kept[0].Order.CreatedAt.UnixMilli()
		out, err := s.Store.Commit(await.Context(t), []order.Task{strange, fourth})
		for i, o := range out {
			if err != nil || o.Status != order.StatusRejected || o.Reason != order.ReasonUserLimit {
				t.Errorf("%d: above the limit and never accepted: %+v, %v", i, o, err)
			}
		}
		if l := reconciletest.LedgerOf(s); !l.Balanced() || l.Sold != 6 || l.Left != 14 {
			t.Errorf("ledger %+v", l)
		}
		if got := ordertest.BuyersOf(t, s.Store, s.Item); fmt.Sprint(got) != "map[new:1 once:3 twice:2]" {
			t.Errorf("buyers %v", got)
		}
	})
}

func TestService_ControlItem(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 1))
		s.Work()
		first := s.MustPlace(s.Purchase("u", "k", 1, ordertest.Long))
		for range 2 { // the second is a repeat
			if item := s.MustControl(catalog.ControlPaused); item.Control != catalog.ControlPaused || item.Version != 2 {
				t.Errorf("paused: %+v", item)
			}
		}
		s.Refused(s.Purchase("v", "k", 1, ordertest.Long), inventory.ErrPaused)
		if again := s.MustPlace(s.Purchase("u", "k", 1, ordertest.Long)); again.Order.ID != first.Order.ID || !again.Replayed {
			t.Errorf("repeat while paused: %+v", again)
		}
		if _, err := s.Control(catalog.ControlOpen, order.Match{1}); !errors.Is(err, order.ErrVersion) {
			t.Errorf("resume of an old version: %v", err)
		}
		for range 2 {
			if item := s.MustControl(catalog.ControlOpen); item.Control != catalog.ControlOpen || item.Version != 3 {
				t.Errorf("resumed: %+v", item)
			}
		}
		s.MustPlace(s.Purchase("v", "k", 1, ordertest.Long))
		for range 2 {
			if item := s.MustControl(catalog.ControlClosed); item.Control != catalog.ControlClosed || item.Version != 4 {
				t.Errorf("closed: %+v", item)
			}
		}
		s.Refused(s.Purchase("w", "k", 1, ordertest.Long), inventory.ErrClosed)
		for _, to := range []catalog.Control{catalog.ControlOpen, catalog.ControlPaused} {
			if _, err := s.Control(to, nil); !errors.Is(err, order.ErrItemClosed) {
				t.Errorf("%s of a closed sale: %v", to, err)
			}
		}
		if got := s.MustGet(first.Order.ID); got != first.Order {
			t.Errorf("closing changed an order from %+v to %+v", first.Order, got)
		}
		// A closed item can still be changed.
		s.MustRestock(-3, "back")
		s.MustChange(items.Change{Name: ordertest.Ptr("Gone")})
		s.Refused(s.Purchase("w", "k", 1, ordertest.Long), inventory.ErrClosed)
		want := []string{
			`root r-1 item.pause {"control":"open"} -> {"control":"paused"}`,
			`root r-1 item.resume {"control":"paused"} -> {"control":"open"}`,
			`root r-1 item.close {"control":"open"} -> {"control":"closed"}`,
			`root r-1 item.restock {"stock_total":5} -> {"reason":"test","stock_total":2}`,
			`root r-1 item.change {"name":"Thing"} -> {"name":"Gone"}`,
		}
		if got := ordertest.AuditLog(t, s.Store, s.Item); fmt.Sprint(got[1:]) != fmt.Sprint(want) {
			t.Errorf("audit %q, want %q", got, want)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Restocked: -3, Sold: 2}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestService_ControlItem_Burst pauses and resumes while many buyers buy: a purchase sent
// after the answer to a pause is not accepted.
func TestService_ControlItem_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 100_000, 1))
		s.Work()
		// gate is odd from the answer to a pause until the next resume.
		var gate, bought, halted atomic.Int64
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for b := range 16 {
			wg.Go(func() {
				for k := 0; ; k++ {
					select {
					case <-stop:
						return
					default:
					}
					asked := gate.Load()
					_, err := s.Service.Place(await.Context(t), s.Purchase(fmt.Sprintf("u%d-%d", b, k), "k", 1, 0))
					switch {
					case err == nil && asked%2 == 1 && gate.Load() == asked:
						t.Errorf("accepted while paused (%d)", asked)
					case err == nil:
						bought.Add(1)
					case errors.Is(err, inventory.ErrPaused):
						halted.Add(1)
					case !errors.Is(err, inventory.ErrUnavailable) && !errors.Is(err, inventory.ErrOverloaded):
						t.Error(err)
					}
				}
			})
		}
		for range 5 {
			n := bought.Load()
			await.True(t, "sales", func() bool { return bought.Load() > n+20 })
			s.MustControl(catalog.ControlPaused)
			gate.Add(1)
			n = halted.Load()
			await.True(t, "refusals", func() bool { return halted.Load() > n+20 })
			gate.Add(1)
			s.MustControl(catalog.ControlOpen)
		}
		close(stop)
		wg.Wait()
		s.Drained()
		if l := reconciletest.LedgerOf(s); !l.Balanced() || l.Sold != bought.Load() {
			t.Errorf("ledger %+v, and %d bought", l, bought.Load())
		}
	})
}

// TestService_ChangeItem_DatabaseAway: if the database fails, the change is refused, and
// the sale continues unchanged.
func TestService_ChangeItem_DatabaseAway(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 1))
		accept := ordertest.Refuse(t, s.Store, "UPDATE", "items", "")
		sale := rdb.HGetAll(await.Context(t), "fs:{p0}:sale:"+s.Item).Val()
		if _, _, err := s.Sales.Restock(await.Context(t), s.Item, items.Restock{Quantity: 5, Reason: "test", IdempotencyKey: "k"}, ordertest.Root); !errors.Is(err, inventory.ErrUnchanged) {
			t.Errorf("restock: %v", err)
		}
		if _, err := s.Sales.ControlItem(await.Context(t), s.Item, items.Control{To: catalog.ControlPaused}, ordertest.Root); !errors.Is(err, inventory.ErrUnchanged) {
			t.Errorf("pause: %v", err)
		}
		if after := rdb.HGetAll(await.Context(t), "fs:{p0}:sale:"+s.Item).Val(); fmt.Sprint(after) != fmt.Sprint(sale) {
			t.Errorf("the sale was %v and is %v", sale, after)
		}
		s.MustPlace(s.Purchase("u", "k", 1, 0))
		accept()
		if item := s.MustRestock(5, "k"); item.StockTotal != 10 || item.StockLeft != 9 {
			t.Errorf("restocked: %+v", item)
		}
	})
}

// slowCatalog is a catalogue whose announcements wait until the sale may be changed.
type slowCatalog struct {
	items.Catalog
	committed chan struct{}
	alone     bool // the sale was not changed meanwhile
}

func (c *slowCatalog) Changed(ctx context.Context, id string, version int64) {
	select {
	case <-c.committed:
	case <-time.After(20 * time.Second):
		c.alone = true
	}
	c.Catalog.Changed(ctx, id, version)
}

// committing is a Stock that reports that a change is committed.
type committing struct {
	items.Stock
	committed chan struct{}
}

func (s *committing) Change(ctx context.Context, item string, c inventory.Change, commit func(ctx context.Context) (int64, error)) error {
	return s.Stock.Change(ctx, item, c, func(ctx context.Context) (int64, error) {
		defer close(s.committed)
		return commit(ctx)
	})
}

// TestService_ChangeItem_SlowAnnouncement: a sale gets its change while the change is announced, so that
// the two do not add up while Redis does not respond.
func TestService_ChangeItem_SlowAnnouncement(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 20))
		committed := make(chan struct{})
		slow := &slowCatalog{Catalog: s.Items, committed: committed}
		service := &items.Service{Store: s.Store, Stock: &committing{s.Stock, committed}, Catalog: slow, OnError: s.CollectError}
		item, err := service.ChangeItem(await.Context(t), s.Item, items.Change{PerUserLimit: ordertest.Ptr(int64(1))}, ordertest.Root)
		if err != nil || item.PerUserLimit != 1 || slow.alone {
			t.Errorf("changed to %+v, %v; the sale waited for the announcement: %v", item, err, slow.alone)
		}
		if shown, err := s.Items.Item(await.Context(t), s.Item); err != nil || shown.Version != 2 {
			t.Errorf("the catalogue has %+v, %v, want version 2", shown, err)
		}
	})
}

// deaf is a service of another process, whose catalogue receives no changes, because its
// subscription was cut.
func deaf(s *shoptest.Shop) *checkout.Service {
	s.T.Helper()
	items, err := catalog.New(await.Context(s.T), s.Store, s.Stock, catalog.Config{OnError: s.CollectError, LoadTimeout: ordertest.Limit, Wait: ordertest.Limit, Redis: s.Rdb, Life: time.Hour})
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { s.End(items.Close) })
	cfg := s.Service.Config
	cfg.Items = items
	return checkout.NewService(cfg)
}

// TestService_Place_OldPrice: a process that has missed a change of the price sells at the
// new price.
func TestService_Place_OldPrice(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 20))
		s.Work()
		other := deaf(s)
		first, err := other.Place(await.Context(t), s.Purchase("u", "k", 1, ordertest.Long))
		if err != nil || first.Order.UnitPriceMinor != 1999 {
			t.Fatalf("before the change: %+v, %v", first, err)
		}
		for price := int64(5); price < 8; price++ {
			s.MustChange(items.Change{PriceMinor: ordertest.Ptr(price)})
			before, err := other.Items.Item(await.Context(t), s.Item)
			if err != nil || before.PriceMinor == price {
				t.Fatalf("the other process has received the price: %+v, %v", before, err)
			}
			key := fmt.Sprint("k", price)
			placed, err := other.Place(await.Context(t), s.Purchase("u", key, 1, ordertest.Long))
			if err != nil || placed.Order.UnitPriceMinor != price || placed.Replayed {
				t.Errorf("price %d: %+v, %v", price, placed, err)
			}
			if got := s.MustGet(placed.Order.ID); got.UnitPriceMinor != price {
				t.Errorf("price %d: the order is %+v", price, got)
			}
		}
		again, err := other.Place(await.Context(t), s.Purchase("u", "k", 1, ordertest.Long))
		if err != nil || again.Order.ID != first.Order.ID || !again.Replayed {
			t.Errorf("repeat: %+v, %v, want order %s", again, err, first.Order.ID)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Place_SamePrice: a process that has missed changes of other fields than the price sells
// without reading the item again.
func TestService_Place_SamePrice(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 20))
		s.Work()
		other := deaf(s)
		known := func() int64 {
			t.Helper()
			item, err := other.Items.Item(await.Context(t), s.Item)
			if err != nil {
				t.Fatal(err)
			}
			return item.Version
		}
		buy := func(key string, version int64) {
			t.Helper()
			if _, err := other.Place(await.Context(t), s.Purchase("u", key, 1, ordertest.Long)); err != nil || known() != version {
				t.Errorf("%s: %v, from version %d, want %d", key, err, known(), version)
			}
		}
		buy("first", 1)
		if _, _, err := s.Sales.Restock(await.Context(t), s.Item, items.Restock{Quantity: 5, Reason: "r", IdempotencyKey: "r"}, ordertest.Root); err != nil {
			t.Fatal(err)
		}
		buy("restocked", 1)
		for _, to := range []catalog.Control{catalog.ControlPaused, catalog.ControlOpen} {
			if _, err := s.Sales.ControlItem(await.Context(t), s.Item, items.Control{To: to}, ordertest.Root); err != nil {
				t.Fatal(err)
			}
		}
		buy("resumed", 1)
		s.MustChange(items.Change{PriceMinor: ordertest.Ptr(int64(1999)), PerUserLimit: ordertest.Ptr(int64(10))})
		buy("another limit, and the price as it was", 1)
		s.MustChange(items.Change{PriceMinor: ordertest.Ptr(int64(5)), PerUserLimit: ordertest.Ptr(int64(11))})
		buy("another price", 6)
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Place_SaleBehind: a sale that has lost a change of its item is loaded again,
// and then uses the change.
func TestService_Place_SaleBehind(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 20))
		s.Work()
		first := s.MustPlace(s.Purchase("u", "k", 1, ordertest.Long))
		version, err := rdb.HGet(await.Context(t), saleKey(s.Item), "version").Result()
		if err != nil {
			t.Fatal(err)
		}
		s.MustChange(items.Change{PriceMinor: ordertest.Ptr(int64(5)), PerUserLimit: ordertest.Ptr(int64(2))})
		if err := rdb.HSet(await.Context(t), saleKey(s.Item), "version", version, "per_user_limit", 20).Err(); err != nil {
			t.Fatal(err)
		}
		placed := s.MustPlace(s.Purchase("u", "k2", 1, ordertest.Long))
		if placed.Order.UnitPriceMinor != 5 {
			t.Errorf("sold for %d, want 5", placed.Order.UnitPriceMinor)
		}
		s.Refused(s.Purchase("u", "k3", 1, ordertest.Long), inventory.ErrUserLimit)
		if again := s.MustPlace(s.Purchase("u", "k", 1, ordertest.Long)); again.Order.ID != first.Order.ID {
			t.Errorf("repeat: %+v, want order %s", again, first.Order.ID)
		}
	})
}

// saleKey is the key of an item's sale in the one partition.
func saleKey(item string) string { return "fs:{p0}:sale:" + item }

// TestService_Place_LowerLimit: a repeat gets its order even if the limit is lower by now,
// on the process that made the change and on one that has not received it. A new order of
// the same quantity is refused with the present limit.
func TestService_Place_LowerLimit(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 5))
		s.Work()
		other := deaf(s)
		first, err := other.Place(await.Context(t), s.Purchase("u", "k1", 3, ordertest.Long))
		if err != nil {
			t.Fatal(err)
		}
		s.MustChange(items.Change{PerUserLimit: ordertest.Ptr(int64(2))})
		for name, service := range map[string]*checkout.Service{"same": s.Service, "other": other} {
			again, err := service.Place(await.Context(t), s.Purchase("u", "k1", 3, ordertest.Long))
			if err != nil || again.Order.ID != first.Order.ID || !again.Replayed || !again.Committed {
				t.Errorf("%s process, repeat: %+v, %v, want order %s", name, again, err, first.Order.ID)
			}
			for _, user := range []string{"u", "w"} {
				var above *inventory.QuantityError
				if _, err := service.Place(await.Context(t), s.Purchase(user, "k2", 3, ordertest.Long)); !errors.As(err, &above) || above.Limit != 2 {
					t.Errorf("%s process, a new order by %s: %v, want a QuantityError with 2", name, user, err)
				}
			}
		}
	})
}

// otherVersion is a sale whose version of the item no process has.
type otherVersion struct {
	checkout.Stock
	asked int
}

func (o *otherVersion) Refusal(string, string, string, int64) error { return nil }

func (o *otherVersion) Submit(*inventory.Request) error {
	o.asked++
	return &inventory.ItemVersionError{Version: 9}
}

// TestService_Place_NeverAgrees: the retries with other terms are bounded.
func TestService_Place_NeverAgrees(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 1, 1))
	stock := &otherVersion{Stock: s.Stock}
	s.Service.Stock = stock
	if placed, err := s.Service.Place(await.Context(t), s.Purchase("u", "k", 1, ordertest.Long)); !errors.Is(err, inventory.ErrUnavailable) || stock.asked != checkout.TermsTries {
		t.Errorf("%+v, %v after %d tries, want ErrUnavailable after %d", placed, err, stock.asked, checkout.TermsTries)
	}
}
