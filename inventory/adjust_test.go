package inventory

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func ptr[T any](v T) *T { return &v }

// adjust applies a change to the sale, as Change does after its commit.
func (s *shop) adjust(t testing.TB, c Change) error {
	t.Helper()
	return adjust(await.Context(t), s.rdb, keys{1}, s.source.epochNow(), s.item, "", &c)
}

func (s *shop) mustAdjust(t testing.TB, c Change) {
	t.Helper()
	if err := s.adjust(t, c); err != nil {
		t.Fatalf("adjust %+v: %v", c, err)
	}
}

// stock changes the database's total, and its version.
func (s *shop) stock(add, version int64) {
	s.source.set(func(src *stored) {
		sale := src.sales[s.item]
		sale.Left += add
		sale.Version = version
		src.sales[s.item] = sale
	})
}

// TestAdjust_Terms: each of a sale's terms holds for the next batch.
func TestAdjust_Terms(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(100, 1), 0)
		v := s.inventory(t, Config{})
		first := s.request("u", "1", 1)
		mustBuy(t, v, first)
		version := int64(1)
		change := func(c Change) {
			t.Helper()
			version++
			c.Version = version
			before := s.state(t)
			s.mustAdjust(t, c)
			after := s.state(t)
			if !maps.Equal(before.idempotency, after.idempotency) || !maps.Equal(before.buyers, after.buyers) || after.sale["version"] == before.sale["version"] {
				t.Errorf("%+v changed %+v to %+v", c, before, after)
			}
		}
		mustRefuse(t, v, s.request("u", "2", 1), ErrUserLimit)
		change(Change{PerUserLimit: ptr(int64(3))})
		mustBuy(t, v, s.request("u", "2", 2))
		change(Change{PerUserLimit: ptr(int64(2))}) // below the buyer's units
		mustRefuse(t, v, s.request("u", "3", 1), ErrUserLimit)
		mustBuy(t, v, s.request("w", "1", 2))
		change(Change{Control: ptr("paused")})
		mustRefuse(t, v, s.request("x", "1", 1), ErrPaused)
		if o := buy(t, v, s.request("u", "1", 1)); o.ReplayOf != first.OrderID {
			t.Errorf("replay while paused: %+v", o)
		}
		change(Change{Control: ptr("open")})
		mustBuy(t, v, s.request("x", "1", 1))
		opens := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		change(Change{OpensAt: &opens})
		var early *NotOpenError
		if o := buy(t, v, s.request("y", "1", 1)); !errors.As(o.Err, &early) || !early.OpensAt.Equal(opens) {
			t.Errorf("before the new opening at %v: %+v", opens, o)
		}
		change(Change{OpensAt: ptr(time.Now().Add(-time.Hour)), ClosesAt: ptr(time.Now().Add(-time.Minute))})
		mustRefuse(t, v, s.request("y", "1", 1), ErrClosed)
		change(Change{ClosesAt: &time.Time{}})
		mustBuy(t, v, s.request("y", "1", 1))
		change(Change{ClosesAt: ptr(time.Now().Add(time.Hour))})
		mustBuy(t, v, s.request("y2", "1", 1))
		change(Change{}) // of a field that the sale does not have
		mustBuy(t, v, s.request("y3", "1", 1))
		change(Change{Control: ptr("closed"), AddLeft: 5})
		mustRefuse(t, v, s.request("z", "1", 1), ErrClosed)
		if st := s.state(t); st.left(t) != 100-9+5 {
			t.Errorf("left is %d, want %d", st.left(t), 100-9+5)
		}
	})
}

// TestAdjust_Stock adds units and takes units back; all processes drop their marks.
func TestAdjust_Stock(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(3, 1), 0)
		a, b := s.inventory(t, Config{MarkLife: forEver}), s.inventory(t, Config{MarkLife: forEver})
		sellOut(t, s, a, 3)
		marked(t, s, a, b)
		before := s.state(t)
		if err := s.adjust(t, Change{Version: 2, AddLeft: -1}); !errors.Is(err, ErrStockBelowSold) {
			t.Errorf("taking back what is sold: %v, want ErrStockBelowSold", err)
		}
		same(t, before, s.state(t))
		s.stock(5, 2)
		s.mustAdjust(t, Change{Version: 2, AddLeft: 5})
		for _, v := range []*Inventory{a, b} {
			await.True(t, "the mark to go", func() bool { return !fromMemory(t, s, v) })
		}
		mustBuy(t, b, s.request("n1", "k", 1))
		mustBuy(t, a, s.request("n2", "k", 1))
		before = s.state(t)
		if err := s.adjust(t, Change{Version: 3, AddLeft: -4, Control: ptr("closed")}); !errors.Is(err, ErrStockBelowSold) {
			t.Errorf("taking back more than is left: %v, want ErrStockBelowSold", err)
		}
		same(t, before, s.state(t))
		s.stock(-3, 3)
		s.mustAdjust(t, Change{Version: 3, AddLeft: -3})
		mustRefuse(t, a, s.request("n3", "k", 1), ErrSoldOut)
		marked(t, s, a, b)
		// Also without new stock: a closed sale is refused with another error.
		s.stock(0, 4)
		s.mustAdjust(t, Change{Version: 4, Control: ptr("paused")})
		for _, v := range []*Inventory{a, b} {
			await.True(t, "the mark to go", func() bool { return !fromMemory(t, s, v) })
			mustRefuse(t, v, s.request("n4", "k", 1), ErrPaused)
		}
		s.audit(t)
	})
}

