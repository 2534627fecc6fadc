package order

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
	"flashsale/lock"
	"flashsale/queue"
)

// oneSale reads the sale of one item, and calls each for its orders.
func oneSale(ctx context.Context, source *Sales, item string, each func(inventory.Holding) error) (sale inventory.Sale, err error) {
	queued, err := source.Queued(ctx, []string{item})
	if err != nil {
		return sale, err
	}
	err = source.Sales(ctx, []string{item}, queued,
		func(_ string, h inventory.Holding) error { return each(h) },
		func(_ string, s inventory.Sale) error { sale = s; return nil })
	return sale, err
}

// TestSales_Sale: an order that is both in the queue and in the database counts once, and a
// dead letter still holds its units.
func TestSales_Sale(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t)
		q := newQueue(t, rdb, queue.Config{})
		n := newItem("item", 100, 5)
		n.OpensAt = time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
		n.ClosesAt = n.OpensAt.Add(2 * time.Hour)
		mustInsert(t, s, n)
		mustInsert(t, s, newItem("other", 100, 5))
		tasks := []task{
			bought("both", "item", "a", "k", 2),     // committed, and not acknowledged
			bought("queued", "item", "b", "k", 3),   // only queued
			bought("dead", "item", "c", "k", 1),     // a dead letter
			bought("foreign", "other", "a", "k", 5), // of another item
		}
		mustEnqueue(t, q, append(leased(tasks...), queue.Leased{ID: "garbage", Payload: []byte("?")}))
		gone := bought("gone", "item", "d", "k", 4) // committed and acknowledged
		mustCommit(t, s, gone, tasks[0])
		refused := bought("refused", "item", "a", "k2", 9)
		wantVerdicts(t, mustCommit(t, s, refused), rejectedPrefix+reasonUserLimit)
		f, err := q.Dequeue(await.Context(t), 3)
		if err != nil || len(f.Tasks) != 3 || f.Tasks[2].ID != "dead" {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		if _, err := q.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[2], Dead: true}); err != nil {
			t.Fatal(err)
		}
		asked := 0
		source := &Sales{Store: s, Tasks: []Tasks{noQueue{}, q}, Partition: func(item string) int {
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
		// Later states: released units do not count.
		for status, counts := range map[string]bool{"paid": true, "cancelled": false, "expired": false} {
			if err := s.Writer().Exec("UPDATE orders SET status = ? WHERE id = 'gone'", status).Error; err != nil {
				t.Fatal(err)
			}
			_, err := oneSale(await.Context(t), source, "item", func(h inventory.Holding) error {
				if h.OrderID == "gone" && h.Counts != counts {
					t.Errorf("a %s order counts: %v", status, h.Counts)
				}
				asked = 0
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := oneSale(await.Context(t), source, "item", func(inventory.Holding) error { return errTest }); !errors.Is(err, errTest) {
			t.Errorf("a caller's error: %v", err)
		}
	})
}

func TestSales_Sale_Errors(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	q := newQueue(t, redistest.Embedded(t), queue.Config{})
	source := &Sales{Store: s, Tasks: []Tasks{q}, Partition: func(string) int { return 0 }}
	if _, err := oneSale(await.Context(t), source, "none", func(inventory.Holding) error { return nil }); !errors.Is(err, catalog.ErrItemNotFound) {
		t.Errorf("sale of no item: %v, want ErrItemNotFound", err)
	}
	source = &Sales{Store: s, Tasks: []Tasks{noQueue{}}, Partition: source.Partition}
	if _, err := oneSale(await.Context(t), source, "none", func(inventory.Holding) error { return nil }); !errors.Is(err, errTest) {
		t.Errorf("sale with the queue down: %v, want its error", err)
	}
}

// TestSales_Sale_Pages reads more orders than a page holds.
func TestSales_Sale_Pages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	q := newQueue(t, redistest.Embedded(t), queue.Config{})
	mustInsert(t, s, newItem("item", 10_000, 1))
	source := &Sales{Store: s, Tasks: []Tasks{q}, Partition: func(string) int { return 0 }}
	total := 0
	for _, n := range []int{salePage - 1, 1, 1, salePage + 10} {
		mustCommit(t, s, distinct(fmt.Sprintf("n%d-%d-", total, n), "item", n)...)
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
		s := newSite(t, rdb, false, newItem("", stock, 2))
		stop := s.work()
		first := s.mustPlace(s.purchase("a", "k", 2, long))
		s.drained()
		stop()
		queued := s.mustPlace(s.purchase("b", "k", 1, 0))
		unacked := s.mustPlace(s.purchase("c", "k", 2, 0))
		f, err := s.queue.Dequeue(await.Context(t), 2)
		if err != nil || len(f.Tasks) != 2 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		// c is committed and the worker dies; b returns to the queue.
		if err := errors.Join(s.fulfiller.Handle(await.Context(t), f.Tasks[1:])...); err != nil {
			t.Fatal(err)
		}
		if _, err := s.queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Uncounted: true}); err != nil {
			t.Fatal(err)
		}
		lost := 0
		for _, kind := range []string{"sale", "idempotency", "buyers"} {
			n, err := rdb.Del(await.Context(t), "fs:{p0}:"+kind+":"+s.item).Result()
			if err != nil {
				t.Fatal(err)
			}
			lost += int(n)
		}
		if lost != 3 {
			t.Fatalf("%d keys were deleted", lost)
		}
		for user, p := range map[string]Placed{"a": first, "b": queued, "c": unacked} {
			again := s.mustPlace(s.purchase(user, "k", p.Order.Quantity, 0))
			if again.Order.ID != p.Order.ID || !again.Replayed {
				t.Errorf("replay by %s: %+v, want order %s", user, again, p.Order.ID)
			}
		}
		for _, user := range []string{"a", "c"} {
			if _, err := s.service.Place(await.Context(t), s.purchase(user, "k2", 1, 0)); !errors.Is(err, inventory.ErrUserLimit) {
				t.Errorf("%s beyond the limit: %v", user, err)
			}
		}
		if l := ledgerOf(s); l.Left != stock-5 || !l.Balanced() {
			t.Errorf("ledger %+v, want %d left", l, stock-5)
		}
		s.work()
		accepted := 0
		for i := range stock {
			_, err := s.service.Place(await.Context(t), s.purchase(fmt.Sprintf("u%d", i), "k", 1, long))
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
		if l := ledgerOf(s); l != (Ledger{Initial: stock, Sold: stock}) {
			t.Errorf("ledger %+v", l)
		}
		auditStore(t, s.store)
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
		s := newSite(t, rdb, false, newItem("", 5, 20))
		refused := bought("refused-"+s.item, s.item, "x", "k", 10)
		mustEnqueue(t, s.queue, leased(refused))
		source := &interrupted{
			Source: &Sales{Store: s.store, Tasks: []Tasks{s.queue}, Partition: func(string) int { return 0 }},
			by: func() {
				f, err := s.queue.Dequeue(await.Context(t), 1)
				if err != nil || len(f.Tasks) != 1 {
					t.Fatal(f, err)
				}
				if err := errors.Join(s.fulfiller.Handle(await.Context(t), f.Tasks)...); err != nil {
					t.Error(err)
				}
				if _, err := s.queue.Ack(await.Context(t), f.Tasks[0]); err != nil {
					t.Error(err)
				}
			},
		}
		locks, err := lock.New(rdb, patientLocks)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.end(locks.Close) })
		stock, err := inventory.New(await.Context(t), rdb, locks, []*queue.Queue{s.queue}, source, inventory.Config{OnError: s.heard})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.end(stock.Close) })
		if err := inventory.Distrust(await.Context(t), rdb, 1, []string{s.item}); err != nil {
			t.Fatal(err)
		}
		if err := stock.Reload(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		if o := s.mustGet(refused.ID); o.Status != StatusRejected {
			t.Fatalf("order %+v", o)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Left: 5}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// noQueue is a queue that does not answer.
type noQueue struct{ Tasks }

func (noQueue) Scan(context.Context, func(string, []byte) error) error { return errTest }

func (noQueue) Stats(context.Context) (queue.Stats, error) { return queue.Stats{}, errTest }
