package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// renaming renames "old" to "new", and the key of each of n orders.
func renaming(n int) func(context.Context) (Renaming, error) {
	r := Renaming{Buyer: "old", NewBuyer: "new"}
	for i := range n {
		r.Keys = append(r.Keys, RenamedKey{fmt.Sprint("k", i), fmt.Sprint("id", i)})
	}
	return func(context.Context) (Renaming, error) { return r, nil }
}

// TestInventory_Rename renames exactly one buyer's fields, in a few scripts and without
// a load, and sells nothing meanwhile.
func TestInventory_Rename(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const orders = renamePage + 120 // two pages of one script, and two chunks within it
		s := newShop(t, rdb, open(orders+10, orders), 0)
		v := s.inventory(t, Config{})
		for i := range orders {
			mustBuy(t, v, s.request("old", fmt.Sprint("k", i), 1))
		}
		mustBuy(t, v, s.request("older", "k0", 2))
		before, loads := s.state(t), s.source.loads
		err := v.Rename(await.Context(t), s.item, renaming(orders), func(ctx context.Context) error {
			if mark := rdb.HGet(ctx, v.keys.sale(s.item), "changing").Val(); mark == "" {
				t.Error("the sale is not marked while the database is changed")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := maps.Clone(before.idempotency)
		for i := range orders {
			from, to := fmt.Sprint("old k", i), fmt.Sprint("new id", i)
			want[to] = want[from]
			delete(want, from)
		}
		after := s.state(t)
		if !maps.Equal(after.idempotency, want) {
			t.Errorf("%d keys, want %d", len(after.idempotency), len(want))
		}
		if !maps.Equal(after.buyers, map[string]string{"new": fmt.Sprint(orders), "older": "2"}) {
			t.Errorf("buyers %v", after.buyers)
		}
		if after.sale["version"] == before.sale["version"] {
			t.Error("the version is the same, so sold-out marks that know the old names stay")
		}
		delete(after.sale, "version")
		delete(before.sale, "version")
		if !maps.Equal(after.sale, before.sale) || s.source.loads != loads {
			t.Errorf("sale %v, want %v; %d loads, want %d", after.sale, before.sale, s.source.loads, loads)
		}
		mustRefuse(t, v, s.request("new", "another", 1), ErrUserLimit)
		mustBuy(t, v, s.request("old", "k0", 1)) // another buyer
	})
}

// TestInventory_Rename_OldEpoch: a process with an outdated epoch marks a sale that another
// process has loaded under the raised one.
func TestInventory_Rename_OldEpoch(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		v, other := s.inventory(t, Config{}), s.inventory(t, Config{})
		mustBuy(t, v, s.request("old", "k0", 1))
		s.source.set(func(src *stored) { src.epoch++ })
		if err := other.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		err := v.Rename(await.Context(t), s.item, renaming(1), func(ctx context.Context) error {
			if mark := rdb.HGet(ctx, v.keys.sale(s.item), "changing").Val(); mark == "" {
				t.Error("the sale is not marked while the database is changed")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestInventory_Rename_Fails: nothing is renamed after an error of plan or of the database,
// and a sale with an unknown outcome is loaded by its next buyer.
func TestInventory_Rename_Fails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 3), 0)
		v := s.inventory(t, Config{})
		bought := s.request("old", "k0", 2)
		mustBuy(t, v, bought)
		before := s.state(t)
		never := func(context.Context) error {
			t.Error("changed the database")
			return nil
		}
		refuse := func(context.Context) (Renaming, error) { return Renaming{}, errTest }
		if err := v.Rename(await.Context(t), s.item, refuse, never); !errors.Is(err, errTest) {
			t.Errorf("the plan's error: %v", err)
		}
		if err := v.Rename(await.Context(t), s.item, renaming(0), never); err != nil {
			t.Errorf("without orders: %v", err)
		}
		same(t, before, s.state(t))
		unchanged := func(context.Context) error { return fmt.Errorf("%w: %w", ErrUnchanged, errTest) }
		if err := v.Rename(await.Context(t), s.item, renaming(1), unchanged); !errors.Is(err, errTest) {
			t.Errorf("the change's error: %v", err)
		}
		back := s.state(t)
		back.sale["version"] = before.sale["version"]
		same(t, before, back)

		// The change has failed and may have been made. Another renaming does not remove its mark.
		loads := s.source.loads
		open := func(context.Context) error { return errTest }
		if err := v.Rename(await.Context(t), s.item, renaming(1), open); !errors.Is(err, errTest) {
			t.Errorf("the change's error: %v", err)
		}
		mark := s.state(t).sale["changing"]
		if err := v.Rename(await.Context(t), s.item, renaming(1), func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if now := s.state(t).sale["changing"]; mark == "" || now != mark {
			t.Errorf("the mark is %q, want %q", now, mark)
		}
		if o := decided(t, v, s.request("old", "k0", 2)); o.ReplayOf != bought.OrderID || s.source.loads != loads+1 {
			t.Errorf("the repeat: %+v after %d loads", o, s.source.loads-loads)
		}

		if err := Stop(await.Context(t), rdb, 1, []string{s.item}); err != nil {
			t.Fatal(err)
		}
		stopped := s.state(t)
		if err := v.Rename(await.Context(t), s.item, renaming(1), never); !errors.Is(err, ErrStopped) {
			t.Errorf("a stopped sale: %v", err)
		}
		same(t, stopped, s.state(t))
	})
}

// TestInventory_Rename_KeyOnLastPage: the key in the buyer's value is renamed, whichever call
// has it, and its order can be released under the new names. The last call removes the mark.
func TestInventory_Rename_KeyOnLastPage(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, orders := range []int{renamePage, renamePage + 1} {
			renameKeyOnLastPage(t, rdb, orders)
		}
	})
}

