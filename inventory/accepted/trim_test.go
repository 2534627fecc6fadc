package accepted

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestTrim: orders that have left the queue are removed from the log, queued orders stay
// and are found, and an index drops the removed ones.
func TestTrim(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newSale(t, rdb)
		warm := NewIndex(rdb, s.queue)
		key := LogKey(s.queue.Prefix())
		trim := func(want int64) {
			t.Helper()
			if err := Trim(await.Context(t), rdb, s.queue); err != nil {
				t.Fatal(err)
			}
			if n, err := rdb.XLen(await.Context(t), key).Result(); err != nil || n != want {
				t.Errorf("%d entries after trimming, %v, want %d", n, err, want)
			}
		}
		trim(0)
		dead := s.accept(t, "alice")
		s.bury(t, 1)
		const many = 3*trimPage + 5
		made := make([]string, 0, many)
		for i := range many {
			buyer := "alice"
			if i%2 == 1 {
				buyer = "bob"
			}
			id := s.accept(t, buyer)
			if buyer == "alice" {
				made = append(made, id)
			}
		}
		all := append([]string{dead}, made...)
		wantQueued(t, "before trimming", "alice", all, warm)
		trim(many + 1 - trimPage + 1) // a page was rewritten, as one entry
		wantQueued(t, "with all in the queue", "alice", all, warm, NewIndex(rdb, s.queue))
		s.finish(t, many-1)
		trim(1)
		left := []string{dead, made[len(made)-1]}
		wantQueued(t, "with two in the queue", "alice", left, warm, NewIndex(rdb, s.queue))
		trim(1)
		if n := len(warm.logs[0].entries); n > 1 {
			t.Errorf("the index keeps %d entries of a log of 1", n)
		}
		s.finish(t, 1)
		trim(1) // half of it
		if _, err := s.queue.DeleteDead(await.Context(t), TaskOf(dead)); err != nil {
			t.Fatal(err)
		}
		trim(0)
		wantQueued(t, "with nothing in the queue", "alice", nil, warm, NewIndex(rdb, s.queue))
		if n := len(warm.logs[0].records); n != 0 {
			t.Errorf("the index keeps %d records of an empty log", n)
		}
	})
}
