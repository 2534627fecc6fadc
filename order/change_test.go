package order

import (
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
)

// TestService_ChangeItem: each field applies to the next purchase, and earlier orders do
// not change.
func TestService_ChangeItem(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 20, 2))
		s.work()
		first := s.mustPlace(s.purchase("u", "k", 2, long)).Order
		item := s.mustChange(ItemChange{
			Name: ptr("Other"), Description: ptr("Text"), PriceMinor: ptr(int64(5)), PaymentWindow: ptr(time.Minute), Match: Match{7, 1},
		})
		if item.Name != "Other" || item.Description != "Text" || item.PriceMinor != 5 || item.PaymentWindow != time.Minute || item.Version != 2 || item.StockLeft != 18 {
			t.Errorf("changed to %+v", item)
		}
		if shown, err := s.items.Item(await.Context(t), s.item); err != nil || shown != item {
			t.Errorf("shown is %+v, %v, and it was changed to %+v", shown, err, item)
		}
		second := s.mustPlace(s.purchase("v", "k", 1, long)).Order
		if second.UnitPriceMinor != 5 || second.ExpiresAt.Sub(second.ConfirmedAt) != time.Minute {
			t.Errorf("an order after the change: %+v", second)
		}
		if got := s.mustGet(first.ID); got != first {
			t.Errorf("an order before the change was %+v and is %+v", first, got)
		}
		// Lower than what a buyer holds, and higher again.
		s.mustChange(ItemChange{PerUserLimit: ptr(int64(1))})
		s.refused(s.purchase("u", "k2", 1, long), inventory.ErrUserLimit)
		s.refused(s.purchase("v", "k2", 1, long), inventory.ErrUserLimit)
		s.mustPlace(s.purchase("w", "k", 1, long))
		if got := s.mustGet(first.ID); got != first {
			t.Errorf("an order above the limit was %+v and is %+v", first, got)
		}
		s.mustChange(ItemChange{PerUserLimit: ptr(int64(3))})
		s.mustPlace(s.purchase("u", "k2", 1, long))
		s.refused(s.purchase("u", "k3", 1, long), inventory.ErrUserLimit)
		// The window.
		later := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
		if item = s.mustChange(ItemChange{OpensAt: &later}); !item.OpensAt.Equal(later) {
			t.Errorf("opens at %v, want %v", item.OpensAt, later)
		}
		var early *inventory.NotOpenError
		if _, err := s.service.Place(await.Context(t), s.purchase("x", "k", 1, long)); !errors.As(err, &early) || !early.OpensAt.Equal(later) {
			t.Errorf("before the opening: %v", err)
		}
		past := time.Now().Add(-time.Hour)
		s.mustChange(ItemChange{OpensAt: ptr(past.Add(-time.Hour)), ClosesAt: &past})
		s.refused(s.purchase("x", "k", 1, long), inventory.ErrClosed)
		if item = s.mustChange(ItemChange{ClosesAt: &time.Time{}}); !item.ClosesAt.IsZero() {
			t.Errorf("closes at %v, want never", item.ClosesAt)
		}
		s.mustPlace(s.purchase("x", "k", 1, long))
		s.drained()
		if l := ledgerOf(s); !l.Balanced() || l.Left != 20-6 {
			t.Errorf("ledger %+v", l)
		}
		auditStore(t, s.store)
	})
}

func TestService_ChangeItem_Refusals(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := newItem("", 5, 2)
		n.OpensAt = time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
		n.ClosesAt = n.OpensAt.Add(2 * time.Hour)
		s := newSite(t, rdb, false, n)
		before, sale := itemOf(t, s.store, s.item), rdb.HGetAll(await.Context(t), "fs:{p0}:sale:"+s.item).Val()
		for _, c := range []struct {
			c    ItemChange
			want error
		}{
			{ItemChange{Name: ptr("a"), Match: Match{}}, ErrVersion},
			{ItemChange{Name: ptr("a"), Match: Match{2, 0}}, ErrVersion},
			{ItemChange{OpensAt: &n.ClosesAt}, ErrWindow},
			{ItemChange{ClosesAt: &n.OpensAt}, ErrWindow},
			{ItemChange{ClosesAt: &n.OpensAt, Match: Match{2}}, ErrVersion},
			{ItemChange{Name: &n.Name}, nil},
			{ItemChange{OpensAt: &n.OpensAt, ClosesAt: &n.ClosesAt, PerUserLimit: ptr(int64(2)), Match: Match{1}}, nil},
			{ItemChange{}, nil},
		} {
			item, err := s.sales.ChangeItem(await.Context(t), s.item, c.c, root)
			if !errors.Is(err, c.want) || err == nil && item.Version != 1 {
				t.Errorf("%+v: %+v, %v, want %v", c.c, item, err, c.want)
			}
		}
		if _, err := s.sales.ChangeItem(await.Context(t), "none", ItemChange{Name: ptr("a")}, root); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("change of no item: %v", err)
		}
		if _, err := s.sales.ControlItem(await.Context(t), s.item, ItemControl{To: "ajar"}, root); err == nil {
			t.Error("an unknown control: no error")
		}
		if after := itemOf(t, s.store, s.item); after != before {
			t.Errorf("changed %+v to %+v", before, after)
		}
		if after := rdb.HGetAll(await.Context(t), "fs:{p0}:sale:"+s.item).Val(); fmt.Sprint(after) != fmt.Sprint(sale) || len(sale) == 0 {
			t.Errorf("the sale was %v and is %v", sale, after)
		}
		if got := trail(t, s.store, s.item); len(got) != 1 || !strings.HasPrefix(got[0], "  item.create  -> {") {
			t.Errorf("audit %q", got)
		}
	})
}

