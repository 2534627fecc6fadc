package inventory

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

// The first database that uses a Redis is recorded, and no other one may use it, until its data
// is lost.
func TestCheckLineage(t *testing.T) {
	t.Parallel()
	ownEngines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		if err := MatchLineage(ctx, rdb, "ours"); err != nil {
			t.Errorf("an empty Redis: %v", err)
		}
		if n, err := rdb.Exists(ctx, lineageKey).Result(); err != nil || n != 0 {
			t.Errorf("a comparison recorded a lineage (%d, %v)", n, err)
		}
		for range 2 {
			if err := CheckLineage(ctx, rdb, "ours"); err != nil {
				t.Fatal(err)
			}
		}
		for name, check := range map[string]error{
			"check": CheckLineage(ctx, rdb, "another"), "match": MatchLineage(ctx, rdb, "another"),
		} {
			if !errors.Is(check, ErrLineage) {
				t.Errorf("%s of another database: %v, want ErrLineage", name, check)
			}
		}
		if err := MatchLineage(ctx, rdb, "ours"); err != nil {
			t.Errorf("the recorded database: %v", err)
		}
		rdb.Del(ctx, lineageKey)
		if err := CheckLineage(ctx, rdb, "another"); err != nil {
			t.Errorf("a Redis that has lost its data: %v", err)
		}
	})
}

// After a loss, the epoch is declared together with the lineage. Where another database was
// recorded meanwhile, nothing is declared, and the state is not reported as a loss.
func TestInventory_Lineage(t *testing.T) {
	t.Parallel()
	ownEngines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		v := newShop(t, rdb, open(1, 1), 0).inventory(t, Config{Lineage: "ours"})
		if err := v.Declare(ctx, 7); err != nil {
			t.Fatal(err)
		}
		if got := rdb.Get(ctx, lineageKey).Val(); got != "ours" {
			t.Errorf("recorded lineage %q, want ours", got)
		}
		if states, err := v.States(ctx); err != nil || states[0].Epoch != 7 {
			t.Errorf("states %+v, %v", states, err)
		}
		rdb.Set(ctx, lineageKey, "another", 0)
		if err := v.Declare(ctx, 8); !errors.Is(err, ErrLineage) {
			t.Errorf("declared in the Redis of another database: %v, want ErrLineage", err)
		}
		if _, err := v.States(ctx); !errors.Is(err, ErrLineage) {
			t.Errorf("states of the Redis of another database: %v, want ErrLineage", err)
		}
		if got := rdb.Get(ctx, keys{1}.epoch(0)).Val(); got != "7" {
			t.Errorf("epoch %s, want 7", got)
		}
	})
}
