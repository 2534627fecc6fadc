package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// uuidRequest is a purchase as the service sends it, whose order has a UUIDv7.
func (s *shop) uuidRequest(t testing.TB, buyer, key string, quantity int64) *Request {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	r := s.request(buyer, key, quantity)
	r.OrderID = id.String()
	return r
}

// accept sells to the requests in one script each, and returns their orders' ids.
func (s *shop) accept(t testing.TB, v *Inventory, requests ...*Request) []string {
	t.Helper()
	ids := make([]string, len(requests))
	for i, r := range requests {
		if o, err := v.Purchase(await.Context(t), r); err != nil || o.Err != nil {
			t.Fatalf("purchase of %s: %v, %v", r.Buyer, o.Err, err)
		}
		ids[i] = r.OrderID
	}
	return ids
}

// finish completes so many tasks, as a worker does.
func (s *shop) finish(t testing.TB, n int) {
	t.Helper()
	f, err := s.queue.Dequeue(await.Context(t), n)
	if err != nil || len(f.Tasks) != n {
		t.Fatalf("%d tasks, %v, want %d", len(f.Tasks), err, n)
	}
	if _, err := s.queue.Ack(await.Context(t), f.Tasks...); err != nil {
		t.Fatal(err)
	}
}

// bury makes so many tasks dead letters.
func (s *shop) bury(t testing.TB, n int) {
	t.Helper()
	f, err := s.queue.Dequeue(await.Context(t), n)
	if err != nil || len(f.Tasks) != n {
		t.Fatalf("%d tasks, %v, want %d", len(f.Tasks), err, n)
	}
	for i := range f.Tasks {
		if _, err := s.queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[i], Dead: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// queuedOf pages through a buyer's queued orders.
func queuedOf(t testing.TB, x *QueuedIndex, buyer string, limit int) (ids []string) {
	t.Helper()
	for before := ""; ; {
		page := 0
		more, err := x.Orders(await.Context(t), buyer, before, limit, func(a Accepted) bool {
			if got := parseSold(a.OrderID, []byte(a.Payload)); got.buyer != buyer {
				t.Errorf("order %s is %s's, not %s's", a.OrderID, got.buyer, buyer)
			}
			page++
			ids = append(ids, a.OrderID)
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		if page > limit {
			t.Errorf("%d orders on a page, limit %d", page, limit)
		}
		if more == "" {
			return ids
		}
		if before != "" && more >= before {
			t.Fatalf("page after %s goes on after %s", before, more)
		}
		before = more
	}
}

// wantQueued checks that the indexes find the buyer's orders, in the order of their purchases.
func wantQueued(t testing.TB, what string, buyer string, made []string, indexes ...*QueuedIndex) {
	t.Helper()
	want := slices.Clone(made)
	slices.Reverse(want)
	for i, x := range indexes {
		for _, limit := range []int{1, 3, 100} {
			if got := queuedOf(t, x, buyer, limit); !slices.Equal(got, want) {
				t.Errorf("%s: index %d finds %v in pages of %d, want %v", what, i, got, limit, want)
			}
		}
	}
}

// TestQueuedIndex: an old index and a new one find a buyer's orders from the purchase until
// their task is done.
func TestQueuedIndex(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(100, 5), 0)
		v := s.inventory(t, Config{})
		warm := NewQueuedIndex(rdb, s.queue)
		fresh := func() *QueuedIndex { return NewQueuedIndex(redistest.Second(t, rdb), s.queue) }
		wantQueued(t, "at the beginning", "alice", nil, warm, fresh())

		alice := s.accept(t, v, s.uuidRequest(t, "alice", "k1", 2), s.uuidRequest(t, "alice", "k2", 1))
		bob := s.accept(t, v, s.uuidRequest(t, "bob", "k1", 5))
		alice = append(alice, s.accept(t, v, s.uuidRequest(t, "alice", "k3", 1))...)
		wantQueued(t, "after purchases", "alice", alice, warm, fresh())
		wantQueued(t, "after purchases", "bob", bob, warm, fresh())
		wantQueued(t, "of nobody", "carol", nil, warm, fresh())

		// Refused purchases and repeats add no order.
		for _, r := range []*Request{s.uuidRequest(t, "bob", "k2", 1), s.uuidRequest(t, "alice", "k1", 2), s.uuidRequest(t, "alice", "k4", 5)} {
			if o, err := v.Purchase(await.Context(t), r); err != nil || o.Err == nil && o.ReplayOf == "" {
				t.Fatalf("%s %s: %+v, %v", r.Buyer, r.IdempotencyKey, o, err)
			}
		}
		wantQueued(t, "after refusals", "alice", alice, warm, fresh())

		s.finish(t, 1)
		wantQueued(t, "after the first is done", "alice", alice[1:], warm, fresh())
		s.bury(t, 1)
		wantQueued(t, "with a dead letter", "alice", alice[1:], warm, fresh())
		if _, err := s.queue.DeleteDead(await.Context(t), parcelOf(alice[1])); err != nil {
			t.Fatal(err)
		}
		wantQueued(t, "after it was discarded", "alice", alice[2:], warm, fresh())
		s.finish(t, 2)
		wantQueued(t, "when all is done", "alice", nil, warm, fresh())
	})
}

// TestQueuedIndex_Batch: only the accepted orders of a batch are added to the log.
func TestQueuedIndex_Batch(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(1000, 1), 0)
		v := s.inventory(t, Config{})
		l, err := v.locks.Acquire(await.Context(t), v.keys.lock(s.item))
		if err != nil {
			t.Fatal(err)
		}
		if err := v.load(await.Context(t), l, s.item); err != nil {
			t.Fatal(err)
		}
		var batch []*Request
		for i := range 200 { // more than the script passes to one command
			batch = append(batch, s.request(fmt.Sprint("u", i%150), fmt.Sprint("k", i), 1))
		}
		parcel, err := newParcelID()
		if err != nil {
			t.Fatal(err)
		}
		name(batch, parcel)
		send := func() string {
			return sendAs(t, v, s, l.GuardValue(), l.Fence(), batch...).verdicts
		}
		verdicts := send()
		x := NewQueuedIndex(rdb, s.queue)
		for i := range 150 {
			if verdicts[i] != 'A' {
				t.Fatalf("purchase %d: %c", i, verdicts[i])
			}
			wantQueued(t, "of a batch", batch[i].Buyer, []string{batch[i].OrderID}, x)
		}
		entries := func() int64 {
			n, err := rdb.XLen(await.Context(t), queuedLogKey(s.queue.Prefix())).Result()
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if n := entries(); n != 1 {
			t.Errorf("%d entries for one batch", n)
		}
		// A batch that is sent again adds nothing.
		if again := send(); again != verdicts || entries() != 1 {
			t.Errorf("the second time: %s, %d entries", again, entries())
		}
	})
}