// TestService_ChangeItem_SameVersion: of several changes for the same version one is made,
// and the others get ErrVersion.
func TestService_ChangeItem_SameVersion(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 5, 1))
		for round := range int64(5) {
			var wg sync.WaitGroup
			var made atomic.Int64
			for i := range 6 {
				wg.Go(func() {
					_, err := s.change(ItemChange{Name: ptr(fmt.Sprintf("Name %d %d", round, i)), Match: Match{round + 1}})
					if err == nil {
						made.Add(1)
					} else if !errors.Is(err, ErrVersion) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := made.Load(); n != 1 {
				t.Fatalf("round %d: %d changes of one version were made", round, n)
			}
		}
		if got := trail(t, s.store, s.item); len(got) != 6 {
			t.Errorf("audit %q", got)
		}
	})
}

// TestService_ChangeItem_LimitOfQueued: an order that was accepted under a higher limit is
// committed under the lower one.
func TestService_ChangeItem_LimitOfQueued(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 20, 3))
		kept := []Placed{
			s.mustPlace(s.purchase("once", "k1", 3, 0)), // above the new limit on its own
			s.mustPlace(s.purchase("twice", "k1", 1, 0)),
			s.mustPlace(s.purchase("twice", "k2", 1, 0)), // above it with another order
		}
		s.mustChange(ItemChange{PerUserLimit: ptr(int64(2))})
		s.mustChange(ItemChange{PerUserLimit: ptr(int64(1))})
		kept = append(kept, s.mustPlace(s.purchase("new", "k", 1, 0)))
		s.refused(s.purchase("new", "k2", 1, 0), inventory.ErrUserLimit)
		// If Redis wrongly accepts an order, the database still refuses it.
		strange := bought("0strange", s.item, "new", "x", 1)
		strange.CreatedAt = time.Now().Add(time.Minute).UnixMilli()
		s.work()
		s.drained()
		for _, p := range kept {
			if o := s.mustGet(p.Order.ID); o.Status != StatusConfirmed {
				t.Errorf("an accepted order became %s: %+v", o.Status, o)
			}
		}
		fourth := bought("0fourth", s.item, "once", "x", 1) // above the old limit, too
		fourth.CreatedAt = kept[0].Order.CreatedAt.UnixMilli()
		out, err := s.store.commit(await.Context(t), []task{strange, fourth})
		for i, o := range out {
			if err != nil || o.status != StatusRejected || o.reason != reasonUserLimit {
				t.Errorf("%d: above the limit and never accepted: %+v, %v", i, o, err)
			}
		}
		if l := ledgerOf(s); !l.Balanced() || l.Sold != 6 || l.Left != 14 {
			t.Errorf("ledger %+v", l)
		}
		if got := buyersOf(t, s.store, s.item); fmt.Sprint(got) != "map[new:1 once:3 twice:2]" {
			t.Errorf("buyers %v", got)
		}
	})
}

