package store

import (
	"context"
	"fmt"
	"io"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/bucket"
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

// TestHighWater_Pending: the revisions of committed transactions wait to be recorded, the highest of each item, also after
// Redis has failed. Those of a transaction that was rolled back, and of items that do not exist, would stop sales.
func TestHighWater_Pending(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := newStore(t)
	faults := BreakCommits(t, s)
	mustInsert(t, s, ordertest.NewItem("item", 10, 5))
	rdb := redistest.Redis(t)
	h, err := NewHighWater(await.Context(t), HighWaterConfig{Store: s, Redis: rdb, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	want := func(name string, want map[string]int64) {
		t.Helper()
		if got := h.Take(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	faults.Strike(CommitFault{false, io.ErrUnexpectedEOF})
	if _, err := s.Commit(await.Context(t), ordertest.Distinct("o", "item", 1)); err == nil {
		t.Error("a commit that failed: no error")
	}
	want("rolled back", nil)
	mustCommit(t, s, ordertest.Bought("o", "item", "u", "k", 1), ordertest.Bought("n", "none", "u", "k", 1))
	want("committed", map[string]int64{"item": 1})
	want("taken", nil)
	h.Committed(map[string]int64{"item": 5, "other": 1})
	h.Committed(map[string]int64{"item": 4})
	rdb.AddHook(new(failsOnce))
	h.Note(await.Context(t))
	want("Redis failed", map[string]int64{"item": 5, "other": 1})
}

// TestHighWater_Check_Pages: each check compares a page of items, from the first one again after the last. An item of
// another page stays stopped, and an item that is found behind during a check of all is stopped after it.
func TestHighWater_Check_Pages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var all sync.WaitGroup
	for i := range revisionPage + 1 {
		all.Go(func() { // many in one transaction
			if _, err := s.InsertItem(await.Context(t), ordertest.NewItem(fmt.Sprintf("item-%03d", i), 10, 5)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	rdb := redistest.Redis(t)
	ctx := await.Context(t)
	h, err := NewHighWater(ctx, HighWaterConfig{Store: s, Redis: rdb, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Check(ctx); err != nil || h.AnyStopped() || h.AllStopped() {
		t.Fatalf("stopped: %v, %v", h.Stopped(), err)
	}
	mark := func(id string) {
		t.Helper()
		if err := s.Writer().Exec("UPDATE items SET behind = 9 WHERE id = ?", id).Error; err != nil {
			t.Fatal(err)
		}
	}
	mark("item-000")
	for i := range 4 {
		if err := h.check(ctx, false); err != nil || len(h.Stopped()) != 1 {
			t.Errorf("check %d: stopped %v, %v, want the first item", i, h.Stopped(), err)
		}
	}
	mark("item-001")
	for range 2 {
		if err := h.check(ctx, false); err != nil {
			t.Fatal(err)
		}
	}
	if !h.IsStopped("item-001") || h.AllStopped() {
		t.Errorf("stopped: %v, want the second item, too", h.Stopped())
	}
	rdb.AddHook(&during{do: func() { h.urgent.Store(&map[string]bool{"item-002": true}) }})
	if err := h.Check(ctx); err != nil || !h.IsStopped("item-002") {
		t.Errorf("an item that was found during the check is not stopped, %v", err)
	}
}

// during is a hook of a Redis client that calls a function in each pipeline.
type during struct{ do func() }

func (d *during) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (d *during) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (d *during) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		d.do()
		return next(ctx, cmds)
	}
}

// TestWithBuckets_Decided: an operator decides after an item in buckets was compared. No bucket
// counts as behind for a state of another one from before.
func TestWithBuckets_Decided(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		row  revisionRow // of each bucket, when all are read
		want int
	}{
		"not decided": {revisionRow{Revision: 5, Behind: 9}, 4},
		"not marked":  {revisionRow{Revision: 5}, 4},
		"decided":     {revisionRow{Revision: 10}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := []Behind{{ItemID: "item.2", Database: 5, Redis: 9}}
			behind, err := withBuckets(await.Context(t), found, func(_ context.Context, ids []string) (map[string]revisionRow, error) {
				rows := make(map[string]revisionRow)
				for _, id := range ids {
					row := c.row
					if row.ID = id; id == "item" {
						row.Buckets = 4
					}
					rows[id] = row
				}
				return rows, nil
			})
			if err != nil || len(behind) != c.want {
				t.Errorf("behind %+v, %v, want %d", behind, err, c.want)
			}
		})
	}
}

// reads is a hook of a Redis client that counts the marks that are read.
type reads struct{ n atomic.Int64 }

func (r *reads) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (r *reads) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (r *reads) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			if c.Name() == "zscore" {
				r.n.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}

// TestHighWater_Check_Stopped: a check of many stopped items in buckets reads each mark about once,
// and not all buckets of an item for each page.
func TestHighWater_Check_Stopped(t *testing.T) {
	t.Parallel()
	const items, buckets = 40, bucket.Max
	s := newStore(t)
	for i := range items {
		n := ordertest.NewItem(fmt.Sprint("item-", i), 1000, 5)
		n.Buckets = buckets
		mustInsert(t, s, n)
	}
	if err := s.Writer().Exec("UPDATE items SET behind = 9").Error; err != nil {
		t.Fatal(err)
	}
	rdb := redistest.Redis(t)
	ctx := await.Context(t)
	h, err := NewHighWater(ctx, HighWaterConfig{Store: s, Redis: rdb, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Check(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(h.Stopped()); n != items*buckets {
		t.Fatalf("%d are stopped, want %d", n, items*buckets)
	}
	count := new(reads)
	rdb.AddHook(count)
	if err := h.check(ctx, false); err != nil {
		t.Fatal(err)
	}
	if n := count.n.Load(); n > 2*items*buckets {
		t.Errorf("%d marks were read of %d buckets", n, items*buckets)
	}
}