// TestQueuedIndex_WrongType: a key of another type refuses the batch before anything is sold.
func TestQueuedIndex_WrongType(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(10, 1), 0)
		refused := make(chan error, 1)
		v := s.inventory(t, Config{OnError: func(err error) {
			select {
			case refused <- err:
			default:
			}
		}})
		key := queuedLogKey(s.queue.Prefix())
		if err := rdb.Set(await.Context(t), key, "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		done := make(chan Outcome, 1)
		r := s.uuidRequest(t, "alice", "k", 1)
		r.Done = func(o Outcome) { done <- o }
		if err := v.Submit(r); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Errorf("refused for %v", err)
			}
		case <-await.Context(t).Done():
			t.Fatal("the purchase was not refused")
		}
		if left, err := v.Left(await.Context(t), []string{s.item}); err != nil || left[0] != 10 {
			t.Errorf("left %v, %v", left, err)
		}
		x := NewQueuedIndex(rdb, s.queue)
		if _, err := x.Orders(await.Context(t), "alice", "", 1, nil); !errors.Is(err, ErrUnavailable) {
			t.Errorf("tasks: %v, want ErrUnavailable", err)
		}
		if err := rdb.Del(await.Context(t), key).Err(); err != nil {
			t.Fatal(err)
		}
		if o := <-done; o.Err != nil {
			t.Errorf("the purchase, sent again: %v", o.Err)
		}
		wantQueued(t, "afterwards", "alice", []string{r.OrderID}, x)
	})
}

// TestQueuedIndex_Lost: an index notices that Redis has lost the log.
func TestQueuedIndex_Lost(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(100, 9), 0)
		v := s.inventory(t, Config{})
		x := NewQueuedIndex(rdb, s.queue)
		old := s.accept(t, v, s.uuidRequest(t, "alice", "k1", 1), s.uuidRequest(t, "alice", "k2", 1))
		wantQueued(t, "before the loss", "alice", old, x)
		if err := rdb.Del(await.Context(t), append(s.queue.EnqueueKeys(), queuedLogKey(s.queue.Prefix()))...).Err(); err != nil {
			t.Fatal(err)
		}
		// A log that begins again has lower ids if the server's clock is behind.
		next := s.uuidRequest(t, "alice", "k3", 1)
		if err := rdb.XAdd(await.Context(t), &redis.XAddArgs{
			Stream: queuedLogKey(s.queue.Prefix()), ID: "1-1", Values: []any{recordField, appendQueuedRecords(nil, []*Request{next})},
		}).Err(); err != nil {
			t.Fatal(err)
		}
		made := s.accept(t, v, next)
		wantQueued(t, "after the loss", "alice", made, x)
	})
}