func TestService_ControlItem(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 5, 1))
		s.work()
		first := s.mustPlace(s.purchase("u", "k", 1, long))
		for range 2 { // the second is a repeat
			if item := s.mustControl(catalog.ControlPaused); item.Control != catalog.ControlPaused || item.Version != 2 {
				t.Errorf("paused: %+v", item)
			}
		}
		s.refused(s.purchase("v", "k", 1, long), inventory.ErrPaused)
		if again := s.mustPlace(s.purchase("u", "k", 1, long)); again.Order.ID != first.Order.ID || !again.Replayed {
			t.Errorf("repeat while paused: %+v", again)
		}
		if _, err := s.control(catalog.ControlOpen, Match{1}); !errors.Is(err, ErrVersion) {
			t.Errorf("resume of an old version: %v", err)
		}
		for range 2 {
			if item := s.mustControl(catalog.ControlOpen); item.Control != catalog.ControlOpen || item.Version != 3 {
				t.Errorf("resumed: %+v", item)
			}
		}
		s.mustPlace(s.purchase("v", "k", 1, long))
		for range 2 {
			if item := s.mustControl(catalog.ControlClosed); item.Control != catalog.ControlClosed || item.Version != 4 {
				t.Errorf("closed: %+v", item)
			}
		}
		s.refused(s.purchase("w", "k", 1, long), inventory.ErrClosed)
		for _, to := range []catalog.Control{catalog.ControlOpen, catalog.ControlPaused} {
			if _, err := s.control(to, nil); !errors.Is(err, ErrItemClosed) {
				t.Errorf("%s of a closed sale: %v", to, err)
			}
		}
		if got := s.mustGet(first.Order.ID); got != first.Order {
			t.Errorf("closing changed an order from %+v to %+v", first.Order, got)
		}
		// A closed item can still be changed.
		s.mustRestock(-3, "back")
		s.mustChange(ItemChange{Name: ptr("Gone")})
		s.refused(s.purchase("w", "k", 1, long), inventory.ErrClosed)
		want := []string{
			`root r-1 item.pause {"control":"open"} -> {"control":"paused"}`,
			`root r-1 item.resume {"control":"paused"} -> {"control":"open"}`,
			`root r-1 item.close {"control":"open"} -> {"control":"closed"}`,
			`root r-1 item.restock {"stock_total":5} -> {"reason":"test","stock_total":2}`,
			`root r-1 item.change {"name":"Thing"} -> {"name":"Gone"}`,
		}
		if got := trail(t, s.store, s.item); fmt.Sprint(got[1:]) != fmt.Sprint(want) {
			t.Errorf("audit %q, want %q", got, want)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Restocked: -3, Sold: 2}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestService_ControlItem_Burst pauses and resumes while many buyers buy: a purchase sent
// after the answer to a pause is not accepted.
func TestService_ControlItem_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 100_000, 1))
		s.work()
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
					_, err := s.service.Place(await.Context(t), s.purchase(fmt.Sprintf("u%d-%d", b, k), "k", 1, 0))
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
			s.mustControl(catalog.ControlPaused)
			gate.Add(1)
			n = halted.Load()
			await.True(t, "refusals", func() bool { return halted.Load() > n+20 })
			gate.Add(1)
			s.mustControl(catalog.ControlOpen)
		}
		close(stop)
		wg.Wait()
		s.drained()
		if l := ledgerOf(s); !l.Balanced() || l.Sold != bought.Load() {
			t.Errorf("ledger %+v, and %d bought", l, bought.Load())
		}
	})
}

// TestService_ChangeItem_DatabaseAway: if the database fails, the change is refused, and
// the sale continues unchanged.
func TestService_ChangeItem_DatabaseAway(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 5, 1))
		if err := s.store.Writer().Exec("CREATE TRIGGER full BEFORE UPDATE ON items BEGIN SELECT RAISE(ABORT, 'full'); END").Error; err != nil {
			t.Fatal(err)
		}
		sale := rdb.HGetAll(await.Context(t), "fs:{p0}:sale:"+s.item).Val()
		if _, _, err := s.sales.Restock(await.Context(t), s.item, Restock{Quantity: 5, Reason: "test", IdempotencyKey: "k"}, root); !errors.Is(err, inventory.ErrUnchanged) {
			t.Errorf("restock: %v", err)
		}
		if _, err := s.sales.ControlItem(await.Context(t), s.item, ItemControl{To: catalog.ControlPaused}, root); !errors.Is(err, inventory.ErrUnchanged) {
			t.Errorf("pause: %v", err)
		}
		if after := rdb.HGetAll(await.Context(t), "fs:{p0}:sale:"+s.item).Val(); fmt.Sprint(after) != fmt.Sprint(sale) {
			t.Errorf("the sale was %v and is %v", sale, after)
		}
		s.mustPlace(s.purchase("u", "k", 1, 0))
		if err := s.store.Writer().Exec("DROP TRIGGER full").Error; err != nil {
			t.Fatal(err)
		}
		if item := s.mustRestock(5, "k"); item.StockTotal != 10 || item.StockLeft != 9 {
			t.Errorf("restocked: %+v", item)
		}
	})
}

// deaf is a service of another process, whose catalogue receives no changes, because its
// subscription was cut.
func (s *site) deaf() *Service {
	s.t.Helper()
	items, err := catalog.New(await.Context(s.t), s.store, s.stock, catalog.Config{OnError: s.heard, LoadTimeout: limit, Redis: s.rdb, Life: time.Hour})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.end(items.Close) })
	cfg := s.service.Config
	cfg.Items = items
	return NewService(cfg)
}

