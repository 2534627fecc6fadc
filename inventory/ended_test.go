package inventory

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// ownEngines runs fn on an engine of each kind that no other test shares.
func ownEngines(t *testing.T, fn func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { fn(t, redistest.Embedded(t)) })
	t.Run("redis", func(t *testing.T) {
		rdb := redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
		t.Cleanup(func() {
			if err := rdb.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		fn(t, rdb)
	})
}

// TestRelease_NotNeeded: while no sale is loaded and none is being loaded, no unit has to
// return. While one may be loaded, or the data may belong to another epoch, the release has to
// be repeated.
func TestRelease_NotNeeded(t *testing.T) {
	t.Parallel()
	ownEngines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, k := await.Context(t), keys{1}
		if err := rdb.Set(ctx, keys{1}.epoch(0), 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			sale map[string]any // in place of the sale
			want ReleaseStatus
		}{
			"Missing":    {nil, ReleaseNotNeeded},
			"Unloaded":   {map[string]any{"epoch": 1, "version": "1.1.0"}, ReleaseNotNeeded},
			"Building":   {map[string]any{"building": "value"}, ReleaseNotLoaded},
			"Stopped":    {map[string]any{"changing": stoppedMark}, ReleaseNotLoaded},
			"OtherEpoch": {map[string]any{"epoch": 2, "left": 5, "version": "1.1.0"}, ReleaseNotLoaded},
		} {
			t.Run(name, func(t *testing.T) {
				s := newShop(t, rdb, open(10, 2), 0)
				v := s.inventory(t, Config{})
				r := s.request("a", "k", 2)
				mustBuy(t, v, r)
				s.commit(t)
				if err := rdb.Del(ctx, k.sale(s.item)).Err(); err != nil {
					t.Fatal(err)
				}
				if tc.sale != nil {
					if err := rdb.HSet(ctx, k.sale(s.item), tc.sale).Err(); err != nil {
						t.Fatal(err)
					}
				}
				s.cancel(r.OrderID)
				wantStatus(t, s.give(t, r), tc.want)
				// The next load finds the order closed.
				if err := v.Open(ctx, s.item); err != nil {
					t.Fatal(err)
				}
				if st := s.state(t); st.left(t) != 10 || len(st.buyers) != 0 {
					t.Errorf("%d left, buyers hold %v; want 10 and no buyers", st.left(t), st.buyers)
				}
				wantStatus(t, s.give(t, r), ReleaseRepeated)
			})
		}
		s := newShop(t, rdb, open(10, 2), 0)
		if err := rdb.Set(ctx, keys{1}.epoch(0), 2, 0).Err(); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, s.give(t, s.request("a", "k", 2)), ReleaseNotLoaded)
	})
}

