package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// mustExamine examines the shop's item and returns what look read.
func mustExamine(t *testing.T, v *Inventory, item string, rebuild bool) Live {
	t.Helper()
	var live Live
	err := v.Examine(await.Context(t), item, func(ctx context.Context, x *Examined) (_ bool, err error) {
		live, err = x.Live(ctx)
		return rebuild, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return live
}

func TestInventory_Examine(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		sale := open(10, 3)
		sale.OpensAt = sale.OpensAt.Truncate(time.Millisecond).UTC()
		sale.ClosesAt = sale.OpensAt.Add(48 * time.Hour)
		sale.Version, sale.Sequence = 7, 7<<50
		s := newShop(t, rdb, sale, 0)
		v := s.inventory(t, Config{})
		if live := mustExamine(t, v, s.item, false); live != (Live{}) {
			t.Errorf("a sale that is not loaded: %+v", live)
		}
		if st := s.state(t); len(st.sale) != 0 {
			t.Errorf("a look has loaded %v", st.sale)
		}
		if live := mustExamine(t, v, s.item, true); live != (Live{}) {
			t.Errorf("before the rebuild: %+v", live)
		}
		want := Live{Loaded: true, Sale: sale}
		want.Sequence = sale.Sequence + sequenceBlock
		if live := mustExamine(t, v, s.item, false); live != want {
			t.Errorf("rebuilt: %+v, want %+v", live, want)
		}
		mustBuy(t, v, s.request("u", "k", 2))
		want.Left = 8
		want.Sequence++
		if lives, err := v.Lives(await.Context(t), []string{"none-" + s.item, s.item}); err != nil || !slices.Equal(lives, []Live{{}, want}) {
			t.Errorf("many: %+v, %v", lives, err)
		}
		if live, err := v.Live(await.Context(t), s.item); err != nil || live != want {
			t.Errorf("after a purchase: %+v, %v, want %+v", live, err, want)
		}
		before := s.state(t)
		err := v.Examine(await.Context(t), s.item, func(context.Context, *Examined) (bool, error) { return true, errTest })
		if !errors.Is(err, errTest) {
			t.Errorf("%v, want the look's error", err)
		}
		same(t, before, s.state(t))
		// A rebuild corrects the stock and a count, and removes the key of an order that does
		// not exist.
		for kind, pair := range map[string][2]string{"sale": {"left", "3"}, "buyers": {"u", "3 2:other k"}, "idempotency": {"w k", "1:ghost"}} {
			key := keys{1}.tag(0) + kind + ":" + s.item
			if err := rdb.HSet(await.Context(t), key, pair[0], pair[1]).Err(); err != nil {
				t.Fatal(err)
			}
		}
		mustExamine(t, v, s.item, true)
		if st := s.audit(t); st.left(t) != 8 {
			t.Errorf("left is %d after the rebuild, want 8", st.left(t))
		}
	})
}

// TestInventory_Examine_Locked: no process sells anything during look and the rebuild after
// it.
func TestInventory_Examine_Locked(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v, other := s.inventory(t, Config{}), s.inventory(t, Config{})
		mustBuy(t, v, s.request("first", "k", 1))
		_, waitersKey := v.locks.GuardKeys(v.keys.lock(s.item))
		results := make(chan Outcome, 1)
		waits := func() {
			await.True(t, "the other process to wait for the lock", func() bool {
				n, err := rdb.ZCard(await.Context(t), waitersKey).Result()
				return err == nil && n == 1
			})
			if len(results) > 0 {
				t.Error("an item was sold under a look")
			}
		}
		s.source.set(func(f *stored) { f.before = hook(waits) })
		err := v.Examine(await.Context(t), s.item, func(context.Context, *Examined) (bool, error) {
			r := s.request("u", "k", 1)
			r.Done = func(o Outcome) { results <- o }
			if err := other.Submit(r); err != nil {
				t.Error(err)
			}
			waits()
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case o := <-results:
			if o != (Outcome{}) {
				t.Errorf("after the look: %+v, want accepted", o)
			}
		case <-time.After(limit):
			t.Fatal("the purchase was not answered")
		}
		if st := s.audit(t); st.left(t) != 8 {
			t.Errorf("left is %d, want 8", st.left(t))
		}
	})
}

