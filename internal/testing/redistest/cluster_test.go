package redistest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	a, b := Cluster(t), Cluster(t)
	if !slices.Equal(a.Options().Addrs, b.Options().Addrs) || len(a.Options().Addrs) != masters {
		t.Fatalf("clients of %v and %v, want the same %d masters", a.Options().Addrs, b.Options().Addrs, masters)
	}
	ctx := await.Context(t)
	// Each node must know the whole slot map, or a redirect could lead nowhere.
	for _, addr := range a.Options().Addrs {
		shards, err := client(t, addr).ClusterShards(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		owner := map[string]int64{}
		for _, s := range shards {
			for _, r := range s.Slots {
				owner[fmt.Sprintf("127.0.0.1:%d", s.Nodes[0].Port)] += r.End - r.Start + 1
			}
		}
		for _, other := range a.Options().Addrs {
			if owner[other] < slotCount/masters {
				t.Errorf("%s says that %s owns %d slots of %d", addr, other, owner[other], slotCount)
			}
		}
	}
	for _, addr := range a.Options().Addrs {
		got, err := client(t, addr).ConfigGet(ctx, "appendonly").Result()
		if err != nil || got["appendonly"] != "no" {
			t.Errorf("appendonly of %s is %v, %v; want no", addr, got, err)
		}
	}
}

// A single-node client gets the redirect that a cluster client follows.
func TestCluster_Redirects(t *testing.T) {
	t.Parallel()
	rdb := Cluster(t)
	ctx, key := await.Context(t), Prefix(t)+"k"
	if err := rdb.Set(ctx, key, "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for _, addr := range rdb.Options().Addrs {
		err := client(t, addr).Get(ctx, key).Err()
		if to, ok := redis.IsMovedError(err); ok {
			moved++
			if got, err := client(t, to).Get(ctx, key).Result(); err != nil || got != "v" {
				t.Errorf("%s sends to %s, which says %q, %v", addr, to, got, err)
			}
		} else if err != nil {
			t.Error(err)
		}
	}
	if moved != masters-1 {
		t.Errorf("%d nodes redirect, want all but the owner", moved)
	}
}
