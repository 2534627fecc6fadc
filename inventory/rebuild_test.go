package inventory

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
)

// TestInventory_Rebuild: a buyer's name is changed where the sale comes from, and
// Redis remembers the new one alone, with its limit and its key.
func TestInventory_Rebuild(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		v := s.inventory(t, Config{})
		past := func(buyer string) func(s *stored) {
			return func(st *stored) {
				st.past[s.item] = []Holding{{Buyer: buyer, IdempotencyKey: "k", OrderID: "o1", Quantity: 2, Counts: true}}
			}
		}
		s.source.set(past("old"))
		mustBuy(t, v, s.request("another", "k", 1))
		nothing := func(context.Context) error { return nil }
		before := s.state(t)
		err := v.Rebuild(testContext(t), s.item, func(context.Context) error { return errTest }, func(context.Context) error {
			t.Error("changed although the check objected")
			return nil
		})
		if !errors.Is(err, errTest) {
			t.Errorf("a check's error: %v", err)
		}
		same(t, before, s.state(t))

		forgotten := func(when string) {
			t.Helper()
			n, err := rdb.Exists(testContext(t), v.keys.sale(s.item), v.keys.idempotency(s.item), v.keys.buyers(s.item)).Result()
			if err != nil || n != 0 {
				t.Errorf("%s: Redis has %d of the item's keys, %v", when, n, err)
			}
		}
		err = v.Rebuild(testContext(t), s.item, nothing, func(context.Context) error {
			forgotten("during the change")
			s.source.set(past("new"))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		mustRefuse(t, v, s.request("new", "k2", 1), ErrUserLimit)
		if o := decided(t, v, s.request("new", "k", 2)); o.ReplayOf != "o1" {
			t.Errorf("a repeat: %+v", o)
		}
		mustBuy(t, v, s.request("old", "k", 2))
		if st := s.state(t); st.left(t) != 10-2-1-2 {
			t.Errorf("left %d", st.left(t))
		}

		// After a change that failed, the next purchase finds how things stand.
		err = v.Rebuild(testContext(t), s.item, nothing, func(context.Context) error { return errTest })
		if !errors.Is(err, errTest) {
			t.Errorf("a change's error: %v", err)
		}
		forgotten("after a failed change")
		mustBuy(t, v, s.request("third", "k", 1))
		if st := s.state(t); st.left(t) != 10-2-1-2-1 {
			t.Errorf("left %d", st.left(t))
		}
	})
}

// TestInventory_Rebuild_LoadFails: what was to be forgotten is, and the next
// purchase loads the sale.
func TestInventory_Rebuild_LoadFails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("u", "k", 1))
		s.take(t, 1)
		nothing := func(context.Context) error { return nil }
		fails := func(context.Context) error {
			s.source.set(func(st *stored) { st.err = errTest })
			return nil
		}
		if err := v.Rebuild(testContext(t), s.item, nothing, fails); err != nil {
			t.Errorf("rebuild: %v", err)
		}
		if n := rdb.Exists(testContext(t), v.keys.idempotency(s.item), v.keys.buyers(s.item)).Val(); n != 0 {
			t.Errorf("Redis remembers in %d keys", n)
		}
		s.source.set(func(st *stored) { st.err = nil })
		if live, err := v.Live(testContext(t), s.item); err != nil || live.Loaded {
			t.Errorf("the sale: %+v, %v", live, err)
		}
		mustBuy(t, v, s.request("u", "k2", 1))
	})
}

// TestInventory_Rebuild_LockLost: who lost the lock within the change says so,
// since another process may have loaded what was to be forgotten.
func TestInventory_Rebuild_LockLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("u", "k", 1))
		nothing := func(context.Context) error { return nil }
		err := v.Rebuild(testContext(t), s.item, nothing, func(ctx context.Context) error {
			return rdb.Set(ctx, v.keys.lock(s.item), "another:1:x", 0).Err()
		})
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		if err := rdb.Del(testContext(t), v.keys.lock(s.item)).Err(); err != nil {
			t.Fatal(err)
		}
	})
}
