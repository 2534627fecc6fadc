package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/queue"
)

// TestService_Place_KeyLost: Redis has lost its record of a committed order. A repeat of
// its purchase still gets that order, and is not refused as a second one.
func TestService_Place_KeyLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		s.work()
		p := s.purchase("u", "k", 1, long)
		first := s.mustPlace(p)
		field := "u k"
		tag := inventory.QueuePrefix(0)[:len("fs:{p0}:")]
		if n, err := rdb.HDel(await.Context(t), tag+"idempotency:"+s.item, field).Result(); err != nil || n != 1 {
			t.Fatalf("deleted %d keys, %v", n, err)
		}
		for range 3 {
			if again := s.mustPlace(p); again.Order.ID != first.Order.ID || !again.Replayed || !again.Committed {
				t.Errorf("repeat %+v, want order %s", again, first.Order.ID)
			}
		}
		p.Quantity = 2
		if _, err := s.service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrKeyReused) {
			t.Errorf("the key with another quantity: %v, want ErrKeyReused", err)
		}
		if it := itemOf(t, s.store, s.item); it.Sold != 1 {
			t.Errorf("sold %d, want 1", it.Sold)
		}
	})
}

// TestService_Place_KeyLost_Refused: the database refused the first request. The repeat
// gets the same refusal, and is never answered like a successful purchase.
func TestService_Place_KeyLost_Refused(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 10, 5))
	if err := s.store.Writer().Exec("UPDATE items SET sold = 10 WHERE id = ?", s.item).Error; err != nil {
		t.Fatal(err)
	}
	s.work()
	p := s.purchase("u", "k", 1, long)
	if placed, err := s.service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrSoldOut) {
		t.Fatalf("placed %+v, %v, want ErrSoldOut", placed, err)
	}
	// Redis and the database have units for the repeat, so that it reaches the database.
	if err := s.store.Writer().Exec("UPDATE items SET sold = 0 WHERE id = ?", s.item).Error; err != nil {
		t.Fatal(err)
	}
	s.load() // the refusal dropped the sale
	tag := inventory.QueuePrefix(0)[:len("fs:{p0}:")]
	if n, err := s.rdb.HDel(await.Context(t), tag+"idempotency:"+s.item, "u k").Result(); err != nil || n != 1 {
		t.Fatalf("deleted %d keys, %v", n, err)
	}
	for range 2 {
		if placed, err := s.service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrSoldOut) || placed != (Placed{}) {
			t.Errorf("repeat %+v, %v, want the first refusal", placed, err)
		}
	}
}

// TestService_Place_RemoteWorker: two services and a worker in a third process; the notices
// reach the right service.
func TestService_Place_RemoteWorker(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 100, 1))
		s.fulfiller = NewFulfiller(s.store, rdb, nil, s.heard) // of another process
		listen(t, s.waiters, rdb, s.store, s.heard)
		s.work()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				placed, err := s.service.Place(await.Context(t), s.purchase(fmt.Sprintf("u%d", i), "k", 1, long))
				if err != nil || !placed.Committed {
					t.Errorf("placed %+v, %v, want committed", placed, err)
				}
			})
		}
		wg.Wait()
		auditStore(t, s.store)
	})
}

// TestService_Place_PaidMeanwhile: if the notice of the commit arrives after the order was
// paid or refunded, the answer is the present order, and not the content of the notice.
func TestService_Place_PaidMeanwhile(t *testing.T) {
	t.Parallel()
	for name, refund := range map[string]bool{"paid": false, "refunded": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPaidMeanwhile(t, refund)
		})
	}
}

func testPaidMeanwhile(t *testing.T, refund bool) {
	s := newSite(t, redistest.Embedded(t), false, asking("", 5, 5, time.Minute))
	answer := make(chan Placed, 1)
	go func() {
		placed, err := s.service.Place(await.Context(t), s.purchase("u", "k", 1, long))
		if err != nil {
			t.Errorf("place: %v", err)
		}
		answer <- placed
	}()
	var f queue.Fetched
	await.True(t, "the order in the queue", func() (ok bool) {
		var err error
		if f, err = s.queue.Dequeue(await.Context(t), 1); err != nil {
			t.Fatal(err)
		}
		return len(f.Tasks) == 1
	})
	// The worker that commits it dies before it publishes the notice; the next one
	// publishes it.
	id := f.Tasks[0].ID
	tk, err := parseTask(id, f.Tasks[0].Payload)
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s.store, tk)
	paid, err := s.service.Pay(await.Context(t), id, money("psp", 1))
	if err != nil {
		t.Fatal(err)
	}
	if refund {
		if paid, err = s.service.Refund(await.Context(t), id, Refund{By: root}); err != nil {
			t.Fatal(err)
		}
	}
	if errs := s.fulfiller.Handle(await.Context(t), f.Tasks); errs[0] != nil {
		t.Errorf("redelivery of a paid order: %v", errs[0])
	}
	if placed := <-answer; placed.Order != paid || !placed.Committed {
		t.Errorf("placed %+v, want %+v", placed, paid)
	}
}

// between is a queue in which an order is committed and removed just before it is read.
type between struct {
	Tasks
	commit func()
}

func (b between) Get(context.Context, ...string) ([]queue.TaskInfo, error) {
	b.commit()
	return make([]queue.TaskInfo, 1), nil
}

// failing is a queue and a stock that are unreachable.
type failing struct{ Stock }

func (failing) Get(context.Context, ...string) ([]queue.TaskInfo, error) {
	return nil, errTest
}

func (failing) Scan(context.Context, func(string, []byte) error) error { return errTest }

func (failing) Stats(context.Context) (queue.Stats, error) { return queue.Stats{}, errTest }

// failingItems is a stock that opens no sale.
type failingItems struct{ ItemStock }

func (failingItems) Open(context.Context, string) error { return errTest }

func (failing) Submit(*inventory.Request) error { return inventory.ErrOverloaded }