func TestInventory_Examine_Errors(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("u", "k", 1))
		// The lock is lost before look ends: its result is invalid, and nothing is rebuilt.
		before := s.state(t)
		err := v.Examine(await.Context(t), s.item, func(ctx context.Context, _ *Examined) (bool, error) {
			if err := rdb.Del(ctx, v.keys.lockKey(s.item)).Err(); err != nil {
				t.Error(err)
			}
			return true, nil
		})
		if err == nil {
			t.Error("a rebuild without the lock: no error")
		}
		same(t, before, s.state(t))
		// A rebuild that fails leaves no sale; the next purchase loads it.
		failing := true
		s.source.set(func(f *stored) {
			f.after = func(context.Context) error {
				if failing {
					return errTest
				}
				return nil
			}
		})
		err = v.Examine(await.Context(t), s.item, func(context.Context, *Examined) (bool, error) { return true, nil })
		if !errors.Is(err, ErrRebuilding) || !errors.Is(err, errTest) {
			t.Errorf("a rebuild that fails: %v, want ErrRebuilding and its cause", err)
		}
		if live, err := v.Live(await.Context(t), s.item); err != nil || live.Loaded {
			t.Errorf("after it: %+v, %v", live, err)
		}
		s.source.set(func(*stored) { failing = false })
		mustBuy(t, v, s.request("w", "k", 1))
		if st := s.audit(t); st.left(t) != 8 {
			t.Errorf("left is %d, want 8", st.left(t))
		}
		s.source.set(func(f *stored) { f.err = errTest })
		if _, err := v.Live(await.Context(t), s.item); !errors.Is(err, errTest) {
			t.Errorf("without the database: %v", err)
		}
		if err := v.Examine(await.Context(t), s.item, nil); !errors.Is(err, errTest) {
			t.Errorf("without the database: %v", err)
		}
		s.source.set(func(f *stored) { f.err = nil })
	})
}

// TestInventory_Live_Damaged: a sale that purchases treat as missing is not loaded, and one
// that no purchase can read is damaged.
func TestInventory_Live_Damaged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, q := range []struct {
			field, value string // an empty value: the field is missing
			want         Live   // Sale is not compared
		}{
			{"epoch", "", Live{}}, {"epoch", "2", Live{}}, {"left", "", Live{}}, {"version", "", Live{}}, {"changing", "x", Live{}},
			{"left", "many", Live{Loaded: true, Damaged: true}}, {"per_user_limit", "1.5", Live{Loaded: true, Damaged: true}},
			{"opens_ms", "now", Live{Loaded: true, Damaged: true}}, {"closes_ms", "-", Live{Loaded: true, Damaged: true}},
			{"version", "7", Live{Loaded: true, Damaged: true}}, {"version", "x.1.0", Live{Loaded: true, Damaged: true}},
			{"fence", "9000000000000000", Live{Loaded: true, Damaged: true}},
			{"fence", "", Live{Loaded: true}}, {"fence", "x", Live{Loaded: true}}, {"control", "", Live{Loaded: true}},
		} {
			s := newShop(t, rdb, open(10, 1), 0)
			v := s.inventory(t, Config{})
			mustBuy(t, v, s.request("u", "k", 1))
			var err error
			if q.value == "" {
				err = rdb.HDel(await.Context(t), v.keys.sale(s.item), q.field).Err()
			} else {
				err = rdb.HSet(await.Context(t), v.keys.sale(s.item), q.field, q.value).Err()
			}
			if err != nil {
				t.Fatal(err)
			}
			live := mustExamine(t, v, s.item, false)
			if live.Sale = (Sale{}); live != q.want {
				t.Errorf("%s %q: %+v, want %+v", q.field, q.value, live, q.want)
			}
			if q.want.Damaged {
				mustExamine(t, v, s.item, true)
			}
			mustBuy(t, v, s.request("w", "k", 1))
		}
	})
}