// TestService_Place_OldPrice: a process that has missed a change of the price sells at the
// new price.
func TestService_Place_OldPrice(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 20, 20))
		s.work()
		other := s.deaf()
		first, err := other.Place(await.Context(t), s.purchase("u", "k", 1, long))
		if err != nil || first.Order.UnitPriceMinor != 1999 {
			t.Fatalf("before the change: %+v, %v", first, err)
		}
		for price := int64(5); price < 8; price++ {
			s.mustChange(ItemChange{PriceMinor: ptr(price)})
			before, err := other.Items.Item(await.Context(t), s.item)
			if err != nil || before.PriceMinor == price {
				t.Fatalf("the other process has received the price: %+v, %v", before, err)
			}
			key := fmt.Sprint("k", price)
			placed, err := other.Place(await.Context(t), s.purchase("u", key, 1, long))
			if err != nil || placed.Order.UnitPriceMinor != price || placed.Replayed {
				t.Errorf("price %d: %+v, %v", price, placed, err)
			}
			if got := s.mustGet(placed.Order.ID); got.UnitPriceMinor != price {
				t.Errorf("price %d: the order is %+v", price, got)
			}
		}
		again, err := other.Place(await.Context(t), s.purchase("u", "k", 1, long))
		if err != nil || again.Order.ID != first.Order.ID || !again.Replayed {
			t.Errorf("repeat: %+v, %v, want order %s", again, err, first.Order.ID)
		}
		auditStore(t, s.store)
	})
}

// TestService_Place_SaleBehind: a sale that has lost a change of its item is loaded again,
// and then uses the change.
func TestService_Place_SaleBehind(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 20, 20))
		s.work()
		first := s.mustPlace(s.purchase("u", "k", 1, long))
		version, err := rdb.HGet(await.Context(t), saleKey(s.item), "version").Result()
		if err != nil {
			t.Fatal(err)
		}
		s.mustChange(ItemChange{PriceMinor: ptr(int64(5)), PerUserLimit: ptr(int64(2))})
		if err := rdb.HSet(await.Context(t), saleKey(s.item), "version", version, "limit", 20).Err(); err != nil {
			t.Fatal(err)
		}
		placed := s.mustPlace(s.purchase("u", "k2", 1, long))
		if placed.Order.UnitPriceMinor != 5 {
			t.Errorf("sold for %d, want 5", placed.Order.UnitPriceMinor)
		}
		s.refused(s.purchase("u", "k3", 1, long), inventory.ErrUserLimit)
		if again := s.mustPlace(s.purchase("u", "k", 1, long)); again.Order.ID != first.Order.ID {
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
		s := newSite(t, rdb, false, newItem("", 20, 5))
		s.work()
		other := s.deaf()
		first, err := other.Place(await.Context(t), s.purchase("u", "k1", 3, long))
		if err != nil {
			t.Fatal(err)
		}
		s.mustChange(ItemChange{PerUserLimit: ptr(int64(2))})
		for name, service := range map[string]*Service{"same": s.service, "other": other} {
			again, err := service.Place(await.Context(t), s.purchase("u", "k1", 3, long))
			if err != nil || again.Order.ID != first.Order.ID || !again.Replayed || !again.Committed {
				t.Errorf("%s process, repeat: %+v, %v, want order %s", name, again, err, first.Order.ID)
			}
			for _, user := range []string{"u", "w"} {
				var above *inventory.QuantityError
				if _, err := service.Place(await.Context(t), s.purchase(user, "k2", 3, long)); !errors.As(err, &above) || above.Limit != 2 {
					t.Errorf("%s process, a new order by %s: %v, want a QuantityError with 2", name, user, err)
				}
			}
		}
	})
}

// otherVersion is a sale whose version of the item no process has.
type otherVersion struct {
	Stock
	asked int
}

func (o *otherVersion) Submit(*inventory.Request) error {
	o.asked++
	return &inventory.ItemVersionError{Version: 9}
}

// TestService_Place_NeverAgrees: the retries with other terms are bounded.
func TestService_Place_NeverAgrees(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 1, 1))
	stock := &otherVersion{Stock: s.stock}
	s.service.Stock = stock
	if placed, err := s.service.Place(await.Context(t), s.purchase("u", "k", 1, long)); !errors.Is(err, inventory.ErrUnavailable) || stock.asked != termsTries {
		t.Errorf("%+v, %v after %d tries, want ErrUnavailable after %d", placed, err, stock.asked, termsTries)
	}
}
