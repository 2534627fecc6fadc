package inventory

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestInventory_Purchase_ItemVersion: the sale refuses purchases that were made from another
// version of the item, and still answers repeats of earlier ones.
func TestInventory_Purchase_ItemVersion(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 10), 0)
		v := s.inventory(t, Config{})
		by := func(version int64, buyer, key string, quantity int64) *Request {
			r := s.request(buyer, key, quantity)
			r.ItemVersion = version
			return r
		}
		first := by(1, "u", "k", 1)
		mustBuy(t, v, first)
		if err := adjust(await.Context(t), rdb, keys{1}, 1, s.item, "", &Change{Version: 2}); err != nil {
			t.Fatal(err)
		}
		before := s.state(t)
		for _, version := range []int64{1, 3} {
			var other *ItemVersionError
			if o := buy(t, v, by(version, "u", "k2", 1)); !errors.As(o.Err, &other) || other.Version != 2 {
				t.Errorf("by version %d: %+v, want an ItemVersionError with 2", version, o)
			}
			if o := buy(t, v, by(version, "u", "k", 1)); o != (Outcome{ReplayOf: first.OrderID}) {
				t.Errorf("repeat by version %d: %+v, want order %s", version, o, first.OrderID)
			}
			// Other refusals take precedence: another version would not help.
			mustRefuse(t, v, by(version, "u", "k", 2), ErrKeyReused)
			mustRefuse(t, v, by(version, "u", "k2", 10), ErrUserLimit)
		}
		same(t, before, s.state(t))
		mustBuy(t, v, by(2, "u", "k2", 1))
		mustBuy(t, v, by(0, "u", "k3", 1))
		s.audit(t)
	})
}

// TestInventory_Purchase_SamePrice: a purchase that was made from an earlier version of the item is
// accepted while all changes since then have left the price as it is.
func TestInventory_Purchase_SamePrice(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(100, 1), 0)
		v := s.inventory(t, Config{})
		next := 0
		// accepts checks which of the item's versions 1 to 8 the sale accepts.
		accepts := func(when string, want ...int64) {
			t.Helper()
			var got []int64
			for version := int64(1); version <= 8; version++ {
				next++
				r := s.request(fmt.Sprint("u", next), "k", 1)
				r.ItemVersion = version
				var other *ItemVersionError
				switch o := buy(t, v, r); {
				case o.Err == nil:
					got = append(got, version)
				case !errors.As(o.Err, &other):
					t.Fatalf("%s, by version %d: %v", when, version, o.Err)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: the versions %v are accepted, want %v", when, got, want)
			}
		}
		accepts("before any change", 1)
		s.mustAdjust(t, Change{Version: 2, AddLeft: 1, SamePrice: always})
		accepts("after one restock", 1, 2)
		s.mustAdjust(t, Change{Version: 3, AddLeft: 1, SamePrice: always})
		s.mustAdjust(t, Change{Version: 3, AddLeft: 1, SamePrice: always}) // a repeat
		accepts("after two", 1, 2, 3)
		s.mustAdjust(t, Change{Version: 4})
		accepts("after another price", 4)
		s.mustAdjust(t, Change{Version: 5, AddLeft: 1, SamePrice: always})
		accepts("after another price and a restock", 4, 5)
		// A process of an earlier release changes the price.
		sale := keys{1}.sale(s.item)
		_, rest, _ := strings.Cut(rdb.HGet(await.Context(t), sale, "version").Val(), ".")
		if err := rdb.HSet(await.Context(t), sale, "version", "6."+rest).Err(); err != nil {
			t.Fatal(err)
		}
		accepts("after a change by an earlier release", 6)
		s.mustAdjust(t, Change{Version: 7, AddLeft: 1, SamePrice: always})
		accepts("after that and a restock", 6, 7)
		s.stock(0, 8)
		if err := v.invalidate(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		accepts("after a load", 8)
	})
}

// TestInventory_Purchase_ItemVersions: purchases that wait together are each judged by their
// own version.
func TestInventory_Purchase_ItemVersions(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(100, 1), 0)
	v := s.inventory(t, Config{})
	var mu sync.Mutex
	got := map[int64]map[string]int{1: {}, 2: {}}
	var wg sync.WaitGroup
	for i := range 60 {
		r := s.request(fmt.Sprint("u", i), "k", 1)
		r.ItemVersion = 1 + int64(i/7%2)
		wg.Add(1)
		r.Done = func(o Outcome) {
			defer wg.Done()
			mu.Lock()
			defer mu.Unlock()
			got[r.ItemVersion][fmt.Sprint(o.Err)]++
		}
		if err := v.Submit(r); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if got[1]["<nil>"] != 32 || got[2][(&ItemVersionError{1}).Error()] != 28 {
		t.Errorf("got %v, want the 32 of version 1 accepted and the 28 of version 2 refused", got)
	}
	s.audit(t)
}

// TestInventory_Purchase_ItemVersionResent: a batch whose reply is lost, and which is sent
// again after a change of the item, finds its orders.
func TestInventory_Purchase_ItemVersionResent(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, shared *redis.Client) {
		rdb := redistest.Second(t, shared)
		s := newShop(t, shared, open(10, 10), 0)
		var armed atomic.Bool
		scripts := counter{after: func(_ int, err error) error {
			if err != nil || !armed.CompareAndSwap(true, false) {
				return err
			}
			if err := adjust(await.Context(t), shared, keys{1}, 1, s.item, "", &Change{Version: 2}); err != nil {
				t.Error(err)
			}
			return io.ErrUnexpectedEOF
		}}
		rdb.AddHook(&scripts)
		v := s.inventoryOn(t, rdb, newLocks(t, rdb, lockConfig), Config{})
		for _, buyer := range []string{"loads", "resent"} {
			r := s.request(buyer, "k", 1)
			r.ItemVersion = 1
			armed.Store(buyer == "resent")
			mustBuy(t, v, r)
		}
		if st := s.audit(t); st.left(t) != 8 || !strings.HasPrefix(st.sale["version"], "2.") {
			t.Errorf("%d left of version %s, want 8 of 2", st.left(t), st.sale["version"])
		}
	})
}
