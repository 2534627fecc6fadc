package inventory

import (
	"testing"
	"time"
)

// TestInventory_Floors: the floor of an item that is not sold for a while is kept for its next seller, and
// those of items that are no longer bought are removed.
func TestInventory_Floors(t *testing.T) {
	t.Parallel()
	inOwnTime(t, Config{LockIdle: 5 * ms}, open(100, 100), func(t *testing.T, st *stage) {
		rare := *st.shop
		rare.item = st.item + "-rare"
		st.source.set(func(src *stored) { src.sales[rare.item] = open(10, 10) })
		kept := func() int {
			st.v.mu.RLock()
			defer st.v.mu.RUnlock()
			return len(st.v.floors.of)
		}
		end := func(s *shop) {
			t.Helper()
			if o := buy(t, st.v, s.request("u", s.request("u", "", 1).OrderID, 1)); o.Err != nil {
				t.Fatal(o.Err)
			}
			st.after(time.Since(st.began) + 2*idleLife)
			st.v.mu.RLock()
			defer st.v.mu.RUnlock()
			if n := len(st.v.sellers); n != 0 {
				t.Fatalf("%d sellers are left", n)
			}
		}
		end(&rare)
		end(st.shop)
		sold := st.v.floor(rare.item)
		if sold <= 0 || kept() != 2 {
			t.Fatalf("floor %d, and %d are kept, want 2", sold, kept())
		}

		st.after(floorLife - time.Hour)
		end(st.shop) // removes nothing yet
		if sel, err := st.v.seller(rare.item); err != nil || sel.floor.Load() != sold {
			t.Errorf("the next seller has the floor %d, %v; want %d", sel.floor.Load(), err, sold)
		}
		st.after(time.Since(st.began) + 2*idleLife)
		if got := st.v.floor(rare.item); got != sold || kept() != 2 {
			t.Errorf("floor %d, and %d are kept; want %d and 2", got, kept(), sold)
		}

		for range 3 {
			st.after(time.Since(st.began) + floorLife)
			end(st.shop)
		}
		if got := st.v.floor(rare.item); got != 0 || kept() != 1 {
			t.Errorf("floor %d of an item that was not sold for days, and %d are kept; want 0 and 1", got, kept())
		}
	})
}
