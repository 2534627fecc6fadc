package redistest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

func TestClusterServers_SlotOf(t *testing.T) {
	t.Parallel()
	s, ctx := OwnCluster(t), await.Context(t)
	// The first value is from the Redis Cluster specification.
	for key, want := range map[string]int{"123456789": 0x31C3, "a{123456789}b": 0x31C3} {
		if got, err := s.SlotOf(ctx, key); err != nil || got != want {
			t.Errorf("slot of %q is %d, %v; want %d", key, got, err, want)
		}
	}
}

func TestClusterServers_MoveSlot(t *testing.T) {
	t.Parallel()
	s, ctx := OwnCluster(t), await.Context(t)
	rdb := s.Client(t)
	const keys = 3*moveBatch + 1
	key := func(i int) string { return fmt.Sprintf("{tag}%d", i) }
	for i := range keys {
		if err := rdb.Set(ctx, key(i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	slot, err := s.SlotOf(ctx, "{tag}")
	if err != nil {
		t.Fatal(err)
	}
	// A full round: three moves bring the slot back.
	for range masters {
		from, err := s.Owner(ctx, slot)
		if err != nil {
			t.Fatal(err)
		}
		called := 0
		err = s.MoveSlot(ctx, slot, func() {
			called++
			old := client(t, from.Addr())
			if got, err := old.Get(ctx, key(0)).Result(); err != nil || got != "0" {
				t.Errorf("before the first key moved, the owner says %q, %v", got, err)
			}
			if _, ok := redis.IsAskError(old.Get(ctx, "{tag}absent").Err()); !ok {
				t.Error("the owner does not answer ASK for a key it does not hold")
			}
			if err := rdb.Set(ctx, "{tag}new", "n", 0).Err(); err != nil {
				t.Errorf("a new key during the move: %v", err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if called != 1 {
			t.Errorf("between was called %d times", called)
		}
		to, err := s.Owner(ctx, slot)
		if err != nil {
			t.Fatal(err)
		}
		if to == from {
			t.Errorf("%s still owns the slot", from.Addr())
		}
		if _, ok := redis.IsMovedError(client(t, from.Addr()).Get(ctx, key(0)).Err()); !ok {
			t.Error("the former owner does not send to the new one")
		}
		for i := range keys {
			if got, err := rdb.Get(ctx, key(i)).Int(); err != nil || got != i {
				t.Errorf("after the move %s is %d, %v", key(i), got, err)
			}
		}
		if err := rdb.Del(ctx, "{tag}new").Err(); err != nil {
			t.Error(err)
		}
	}
}

// Every increment counts once, no matter which node holds the key.
func TestClusterServers_MoveSlot_UnderLoad(t *testing.T) {
	t.Parallel()
	s, ctx := OwnCluster(t), await.Context(t)
	rdb := s.Client(t)
	slot, err := s.SlotOf(ctx, "{load}")
	if err != nil {
		t.Fatal(err)
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	started := make(chan struct{}, 4)
	done := make([]int, cap(started))
	for w := range done {
		writers.Go(func() {
			for i := 0; writing.Err() == nil; i++ {
				key := fmt.Sprintf("{load}%d:%d", w, i%20)
				if err := incrTwice.Run(ctx, rdb, []string{key}).Err(); err != nil {
					t.Errorf("increment: %v", err)
				}
				if done[w]++; done[w] == 10 {
					started <- struct{}{}
				}
			}
		})
	}
	for range done {
		<-started
	}
	for range masters + 1 {
		if err := s.MoveSlot(ctx, slot, nil); err != nil {
			t.Error(err)
		}
	}
	stop()
	writers.Wait()
	for w, want := range done {
		sum := 0
		for i := range 20 {
			n, err := rdb.Get(ctx, fmt.Sprintf("{load}%d:%d", w, i)).Int()
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Error(err)
			}
			sum += n
		}
		if sum != 2*want {
			t.Errorf("writer %d: counted %d, want %d", w, sum, 2*want)
		}
	}
}

// A master that is down makes its slots and the whole cluster unavailable; after a restart on
// its port it serves them again.
func TestClusterServers_Nodes(t *testing.T) {
	t.Parallel()
	s, ctx := OwnCluster(t), await.Context(t)
	rdb := s.Client(t)
	victim := s.Nodes()[1]
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	other := client(t, s.Addrs()[0])
	state := func() string {
		info, err := other.ClusterInfo(ctx).Result()
		if err != nil {
			t.Error(err)
		}
		return infoField(info, "cluster_state")
	}
	await.True(t, "the others see the failure", func() bool { return state() == "fail" })
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the cluster serves again", func() bool { return state() == "ok" })
	for i := range 30 {
		key := fmt.Sprint("{", i, "}")
		await.True(t, "each master is written to", func() bool { return rdb.Set(ctx, key, i, 0).Err() == nil })
	}
}
