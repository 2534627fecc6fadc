package store

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order/ordertest"
)

// failsOnce is a hook of a Redis client that fails its first pipeline.
type failsOnce struct{ failed atomic.Bool }

func (f *failsOnce) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (f *failsOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (f *failsOnce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !f.failed.Swap(true) {
			return ordertest.ErrTest
		}
		return next(ctx, cmds)
	}
}

// TestHighWater_Run_Repeated: a check of all items that fails is repeated. Only such a check ends
// the stop of the items that were found behind before the first write on a server.
func TestHighWater_Run_Repeated(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 10, 5))
	rdb := redistest.Redis(t)
	var failures atomic.Int64
	h, err := NewHighWater(await.Context(t), HighWaterConfig{
		Store: s, Redis: rdb, Partitions: 1, OnError: func(error) { failures.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	rdb.AddHook(new(failsOnce))
	h.urgent.Store(&map[string]bool{"item": true})
	h.Nudge()
	ctx, end := context.WithCancel(await.Context(t))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx, time.Millisecond)
	}()
	await.True(t, "the item is not stopped", func() bool { return !h.IsStopped("item") })
	end()
	<-ended
	if failures.Load() == 0 {
		t.Error("no check has failed")
	}
}