// TestInventory_Records reads what purchases and releases have written, and values that no
// script writes.
func TestInventory_Records(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		const many = 2*recordsPage + 7
		s := newShop(t, rdb, open(10*many, 9), 0)
		v := s.inventory(t, Config{})
		held := make([]Holding, many)
		for i := range held {
			held[i] = Holding{Buyer: fmt.Sprintf("u%04d", i), IdempotencyKey: "k", OrderID: fmt.Sprintf("o%04d", i), Quantity: 2, Counts: i > 0}
		}
		// Two buyers have further orders.
		held[many-2].Buyer, held[many-1].Buyer = held[1].Buyer, held[3].Buyer
		held[many-2].IdempotencyKey, held[many-1].IdempotencyKey = "k2", "k 2"
		s.source.set(func(f *stored) { f.past[s.item] = held })
		mustExamine(t, v, s.item, true)
		var entries []Entry
		var counts []BuyerCount
		page := 0
		err := errors.Join(
			v.EachEntry(await.Context(t), s.item, func(p []Entry) error {
				page = max(page, len(p))
				entries = append(entries, p...)
				return nil
			}),
			v.EachCount(await.Context(t), s.item, func(p []BuyerCount) error {
				page = max(page, len(p))
				counts = append(counts, p...)
				return nil
			}))
		if err != nil || page > recordsPage {
			t.Fatalf("pages of up to %d, %v", page, err)
		}
		byOrder := func(a, b Entry) int { return strings.Compare(a.OrderID, b.OrderID) }
		slices.SortFunc(entries, byOrder)
		entries = slices.Compact(entries)
		slices.SortFunc(counts, func(a, b BuyerCount) int { return strings.Compare(a.Buyer, b.Buyer) })
		counts = slices.Compact(counts)
		if len(entries) != many || len(counts) != many-3 || counts[0] != (BuyerCount{"u0001", 4}) {
			t.Fatalf("%d entries, %d counts", len(entries), len(counts))
		}
		keys := make([]EntryKey, many)
		buyers := make([]string, many)
		for i, e := range entries {
			keys[i], buyers[i] = e.EntryKey, e.Buyer
			want := Entry{EntryKey{held[i].Buyer, held[i].IdempotencyKey}, true, held[i].OrderID, 2, i == 0}
			if e != want {
				t.Errorf("entry %+v, want %+v", e, want)
			}
		}
		again, err := v.Entries(await.Context(t), s.item, append(keys, EntryKey{"stranger", "k"}))
		if err != nil || !slices.Equal(again[:many], entries) || again[many] != (Entry{EntryKey: EntryKey{"stranger", "k"}}) {
			t.Errorf("entries by key: %d, %v", len(again), err)
		}
		units, err := v.Counts(await.Context(t), s.item, buyers)
		if err != nil || len(units) != many || units[0] != 0 || units[1] != 4 || units[2] != 2 || units[many-1] != 4 {
			t.Errorf("counts by buyer: %v, %v", units, err)
		}
		if err := v.EachEntry(await.Context(t), s.item, func([]Entry) error { return errTest }); !errors.Is(err, errTest) {
			t.Errorf("%v, want the caller's error", err)
		}
	})
}

func TestParseEntry(t *testing.T) {
	t.Parallel()
	key := EntryKey{"u", "k"}
	for value, want := range map[string]Entry{
		"2:o":   {key, true, "o", 2, false},
		"2:o:r": {key, true, "o", 2, true},
		"":      {key, true, "", 0, false},
		"2":     {key, true, "", 2, false},
		"2:":    {key, true, "", 2, false},
		"-2:o":  {key, true, "", 0, false},
		"0:o":   {key, true, "", 0, false},
		"x:o:r": {key, true, "", 0, true},
	} {
		if got := parseEntry(key, value); got != want {
			t.Errorf("%q: %+v, want %+v", value, got, want)
		}
	}
	for value, want := range map[string]Entry{
		"2 2:o k":   {key, true, "o", 2, false},
		"0 2:o:r k": {key, true, "o", 2, true},
		"1 1:o k l": {EntryKey{"u", "k l"}, true, "o", 1, false},
		"":          {EntryKey{"u", ""}, true, "", 0, false},
		"2":         {EntryKey{"u", ""}, true, "", 0, false},
	} {
		if _, got := parseBuyer("u", value); got != want {
			t.Errorf("%q: %+v, want %+v", value, got, want)
		}
	}
	for value, want := range map[string]int64{"0": 0, "7 7:o k": 7, "-1 1:o k": -1, "": -1, "1.5": -1} {
		if got, _ := parseBuyer("u", value); got != (BuyerCount{"u", want}) {
			t.Errorf("%q: %+v, want %d", value, got, want)
		}
	}
}

// TestInventory_Held counts what the purchase script counts: not the units of released orders.
func TestInventory_Held(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(9, 4), 0)
		v := s.inventory(t, Config{})
		want := func(buyer string, units int64) {
			t.Helper()
			if n, err := v.Held(await.Context(t), s.item, buyer); n != units || err != nil {
				t.Errorf("%s holds %d, %v; want %d", buyer, n, err, units)
			}
		}
		want("u1", 0) // the sale is not loaded
		first := s.request("u1", "k1", 2)
		mustBuy(t, v, first)
		mustBuy(t, v, s.request("u1", "k2", 1))
		want("u1", 3)
		want("u2", 0)
		s.give(t, first)
		want("u1", 1)
		if err := rdb.HSet(await.Context(t), v.keys.buyers(s.item), "u3", "damaged").Err(); err != nil {
			t.Fatal(err)
		}
		if n, err := v.Held(await.Context(t), s.item, "u3"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a damaged count: %d, %v", n, err)
		}
	})
}