func renameKeyOnLastPage(t *testing.T, rdb *redis.Client, orders int) {
	s := newShop(t, rdb, open(int64(orders), int64(orders)), 0)
	v := s.inventory(t, Config{})
	first := s.request("old", fmt.Sprint("k", orders-1), 1)
	mustBuy(t, v, first)
	for i := range orders - 1 {
		mustBuy(t, v, s.request("old", fmt.Sprint("k", i), 1))
	}
	if err := v.Rename(await.Context(t), s.item, renaming(orders), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	st := s.state(t)
	if mark, marked := st.sale["changing"]; marked {
		t.Errorf("after %d orders the sale is still marked: %s", orders, mark)
	}
	if st.idempotency[fmt.Sprint("new id", orders-1)] != "1:"+first.OrderID || len(st.idempotency) != orders {
		t.Errorf("%d orders, and the first is not under its new name", len(st.idempotency))
	}
	status, _, err := Release(await.Context(t), rdb, 1, 1, s.item, []Released{
		{Buyer: "new", IdempotencyKey: fmt.Sprint("id", orders-1), OrderID: first.OrderID, Quantity: 1},
	})
	if err != nil || status[0] != ReleaseDone {
		t.Errorf("released with %v, %v", status, err)
	}
}

// TestInventory_Rename_Merged: the orders and units of both names are kept if the new name has some.
func TestInventory_Rename_Merged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 3), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("old", "k0", 2))
		mustBuy(t, v, s.request("new", "own", 1))
		before := s.state(t)
		if err := v.Rename(await.Context(t), s.item, renaming(1), func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		after := s.state(t)
		want := map[string]string{"new id0": before.idempotency["old k0"], "new own": before.idempotency["new own"]}
		if !maps.Equal(after.idempotency, want) || !maps.Equal(after.buyers, map[string]string{"new": "3"}) {
			t.Errorf("orders %v of buyers %v, want %v of one buyer with 3 units", after.idempotency, after.buyers, want)
		}
	})
}

// TestInventory_Rename_LockLost: another process has loaded the old names before the database
// was changed. They are removed, and the sale is loaded once more, unless it was stopped.
func TestInventory_Rename_LockLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, mark := range []string{"", stoppedMark} {
			renameLockLost(t, rdb, mark)
		}
	})
}

func renameLockLost(t *testing.T, rdb *redis.Client, mark string) {
	s := newShop(t, rdb, open(10, 3), 0)
	v := s.inventory(t, Config{})
	mustBuy(t, v, s.request("old", "k0", 2))
	before := s.state(t)
	if mark != "" {
		before.sale["changing"] = mark
	}
	err := v.Rename(await.Context(t), s.item, renaming(1), func(ctx context.Context) error {
		_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, v.keys.lockKey(s.item), "another:1:x", 0)
			p.Del(ctx, v.keys.sale(s.item), v.keys.idempotency(s.item), v.keys.buyers(s.item))
			p.HSet(ctx, v.keys.sale(s.item), before.sale)
			p.HSet(ctx, v.keys.buyers(s.item), "old", "2 "+before.idempotency["old k0"]+" k0")
			return nil
		})
		return err
	})
	if err != nil {
		t.Error(err)
	}
	st := s.state(t)
	if strings.Contains(fmt.Sprint(st.idempotency, st.buyers), "old") || (len(st.sale) > 0) != (mark == stoppedMark) {
		t.Errorf("marked %q: the state %+v", mark, st)
	}
	if err := rdb.Del(await.Context(t), v.keys.lockKey(s.item)).Err(); err != nil {
		t.Fatal(err)
	}
}