// TestAdjust_Version: each change is applied once, and in order.
func TestAdjust_Version(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(3, 1), 0)
		v := s.inventory(t, Config{})
		two, three := Change{Version: 2, AddLeft: 4}, Change{Version: 3, AddLeft: -2, PerUserLimit: ptr(int64(2))}
		if err := s.adjust(t, two); !errors.Is(err, ErrNotLoaded) {
			t.Errorf("no sale: %v, want ErrNotLoaded", err)
		}
		if st := s.state(t); len(st.sale) != 0 {
			t.Errorf("a change made a sale: %+v", st)
		}
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		before := s.state(t)
		if err := s.adjust(t, three); !errors.Is(err, ErrBehind) {
			t.Errorf("before the change before it: %v, want ErrBehind", err)
		}
		if err := adjust(await.Context(t), rdb, keys{1}, 7, s.item, "", &two); !errors.Is(err, ErrNotLoaded) {
			t.Errorf("another epoch: %v, want ErrNotLoaded", err)
		}
		same(t, before, s.state(t))
		s.mustAdjust(t, two)
		after := s.state(t)
		if after.left(t) != 7 {
			t.Errorf("left is %d, want 7", after.left(t))
		}
		s.mustAdjust(t, two)
		s.mustAdjust(t, Change{Version: 1, AddLeft: 100})
		same(t, after, s.state(t))
		s.mustAdjust(t, three)
		after = s.state(t)
		s.mustAdjust(t, two)
		s.mustAdjust(t, three)
		same(t, after, s.state(t))
		if after.left(t) != 5 || after.sale["per_user_limit"] != "2" {
			t.Errorf("%d left, limit %s, want 5 and 2", after.left(t), after.sale["per_user_limit"])
		}
		// A load reads the changes from the database.
		s.stock(2, 3)
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		after = s.state(t)
		s.mustAdjust(t, three)
		same(t, after, s.state(t))
	})
}

// TestAdjust_ReplyLost: the change was applied and the reply was lost; the repeat succeeds.
func TestAdjust_ReplyLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, direct *redis.Client) {
		s := newShop(t, direct, open(3, 1), 0)
		if err := s.inventory(t, Config{}).Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		if err := adjustScript.Load(await.Context(t), direct).Err(); err != nil {
			t.Fatal(err)
		}
		p := newProxy(t, direct.Options().Addr, runsOf(adjustScript, 1, func(int) cutAt { return cutAfter }))
		c := Change{Version: 2, AddLeft: 4}
		if err := adjust(await.Context(t), p.client(t), keys{1}, 1, s.item, "", &c); err == nil {
			t.Error("the reply was lost, and there is no error")
		}
		after := s.state(t)
		if after.left(t) != 7 {
			t.Errorf("left is %d, want 7", after.left(t))
		}
		s.mustAdjust(t, c)
		same(t, after, s.state(t))
	})
}

func TestAdjust_WrongTypes(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, field := range []string{"", "left", "version"} {
			t.Run("field "+field, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(3, 1), 0)
				v := s.inventory(t, Config{})
				if err := v.Open(await.Context(t), s.item); err != nil {
					t.Fatal(err)
				}
				ctx, key := await.Context(t), v.keys.sale(s.item)
				var err error
				if field == "" {
					err = errors.Join(rdb.Del(ctx, key).Err(), rdb.Set(ctx, key, "x", 0).Err())
				} else {
					err = rdb.HSet(ctx, key, field, "many").Err()
				}
				if err != nil {
					t.Fatal(err)
				}
				before := contents(t, s)
				var refused redis.Error
				if err := s.adjust(t, Change{Version: 2, AddLeft: 1}); !errors.As(err, &refused) {
					t.Errorf("adjust: %v, want the script's error", err)
				}
				if after := contents(t, s); !maps.Equal(before, after) {
					t.Errorf("a failed script changed %v to %v", before, after)
				}
			})
		}
	})
}

func TestInventory_Change_Invalid(t *testing.T) {
	t.Parallel()
	var v *Inventory // it is refused before the Inventory is used
	for name, c := range map[string]Change{
		"version": {Version: -1, AddLeft: 1},
		"limit":   {Version: 2, PerUserLimit: ptr(int64(0))},
		"control": {Version: 2, Control: ptr("ajar")},
	} {
		if err := v.Change(t.Context(), "item", c, nil); err == nil {
			t.Errorf("%s: Change gives no error", name)
		}
	}
}
