package inventory

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestInventory_SoldOutMark_BuiltTwice: one holder of the lock builds the sale twice. The
// second build has the accepted keys in another order, and a mark must not miss any.
func TestInventory_SoldOutMark_BuiltTwice(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, shared *redis.Client) {
		rdb := redis.NewClient(redistest.Options(shared.Options().Addr))
		t.Cleanup(func() {
			if err := rdb.Close(); err != nil {
				t.Error(err)
			}
		})
		s := newShop(t, rdb, open(1, 1), 0)
		z, a, b := s.request("z", "k", 1), s.request("a", "k", 1), s.request("b", "k", 1)
		var v *Inventory
		scripts := counter{after: func(_ int, err error) error {
			known, herr := shared.HKeys(t.Context(), keys{1}.buyers(s.item)).Result()
			switch {
			case herr != nil:
				t.Error(herr)
			case len(known) == 1 && s.source.sales[s.item].Version == 1: // z has the last unit, and all keys are known
				s.stock(2, 2)
				if err := adjust(t.Context(), shared, keys{1}, 1, s.item, "", &Change{Version: 2, AddLeft: 2}); err != nil {
					t.Error(err)
				}
				v.DropSoldOutMark(s.item) // the message may take longer than the reply
			case len(known) == 2 && s.source.loads == 1: // a has bought, and one unit is left
				s.commit(t)
				s.source.set(func(src *stored) { // in the order of the database's index
					slices.SortFunc(src.past[s.item], func(x, y Holding) int { return cmp.Compare(x.Buyer, y.Buyer) })
				})
				if err := Invalidate(t.Context(), shared, 1, []string{s.item}); err != nil {
					t.Error(err)
				}
			}
			return err
		}}
		rdb.AddHook(&scripts)
		v = s.inventory(t, Config{MaxBatch: 1, MarkLife: time.Hour, LockIdle: time.Hour})
		done := make(chan Outcome, 3)
		var sel *seller
		await.True(t, "a seller that is not retired", func() bool {
			var err error
			if sel, err = v.seller(s.item); err != nil {
				t.Fatal(err)
			}
			sel.mu.Lock() // all at once, so that the seller keeps the lock
			if sel.retired {
				sel.mu.Unlock()
				return false
			}
			return true
		})
		for _, r := range []*Request{z, a, b} {
			r.Done, r.since = func(o Outcome) { done <- o }, time.Now()
			sel.pending = append(sel.pending, r)
		}
		sel.mu.Unlock()
		sel.signal()
		for range 3 {
			if o := <-done; o != (Outcome{}) {
				t.Fatalf("outcome %+v, want accepted", o)
			}
		}
		if s.source.loads != 2 {
			t.Fatalf("%d loads, want 2", s.source.loads)
		}
		awaitMark(t, s, v)
		for _, r := range []*Request{z, a, b} {
			if o := buy(t, v, s.request(r.Buyer, r.IdempotencyKey, 1)); o != (Outcome{ReplayOf: r.OrderID}) {
				t.Errorf("replay by %s: %+v, want order %s", r.Buyer, o, r.OrderID)
			}
		}
	})
}
