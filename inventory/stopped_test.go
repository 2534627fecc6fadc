package inventory

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestStop: a stopped sale keeps its values, whatever would drop another sale, until Resume, which
// drops no other.
func TestStop(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 3), 0)
		v := s.inventory(t, Config{})
		ctx, items := await.Context(t), []string{s.item}
		mustBuy(t, v, s.request("u", "k", 2))
		resume := func() {
			t.Helper()
			if err := Resume(ctx, rdb, 1, s.item); err != nil {
				t.Fatal(err)
			}
		}
		before := s.state(t)
		resume()
		same(t, before, s.state(t))

		if err := rdb.HSet(ctx, v.keys.sale(s.item), "changing", "another:1:x").Err(); err != nil {
			t.Fatal(err)
		}
		if err := Stop(ctx, rdb, 1, items); err != nil {
			t.Fatal(err)
		}
		before = s.state(t)
		for what, drop := range map[string]func() error{
			"Invalidate": func() error { return Invalidate(ctx, rdb, 1, items) },
			"Unload":     func() error { return Unload(ctx, rdb, 1, s.item) },
			"Void":       func() error { return v.Void(ctx, 2, items) },
		} {
			if err := drop(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		same(t, before, s.state(t))
		if st, err := StoppedSale(ctx, rdb, 1, s.item); err != nil || !st.Whole || !st.Interrupted || st.Left != 8 {
			t.Errorf("%+v, %v, want 8 left, whole and interrupted", st, err)
		}
		resume()
		if st := s.state(t); len(st.sale) != 0 {
			t.Errorf("resumed, and the sale is %v", st.sale)
		}
	})
}

// TestClaimScript: a rebuild claims a missing sale and one that another has claimed, but none that is
// being loaded.
func TestClaimScript(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		key := newShop(t, rdb, open(1, 1), 0).item
		for building, want := range map[string]int{"": 1, claimPrefix + "other": 1, "123": 0} {
			if building != "" {
				if err := rdb.HSet(await.Context(t), key, "building", building).Err(); err != nil {
					t.Fatal(err)
				}
			}
			got, err := claimScript.Run(await.Context(t), rdb, []string{key}, claimPrefix+"own").Int()
			if err != nil || got != want {
				t.Errorf("a sale with the field %q: %d, %v, want %d", building, got, err, want)
			}
			if err := rdb.Del(await.Context(t), key).Err(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestNoteRevisions_Expires: the first revisions of a lineage expire, although no process keeps them, and
// later ones keep them for longer.
func TestNoteRevisions_Expires(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, lineage, item := await.Context(t), t.Name(), "item"
		key := keys{1}.committed(item, lineage)
		for round := range int64(2) {
			pipe := rdb.Pipeline()
			NoteRevisions(ctx, pipe, 1, lineage, map[string]int64{item: round})
			if _, err := pipe.Exec(ctx); err != nil {
				t.Fatal(err)
			}
			left, err := rdb.TTL(ctx, key).Result()
			if err != nil || left <= revisionsLife-time.Hour || left > revisionsLife {
				t.Errorf("round %d: the key expires in %v, %v; want about %v", round, left, err, revisionsLife)
			}
			if err := rdb.Expire(ctx, key, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if revisions, err := Revisions(ctx, rdb, 1, lineage, []string{item}); err != nil || revisions[0] != 1 {
			t.Errorf("revisions %v, %v, want 1", revisions, err)
		}
	})
}
