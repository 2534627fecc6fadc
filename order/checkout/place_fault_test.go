package checkout_test

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
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// TestService_Place_KeyLost: Redis has lost its record of a committed order. A repeat of
// its purchase still gets that order, and is not refused as a second one.
func TestService_Place_KeyLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		s.Work()
		p := s.Purchase("u", "k", 1, ordertest.Long)
		first := s.MustPlace(p)
		tag := inventory.QueuePrefix(0, 1)[:len("fs:{p0}:")]
		if n, err := rdb.HDel(await.Context(t), tag+"buyers:"+s.Item, "u").Result(); err != nil || n != 1 {
			t.Fatalf("deleted %d keys, %v", n, err)
		}
		for range 3 {
			if again := s.MustPlace(p); again.Order.ID != first.Order.ID || !again.Replayed || !again.Committed {
				t.Errorf("repeat %+v, want order %s", again, first.Order.ID)
			}
		}
		p.Quantity = 2
		if _, err := s.Service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrKeyReused) {
			t.Errorf("the key with another quantity: %v, want ErrKeyReused", err)
		}
		if it := ordertest.ItemOf(t, s.Store, s.Item); it.Sold != 1 {
			t.Errorf("sold %d, want 1", it.Sold)
		}
	})
}

// TestService_Place_KeyLost_Refused: the database refused the first request. The repeat
// gets the same refusal, and is never answered like a successful purchase.
func TestService_Place_KeyLost_Refused(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 10, 5))
	if err := s.Store.Writer().Exec("UPDATE items SET sold = 10 WHERE id = ?", s.Item).Error; err != nil {
		t.Fatal(err)
	}
	s.Work()
	p := s.Purchase("u", "k", 1, ordertest.Long)
	if placed, err := s.Service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrSoldOut) {
		t.Fatalf("placed %+v, %v, want ErrSoldOut", placed, err)
	}
	// Redis and the database have units for the repeat, so that it reaches the database.
	if err := s.Store.Writer().Exec("UPDATE items SET sold = 0 WHERE id = ?", s.Item).Error; err != nil {
		t.Fatal(err)
	}
	s.Load() // the refusal dropped the sale
	tag := inventory.QueuePrefix(0, 1)[:len("fs:{p0}:")]
	if n, err := s.Rdb.HDel(await.Context(t), tag+"buyers:"+s.Item, "u").Result(); err != nil || n != 1 {
		t.Fatalf("deleted %d keys, %v", n, err)
	}
	for range 2 {
		if placed, err := s.Service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrSoldOut) || placed != (order.Placed{}) {
			t.Errorf("repeat %+v, %v, want the first refusal", placed, err)
		}
	}
}

// TestService_Place_RemoteWorker: two services and a worker in a third process; the notices
// reach the right service.
func TestService_Place_RemoteWorker(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 100, 1))
		s.Fulfiller = worker.NewFulfiller(s.Store, rdb, nil, s.CollectError) // of another process
		checkout.Listen(t, s.Waiters, rdb, s.Store, s.CollectError)
		s.Work()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				placed, err := s.Service.Place(await.Context(t), s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long))
				if err != nil || !placed.Committed {
					t.Errorf("placed %+v, %v, want committed", placed, err)
				}
			})
		}
		wg.Wait()
		ordertest.AuditStore(t, s.Store)
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
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.Asking("", 5, 5, time.Minute))
	answer := make(chan order.Placed, 1)
	go func() {
		placed, err := s.Service.Place(await.Context(t), s.Purchase("u", "k", 1, ordertest.Long))
		if err != nil {
			t.Errorf("place: %v", err)
		}
		answer <- placed
	}()
	var f queue.Fetched
	await.True(t, "the order in the queue", func() (ok bool) {
		var err error
		if f, err = s.Queue.Dequeue(await.Context(t), 1); err != nil {
			t.Fatal(err)
		}
		return len(f.Tasks) == 1
	})
	// The worker that commits it dies before it publishes the notice; the next one
	// publishes it.
	tk := ordertest.MustParse(t, f.Tasks[0].ID, f.Tasks[0].Payload)
	storetest.MustCommit(t, s.Store, tk)
	paid, err := s.Service.Pay(await.Context(t), tk.ID, ordertest.Money("psp", 1))
	if err != nil {
		t.Fatal(err)
	}
	if refund {
		if paid, err = s.Service.Refund(await.Context(t), tk.ID, checkout.Refund{By: ordertest.Root}); err != nil {
			t.Fatal(err)
		}
	}
	if errs := s.Fulfiller.Handle(await.Context(t), f.Tasks); errs[0] != nil {
		t.Errorf("redelivery of a paid order: %v", errs[0])
	}
	if placed := <-answer; placed.Order != paid || !placed.Committed {
		t.Errorf("placed %+v, want %+v", placed, paid)
	}
}

// between is a queue in which an order is committed and removed just before it is read.
type between struct {
	order.Queued
	commit func()
}

func (b between) Find(context.Context, ...string) ([]accepted.Order, error) {
	b.commit()
	return make([]accepted.Order, 1), nil
}

// failing is a queue and a stock that are unreachable.
type failing struct {
	unmarked
	order.Queued
}

func (failing) Find(context.Context, ...string) ([]accepted.Order, error) {
	return nil, ordertest.ErrTest
}

// failingItems is a stock that opens no sale.
type failingItems struct{ items.Stock }

func (failingItems) Open(context.Context, string) error { return ordertest.ErrTest }

func (failing) Submit(*inventory.Request) error { return inventory.ErrOverloaded }
