package sales_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/lock"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/sales"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/queue"
)

// oneSale reads the sale of one item, and calls each for its orders.
func oneSale(ctx context.Context, source *sales.Source, item string, each func(inventory.Holding) error) (sale inventory.Sale, err error) {
	queued, err := source.Queued(ctx, []string{item})
	if err != nil {
		return sale, err
	}
	err = source.Sales(ctx, []string{item}, queued,
		func(_ string, h inventory.Holding) error { return each(h) },
		func(_ string, s inventory.Sale) error { sale = s; return nil })
	return sale, err
}

// checkLaterStates checks that released units of an order do not count.
func checkLaterStates(t *testing.T, s *store.Store, source *sales.Source) {
	t.Helper()
	for status, counts := range map[string]bool{"paid": true, "cancelled": false, "expired": false} {
		if err := s.Writer().Exec("UPDATE orders SET status = ? WHERE id = 'gone'", status).Error; err != nil {
			t.Fatal(err)
		}
		_, err := oneSale(await.Context(t), source, "item", func(h inventory.Holding) error {
			if h.OrderID == "gone" && h.Counts != counts {
				t.Errorf("a %s order counts: %v", status, h.Counts)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSales_Sale: an order that is both in the queue and in the database counts once, and a
// dead letter still holds its units.
func TestSales_Sale(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		n := ordertest.NewItem("item", 100, 5)
		n.OpensAt = time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
		n.ClosesAt = n.OpensAt.Add(2 * time.Hour)
		storetest.MustInsert(t, s, n)
		storetest.MustInsert(t, s, ordertest.NewItem("other", 100, 5))
		tasks := []order.Task{
			ordertest.Bought("both", "item", "a", "k", 2),     // committed, and not acknowledged
			ordertest.Bought("queued", "item", "b", "k", 3),   // only queued
			ordertest.Bought("dead", "item", "c", "k", 1),     // a dead letter
			ordertest.Bought("foreign", "other", "a", "k", 5), // of another item
		}
		ordertest.MustEnqueue(t, q, append(ordertest.Leased(tasks...), queue.Leased{ID: "garbage", Payload: []byte("?")}))
		gone := ordertest.Bought("gone", "item", "d", "k", 4) // committed and acknowledged
		storetest.MustCommit(t, s, gone, tasks[0])
		refused := ordertest.Bought("refused", "item", "a", "k2", 9)
		ordertest.WantVerdicts(t, storetest.MustCommit(t, s, refused), ordertest.RejectedPrefix+order.ReasonUserLimit)
		f, err := q.Dequeue(await.Context(t), 3)
		if err != nil || len(f.Tasks) != 3 || f.Tasks[2].ID != "dead" {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		if _, err := q.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[2], Dead: true}); err != nil {
			t.Fatal(err)
		}
		asked := 0
		source := &sales.Source{Store: s, Tasks: []order.Queued{noQueue{}, accepted.NewOrders(q)}, Partition: func(item string) int {
			if asked++; item != "item" {
				t.Errorf("unexpected call for the partition of %s", item)
			}
			return 1
		}}
		got := map[string]inventory.Holding{}
		sale, err := oneSale(await.Context(t), source, "item", func(h inventory.Holding) error {
			if first, ok := got[h.OrderID]; ok {
				t.Errorf("order %s is returned twice: %+v, %+v", h.OrderID, first, h)
			}
			got[h.OrderID] = h
			return nil
		})
		if err != nil || asked != 1 {
			t.Fatal(err, asked)
		}
		want := inventory.Sale{Left: 100 - 2 - 3 - 1 - 4, PerUserLimit: 5, OpensAt: n.OpensAt, ClosesAt: n.ClosesAt, Control: "open", Version: 1}
		if sale != want {
			t.Errorf("sale %+v, want %+v", sale, want)
		}
		holdings := map[string]inventory.Holding{
			"both":    {Buyer: "a", IdempotencyKey: "k", OrderID: "both", Quantity: 2, Counts: true},
			"queued":  {Buyer: "b", IdempotencyKey: "k", OrderID: "queued", Quantity: 3, Counts: true},
			"dead":    {Buyer: "c", IdempotencyKey: "k", OrderID: "dead", Quantity: 1, Counts: true},
			"gone":    {Buyer: "d", IdempotencyKey: "k", OrderID: "gone", Quantity: 4, Counts: true},
			"refused": {Buyer: "a", IdempotencyKey: "k2", OrderID: "refused", Quantity: 9},
		}
		if fmt.Sprint(got) != fmt.Sprint(holdings) {
			t.Errorf("holdings %v, want %v", got, holdings)
		}
		checkLaterStates(t, s, source)
		asked = 0
		if _, err := oneSale(await.Context(t), source, "item", func(inventory.Holding) error { return ordertest.ErrTest }); !errors.Is(err, ordertest.ErrTest) {
			t.Errorf("a caller's error: %v", err)
		}
	})
}

func TestSales_Sale_Errors(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	q := ordertest.NewQueue(t, redistest.Embedded(t), queue.Config{})
	source := &sales.Source{Store: s, Tasks: []order.Queued{accepted.NewOrders(q)}, Partition: func(string) int { return 0 }}
	if _, err := oneSale(await.Context(t), source, "none", func(inventory.Holding) error { return nil }); !errors.Is(err, catalog.ErrItemNotFound) {
		t.Errorf("sale of no item: %v, want ErrItemNotFound", err)
	}
	source = &sales.Source{Store: s, Tasks: []order.Queued{noQueue{}}, Partition: source.Partition}
	if _, err := oneSale(await.Context(t), source, "none", func(inventory.Holding) error { return nil }); !errors.Is(err, ordertest.ErrTest) || !errors.Is(err, inventory.ErrUnavailable) {
		t.Errorf("sale with the queue down: %v, want its error and ErrUnavailable", err)
	}
}

// TestSales_Sale_Sequence: a sale continues after the highest sequence that the database or the queue
// knows. Units that await payment are sold.
func TestSales_Sale_Sequence(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Hour))
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "k", 3))
	if err := s.Writer().Exec("UPDATE items SET sequence = 7").Error; err != nil {
		t.Fatal(err)
	}
	source := &sales.Source{Store: s}
	for queued, want := range map[int64]int64{0: 7, 6: 7, 8: 8} {
		err := source.Sales(await.Context(t), []string{"item"}, map[string]inventory.Queued{"item": {Sequence: queued}},
			func(string, inventory.Holding) error { return nil },
			func(_ string, sale inventory.Sale) error {
				if sale.Sequence != want || sale.Left != 7 {
					t.Errorf("with %d in the queue: sequence %d, %d left, want %d, 7 left", queued, sale.Sequence, sale.Left, want)
				}
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSales_Sale_Pages reads more orders than a page holds.
func TestSales_Sale_Pages(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	q := ordertest.NewQueue(t, redistest.Embedded(t), queue.Config{})
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10_000, 1))
	source := &sales.Source{Store: s, Tasks: []order.Queued{accepted.NewOrders(q)}, Partition: func(string) int { return 0 }}
	total := 0
	for _, n := range []int{999, 1, 1, 1010} {
		storetest.MustCommit(t, s, ordertest.Distinct(fmt.Sprintf("n%d-%d-", total, n), "item", n)...)
		total += n
		seen := map[string]bool{}
		sale, err := oneSale(await.Context(t), source, "item", func(h inventory.Holding) error {
			seen[h.OrderID] = true
			return nil
		})
		if err != nil || len(seen) != total || sale.Left != int64(10_000-total) {
			t.Errorf("%d orders seen, %d left, %v; want %d orders", len(seen), sale.Left, err, total)
		}
	}
}

// TestService_Rebuild loses the sale in Redis while orders are in every place, and
// continues to sell: limits, keys and the sum are correct.
func TestService_Rebuild(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const stock = 20
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", stock, 2))
		stop := s.Work()
		first := s.MustPlace(s.Purchase("a", "k", 2, ordertest.Long))
		s.Drained()
		stop()
		queued := s.MustPlace(s.Purchase("b", "k", 1, 0))
		unacked := s.MustPlace(s.Purchase("c", "k", 2, 0))
		f, err := s.Queue.Dequeue(await.Context(t), 2)
		if err != nil || len(f.Tasks) != 2 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		// c is committed and the worker dies; b returns to the queue.
		if err := errors.Join(s.Fulfiller.Handle(await.Context(t), f.Tasks[1:])...); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Uncounted: true}); err != nil {
			t.Fatal(err)
		}
		lost := 0
		for _, kind := range []string{"sale", "buyers"} {
			n, err := rdb.Del(await.Context(t), "fs:{p0}:"+kind+":"+s.Item).Result()
			if err != nil {
				t.Fatal(err)
			}
			lost += int(n)
		}
		if lost != 2 {
			t.Fatalf("%d keys were deleted", lost)
		}
		for user, p := range map[string]order.Placed{"a": first, "b": queued, "c": unacked} {
			again := s.MustPlace(s.Purchase(user, "k", p.Order.Quantity, 0))
			if again.Order.ID != p.Order.ID || !again.Replayed {
				t.Errorf("replay by %s: %+v, want order %s", user, again, p.Order.ID)
			}
		}
		for _, user := range []string{"a", "c"} {
			if _, err := s.Service.Place(await.Context(t), s.Purchase(user, "k2", 1, 0)); !errors.Is(err, inventory.ErrUserLimit) {
				t.Errorf("%s beyond the limit: %v", user, err)
			}
		}
		if l := reconciletest.LedgerOf(s); l.Left != stock-5 || !l.Balanced() {
			t.Errorf("ledger %+v, want %d left", l, stock-5)
		}
		s.Work()
		accepted := 0
		for i := range stock {
			_, err := s.Service.Place(await.Context(t), s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long))
			switch {
			case err == nil:
				accepted++
			case !errors.Is(err, inventory.ErrSoldOut):
				t.Fatal(err)
			}
		}
		if accepted != stock-5 {
			t.Errorf("%d more were sold, want %d", accepted, stock-5)
		}
		// c's lease has not ended, so its task still exists; its units are not counted
		// twice.
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: stock, Sold: stock}) {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// interrupted is a source that calls a function once during a read.
type interrupted struct {
	inventory.Source
	once sync.Once
	by   func()
}

func (i *interrupted) Sales(ctx context.Context, items []string, queued map[string]inventory.Queued,
	each func(string, inventory.Holding) error, done func(string, inventory.Sale) error,
) error {
	return i.Source.Sales(ctx, items, queued, each, func(item string, sale inventory.Sale) error {
		i.once.Do(i.by)
		return done(item, sale)
	})
}

// TestService_Rebuild_Refused: the database refuses an order that a running load has
// counted already. The loaded sale is dropped, so no unit is lost.
func TestService_Rebuild_Refused(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 20))
		refused := ordertest.Bought("refused-"+s.Item, s.Item, "x", "k", 10)
		ordertest.MustEnqueue(t, s.Queue, ordertest.Leased(refused))
		source := &interrupted{
			Source: &sales.Source{Store: s.Store, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Partition: func(string) int { return 0 }},
			by: func() {
				f, err := s.Queue.Dequeue(await.Context(t), 1)
				if err != nil || len(f.Tasks) != 1 {
					t.Fatal(f, err)
				}
				if err := errors.Join(s.Fulfiller.Handle(await.Context(t), f.Tasks)...); err != nil {
					t.Error(err)
				}
				if _, err := s.Queue.Ack(await.Context(t), f.Tasks[0]); err != nil {
					t.Error(err)
				}
			},
		}
		locks, err := lock.New(rdb, ordertest.PatientLocks)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.End(locks.Close) })
		stock, err := inventory.New(await.Context(t), rdb, locks, []*queue.Queue{s.Queue}, source, inventory.Config{OnError: s.CollectError})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.End(stock.Close) })
		if err := inventory.Invalidate(await.Context(t), rdb, 1, []string{s.Item}); err != nil {
			t.Fatal(err)
		}
		if err := stock.Reload(await.Context(t), s.Item); err != nil {
			t.Fatal(err)
		}
		if o := s.MustGet(refused.ID); o.Status != order.StatusRejected {
			t.Fatalf("order %+v", o)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Left: 5}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// noQueue is a queue that does not answer.
type noQueue struct{ order.Queued }

func (noQueue) Scan(context.Context, func(accepted.Order) error) error { return ordertest.ErrTest }

func (noQueue) Stats(context.Context) (queue.Stats, error) { return queue.Stats{}, ordertest.ErrTest }
