package inventory

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
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

// wantQueued checks that the indexes find the buyer's orders, in the order of their purchases.
func wantQueued(t testing.TB, what string, buyer string, made []string, indexes ...*accepted.Index) {
	t.Helper()
	want := slices.Clone(made)
	slices.Reverse(want)
	for i, x := range indexes {
		var ids []string
		if _, err := x.Orders(await.Context(t), buyer, "", len(made)+1, func(a accepted.Order) bool {
			if got := parseSold(a.OrderID, []byte(a.Payload)); got.buyer != buyer {
				t.Errorf("order %s is %s's, not %s's", a.OrderID, got.buyer, buyer)
			}
			ids = append(ids, a.OrderID)
			return true
		}); err != nil || !slices.Equal(ids, want) {
			t.Errorf("%s: index %d finds %v, %v, want %v", what, i, ids, err, want)
		}
	}
}

// TestPurchase_Index: an old index and a new one find a buyer's orders from the purchase until
// their task is done.
func TestPurchase_Index(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(100, 5), 0)
		v := s.inventory(t, Config{})
		warm := accepted.NewIndex(rdb, s.queue)
		fresh := func() *accepted.Index { return accepted.NewIndex(redistest.Second(t, rdb), s.queue) }
		wantQueued(t, "at the beginning", "alice", nil, warm, fresh())

		alice := s.accept(t, v, s.uuidRequest(t, "alice", "k1", 2), s.uuidRequest(t, "alice", "k2", 1))
		bob := s.accept(t, v, s.uuidRequest(t, "bob", "k1", 5))
		alice = append(alice, s.accept(t, v, s.uuidRequest(t, "alice", "k3", 1))...)
		wantQueued(t, "after purchases", "alice", alice, warm, fresh())
		wantQueued(t, "after purchases", "bob", bob, warm, fresh())
		wantQueued(t, "of a buyer without orders", "carol", nil, warm, fresh())

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
		if _, err := s.queue.DeleteDead(await.Context(t), accepted.TaskOf(alice[1])); err != nil {
			t.Fatal(err)
		}
		wantQueued(t, "after it was discarded", "alice", alice[2:], warm, fresh())
		s.finish(t, 2)
		wantQueued(t, "when all is done", "alice", nil, warm, fresh())
	})
}

// TestPurchase_Index_Batch: only the accepted orders of a batch are added to the log.
func TestPurchase_Index_Batch(t *testing.T) {
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
		parcel, err := accepted.NewTaskID()
		if err != nil {
			t.Fatal(err)
		}
		name(batch, parcel)
		send := func() string {
			return sendAs(t, v, s, l.GuardValue(), l.Fence(), batch...).verdicts
		}
		verdicts := send()
		x := accepted.NewIndex(rdb, s.queue)
		for i := range 150 {
			if verdicts[i] != 'A' {
				t.Fatalf("purchase %d: %c", i, verdicts[i])
			}
			wantQueued(t, "of a batch", batch[i].Buyer, []string{batch[i].OrderID}, x)
		}
		entries := func() int64 {
			n, err := rdb.XLen(await.Context(t), accepted.LogKey(s.queue.Prefix())).Result()
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

// TestPurchase_Index_WrongType: a key of another type refuses the batch before anything is sold.
func TestPurchase_Index_WrongType(t *testing.T) {
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
		key := accepted.LogKey(s.queue.Prefix())
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
		x := accepted.NewIndex(rdb, s.queue)
		if _, err := x.Orders(await.Context(t), "alice", "", 1, nil); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("orders: %v, want WRONGTYPE", err)
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
