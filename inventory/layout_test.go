package inventory

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// writeOlderLayout rewrites the sale as a version of the program did that stored the units
// and the orders of a buyer apart.
func (s *shop) writeOlderLayout(t testing.TB) {
	t.Helper()
	ctx, k := await.Context(t), keys{1}
	buyers, err := s.rdb.HGetAll(ctx, k.buyers(s.item)).Result()
	if err != nil || len(buyers) == 0 {
		t.Fatalf("%d buyers, %v", len(buyers), err)
	}
	limit, err := s.rdb.HGet(ctx, k.sale(s.item), "per_user_limit").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for buyer, value := range buyers {
			f := strings.SplitN(value, " ", 3)
			p.HSet(ctx, k.idempotency(s.item), buyer+" "+f[2], f[1])
			p.HSet(ctx, k.buyers(s.item), buyer, f[0])
			if f[0] == "0" {
				p.HDel(ctx, k.buyers(s.item), buyer)
			}
		}
		p.HDel(ctx, k.sale(s.item), "per_user_limit")
		p.HSet(ctx, k.sale(s.item), "limit", limit)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestInventory_OlderLayout: whatever happens first to a sale in the layout of an older
// version, a repeat gets its order, and units are neither lost nor sold twice.
func TestInventory_OlderLayout(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(t *testing.T, s *shop, v *Inventory){
		"Purchase": func(*testing.T, *shop, *Inventory) {},
		"Change": func(t *testing.T, s *shop, v *Inventory) {
			commit := func(context.Context) (int64, error) {
				s.source.set(func(src *stored) {
					sale := src.sales[s.item]
					sale.PerUserLimit, sale.Version = 3, 2
					src.sales[s.item] = sale
				})
				return 2, nil
			}
			if err := v.Change(await.Context(t), s.item, Change{PerUserLimit: ptr(int64(3))}, commit); err != nil {
				t.Error(err)
			}
		},
		"Rename": func(t *testing.T, s *shop, v *Inventory) {
			other := func(context.Context) (Renaming, error) {
				return Renaming{Buyer: "c", NewBuyer: "x", Keys: []RenamedKey{{"k", "id"}}}, nil
			}
			if err := v.Rename(await.Context(t), s.item, other, func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				s := newShop(t, rdb, open(10, 2), 0)
				v := s.inventory(t, Config{})
				a, b := s.request("a", "k", 1), s.request("b", "k", 2)
				mustBuy(t, v, a)
				mustBuy(t, v, b)
				mustBuy(t, v, s.request("c", "k", 1))
				s.commit(t)
				s.cancel(a.OrderID)
				wantStatus(t, s.give(t, a), ReleaseDone)
				s.writeOlderLayout(t)
				wantStatus(t, s.give(t, b), ReleaseNotLoaded)
				first(t, s, v)
				for _, r := range []*Request{a, b} {
					if o := buy(t, v, s.request(r.Buyer, "k", r.Quantity)); o != (Outcome{ReplayOf: r.OrderID}) {
						t.Errorf("repeat by %s: %+v, want order %s", r.Buyer, o, r.OrderID)
					}
				}
				if left, err := v.Left(await.Context(t), []string{s.item}); err != nil || left[0] != 7 {
					t.Errorf("left %v, %v, want 7", left, err)
				}
			})
		})
	}
}

// TestInventory_Warm_NotSellable: a sale that purchases would load is loaded by Warm, too.
func TestInventory_Warm_NotSellable(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("a", "k", 1))
		sale := v.keys.sale(s.item)
		for name, spoil := range map[string]func(ctx context.Context) error{
			"older layout":    func(ctx context.Context) error { return rdb.HDel(ctx, sale, "per_user_limit").Err() },
			"marked":          func(ctx context.Context) error { return rdb.HSet(ctx, sale, "changing", "another").Err() },
			"another's epoch": func(ctx context.Context) error { return rdb.HSet(ctx, sale, "epoch", 5).Err() },
		} {
			if err := spoil(await.Context(t)); err != nil {
				t.Fatal(err)
			}
			if err := v.Warm(await.Context(t), s.item); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if st := s.audit(t); st.sale["per_user_limit"] != "2" || st.sale["changing"] != "" || st.sale["epoch"] != "1" || st.left(t) != 9 {
				t.Errorf("%s: the sale is %v", name, st.sale)
			}
		}
	})
}

// TestRelease_BuyerDamaged: nothing is released while a buyer's value cannot be read.
func TestRelease_BuyerDamaged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(2, 1), 0)
		v := s.inventory(t, Config{})
		r := s.request("u", "k", 1)
		mustBuy(t, v, r)
		if err := rdb.HSet(await.Context(t), v.keys.buyers(s.item), "u", "many").Err(); err != nil {
			t.Fatal(err)
		}
		before := contents(t, s)
		wantStatus(t, s.give(t, r), ReleaseNotLoaded)
		if after := contents(t, s); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("changed from %v to %v", before, after)
		}
	})
}