// TestFree: only a sale that has ended by its own terms is removed, with all of its keys, even
// if it has the mark of a dead process.
func TestFree(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		k := keys{1}
		past, future := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
		for name, tc := range map[string]struct {
			change func(sale *Sale)
			fields map[string]any // of the sale's hash, set afterwards
			del    string         // a field that is deleted
			locked bool
			want   FreeStatus
		}{
			"Open":            {want: FreeKept},
			"EndsLater":       {change: func(s *Sale) { s.ClosesAt = future }, want: FreeKept},
			"Ended":           {change: func(s *Sale) { s.ClosesAt = past }, want: FreeDone},
			"EndedAndLocked":  {change: func(s *Sale) { s.ClosesAt = past }, locked: true, want: FreeDone},
			"Closed":          {change: func(s *Sale) { s.Control = "closed" }, want: FreeDone},
			"ClosedEarly":     {change: func(s *Sale) { s.Control, s.ClosesAt = "closed", future }, want: FreeDone},
			"Paused":          {change: func(s *Sale) { s.Control = "paused" }, want: FreeKept},
			"Stopped":         {fields: map[string]any{"control": "closed", "changing": stoppedMark}, want: FreeKept},
			"BeingChanged":    {fields: map[string]any{"control": "closed", "changing": "value"}, locked: true, want: FreeKept},
			"ChangeLeftHalf":  {fields: map[string]any{"control": "closed", "changing": "value"}, want: FreeDone},
			"BeingBuilt":      {fields: map[string]any{"building": "value"}, del: "left", locked: true, want: FreeKept},
			"BuiltHalf":       {fields: map[string]any{"building": "value"}, del: "left", want: FreeDone},
			"NotWhole":        {del: "left", want: FreeDone},
			"NotWholeToBuild": {del: "left", locked: true, want: FreeKept},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, sale := await.Context(t), open(10, 2)
				s := newShop(t, rdb, sale, 0)
				v := s.inventory(t, Config{})
				mustBuy(t, v, s.request("a", "k", 2))
				if tc.change != nil {
					tc.change(&sale)
				}
				s.source.set(func(src *stored) { src.sales[s.item] = sale })
				if err := v.Open(ctx, s.item); err != nil {
					t.Fatal(err)
				}
				if tc.fields != nil {
					if err := rdb.HSet(ctx, k.sale(s.item), tc.fields).Err(); err != nil {
						t.Fatal(err)
					}
				}
				if tc.del != "" {
					if err := rdb.HDel(ctx, k.sale(s.item), tc.del).Err(); err != nil {
						t.Fatal(err)
					}
				}
				await.True(t, "the lock to be free", func() bool { return rdb.Exists(ctx, k.lockKey(s.item)).Val() == 0 })
				if tc.locked {
					if err := rdb.Set(ctx, k.lockKey(s.item), "another holder", time.Hour).Err(); err != nil {
						t.Fatal(err)
					}
				}
				before := s.state(t)
				status, err := Free(ctx, rdb, 1, []string{s.item})
				if err != nil || len(status) != 1 || status[0] != tc.want {
					t.Fatalf("free: %v, %v, want %v", status, err, tc.want)
				}
				if tc.want == FreeKept {
					same(t, before, s.state(t))
					return
				}
				n, err := rdb.Exists(ctx, k.sale(s.item), k.idempotency(s.item), k.buyers(s.item), k.accepted(s.item)).Result()
				if err != nil || n != 0 {
					t.Errorf("%d keys are left, %v", n, err)
				}
				if !tc.locked {
					if again, err := Free(ctx, rdb, 1, []string{s.item}); err != nil || again[0] != FreeNothing {
						t.Errorf("free again: %v, %v", again, err)
					}
				}
			})
		}
	})
}

// TestFree_WrongType: a sale that Redis cannot remove does not affect the others.
func TestFree_WrongType(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, k := await.Context(t), keys{1}
		bad, good := newShop(t, rdb, open(1, 1), 0).item, newShop(t, rdb, open(1, 1), 0).item
		for key, set := range map[string]func(key string) error{
			k.sale(bad):  func(key string) error { return rdb.Set(ctx, key, "text", 0).Err() },
			k.sale(good): func(key string) error { return rdb.HSet(ctx, key, "left", 1, "control", "closed").Err() },
		} {
			if err := set(key); err != nil {
				t.Fatal(err)
			}
		}
		status, err := Free(ctx, rdb, 1, []string{bad, good})
		if !errors.Is(err, ErrUnavailable) || !slices.Equal(status, []FreeStatus{FreeKept, FreeDone}) {
			t.Errorf("%v, %v", status, err)
		}
	})
}

// TestFree_Memory: a real server frees the memory of ended sales.
func TestFree_Memory(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	ctx := await.Context(t)
	used := func() int64 {
		t.Helper()
		n, err := rdb.InfoMap(ctx, "memory").Result()
		if err != nil {
			t.Fatal(err)
		}
		used, err := strconv.ParseInt(n["Memory"]["used_memory"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return used
	}
	const sales, orders = 10, 3000
	var items []string
	before := used()
	for range sales {
		sale := open(orders, 1)
		sale.ClosesAt = time.Now().Add(-time.Minute)
		s := newShop(t, rdb, sale, 0)
		s.source.set(func(src *stored) {
			for i := range orders {
				src.past[s.item] = append(src.past[s.item], Holding{
					Buyer: fmt.Sprintf("buyer-%d", i), IdempotencyKey: "key", OrderID: fmt.Sprintf("0192f0c1-7a5e-7c11-8000-%012d", i), Quantity: 1, Counts: true,
				})
			}
		})
		if err := s.inventory(t, Config{}).Open(ctx, s.item); err != nil {
			t.Fatal(err)
		}
		items = append(items, s.item)
	}
	full := used()
	if full-before < sales*orders*100 {
		t.Fatalf("%d orders take %d bytes; the test measures nothing", sales*orders, full-before)
	}
	if _, err := Free(ctx, rdb, 1, items); err != nil {
		t.Fatal(err)
	}
	// The server frees unlinked keys in a thread of its own. Its connections and scripts use
	// some memory as well.
	await.True(t, "the memory to be freed", func() bool { return used()-before < (full-before)/4 })
	t.Logf("%d bytes per order, %d of %d bytes are left", (full-before)/(sales*orders), used()-before, full-before)
}