// TestTrimQueued: orders that have left the queue are removed from the log, queued orders stay
// and are found, and an index drops the removed ones.
func TestTrimQueued(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(10_000, 10_000), 0)
		v := s.inventory(t, Config{})
		warm := NewQueuedIndex(rdb, s.queue)
		key := queuedLogKey(s.queue.Prefix())
		trim := func(want int64) {
			t.Helper()
			if err := TrimQueued(await.Context(t), rdb, s.queue); err != nil {
				t.Fatal(err)
			}
			if n, err := rdb.XLen(await.Context(t), key).Result(); err != nil || n != want {
				t.Errorf("%d entries after trimming, %v, want %d", n, err, want)
			}
		}
		trim(0)
		dead := s.accept(t, v, s.uuidRequest(t, "alice", "dead", 1))
		s.bury(t, 1)
		const many = 3*trimPage + 5
		made := make([]string, 0, many)
		for i := range many {
			buyer := "alice"
			if i%2 == 1 {
				buyer = "bob"
			}
			ids := s.accept(t, v, s.uuidRequest(t, buyer, fmt.Sprint("k", i), 1))
			if buyer == "alice" {
				made = append(made, ids...)
			}
		}
		all := append(dead, made...)
		wantQueued(t, "before trimming", "alice", all, warm)
		trim(many + 1 - trimPage + 1) // a page was rewritten, as one entry
		wantQueued(t, "with all in the queue", "alice", all, warm, NewQueuedIndex(rdb, s.queue))
		s.finish(t, many-1)
		trim(1)
		left := append(slices.Clone(dead), made[len(made)-1])
		wantQueued(t, "with two in the queue", "alice", left, warm, NewQueuedIndex(rdb, s.queue))
		trim(1)
		if n := len(warm.logs[0].entries); n > 1 {
			t.Errorf("the index keeps %d entries of a log of 1", n)
		}
		s.finish(t, 1)
		trim(1) // half of it
		if _, err := s.queue.DeleteDead(await.Context(t), parcelOf(dead[0])); err != nil {
			t.Fatal(err)
		}
		trim(0)
		wantQueued(t, "with nothing in the queue", "alice", nil, warm, NewQueuedIndex(rdb, s.queue))
		if n := len(warm.logs[0].records); n != 0 {
			t.Errorf("the index keeps %d records of an empty log", n)
		}
	})
}

// TestQueuedIndex_Drop: an index drops the removed beginning of a log while the last entry
// that it has read still exists.
func TestQueuedIndex_Drop(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10_000, 10_000), 0)
		v := s.inventory(t, Config{})
		x := NewQueuedIndex(rdb, s.queue)
		const pages = 6
		var made []string
		for i := range pages * trimPage {
			made = append(made, s.accept(t, v, s.uuidRequest(t, "alice", fmt.Sprint("k", i), 1))...)
		}
		// After this read, the next one is the first with enough entries to check which were
		// removed.
		if _, err := x.Orders(await.Context(t), "bob", "", 1, nil); err != nil || len(x.logs[0].records) != len(made) {
			t.Fatalf("the index has read %d records of %d, %v", len(x.logs[0].records), len(made), err)
		}
		s.finish(t, pages/2*trimPage)
		if err := TrimQueued(await.Context(t), rdb, s.queue); err != nil {
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

// TestQueuedIndex_Unavailable: a caller whose context has ended does not wait for another's
// read.
func TestQueuedIndex_Unavailable(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(1, 1), 0)
		x := NewQueuedIndex(rdb, s.queue)
		if err := x.logs[0].begin(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(await.Context(t))
		cancel()
		if _, err := x.Orders(ctx, "alice", "", 1, nil); !errors.Is(err, ErrUnavailable) {
			t.Errorf("tasks: %v, want ErrUnavailable", err)
		}
		x.logs[0].end()
		wantQueued(t, "afterwards", "alice", nil, x)
	})
}

func TestPackOrderID(t *testing.T) {
	t.Parallel()
	const text = "0197a0f2-3c4d-7abc-8def-0123456789ab"
	if got := packOrderID(text).text(); got != text {
		t.Errorf("%s comes back as %s", text, got)
	}
	for _, none := range []string{"", "order-1", text + "0", text[:35] + "g", "0197a0f23-c4d-7abc-8def-0123456789ab"} {
		if id := packOrderID(none); id != (orderID{}) {
			t.Errorf("%q is packed as %x", none, id)
		}
	}
}
