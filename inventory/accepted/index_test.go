package accepted

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestIndex_Lost: an index notices that Redis has lost the log.
func TestIndex_Lost(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newSale(t, rdb)
		x := NewIndex(rdb, s.queue)
		old := []string{s.accept(t, "alice"), s.accept(t, "alice")}
		wantQueued(t, "before the loss", "alice", old, x)
		if err := rdb.Del(await.Context(t), append(s.queue.EnqueueKeys(), LogKey(s.queue.Prefix()))...).Err(); err != nil {
			t.Fatal(err)
		}
		// A log that begins again has lower ids if the server's clock is behind. The ids are given,
		// because the clock's could be that of the last entry before the loss.
		made := []string{s.acceptAt(t, "1-1", "alice"), s.acceptAt(t, "9999999999999-1", "alice")}
		wantQueued(t, "after the loss", "alice", made, x)
	})
}

// TestIndex_Drop: an index drops the removed beginning of a log while the last entry
// that it has read still exists.
func TestIndex_Drop(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSale(t, rdb)
		x := NewIndex(rdb, s.queue)
		const pages = 6
		var made []string
		for range pages * trimPage {
			made = append(made, s.accept(t, "alice"))
		}
		// After this read, the next one is the first with enough entries to check which were
		// removed.
		if _, err := x.Orders(await.Context(t), "bob", "", 1, nil); err != nil || len(x.logs[0].records) != len(made) {
			t.Fatalf("the index has read %d records of %d, %v", len(x.logs[0].records), len(made), err)
		}
		s.finish(t, pages/2*trimPage)
		if err := Trim(await.Context(t), rdb, s.queue); err != nil {
			t.Fatal(err)
		}
		wantQueued(t, "after trimming", "alice", made[pages/2*trimPage:], x)
		// The first page of the queued half was rewritten.
		if n := len(x.logs[0].records); n != pages/2*trimPage {
			t.Errorf("the index keeps %d records, want %d", n, pages/2*trimPage)
		}
		s.finish(t, pages/2*trimPage)
		wantQueued(t, "when all is done", "alice", nil, x)
	})
}

// TestIndex_Canceled: a caller whose context has ended does not wait for another's
// read.
func TestIndex_Canceled(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSale(t, rdb)
		x := NewIndex(rdb, s.queue)
		if err := x.logs[0].begin(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(await.Context(t))
		cancel()
		if _, err := x.Orders(ctx, "alice", "", 1, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("orders: %v, want context.Canceled", err)
		}
		x.logs[0].end()
		wantQueued(t, "afterwards", "alice", nil, x)
	})
}
