package checkout_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/queue"
)

func TestService_Place_Committed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 10, 3)
		n.PaymentWindow = time.Minute
		s := shoptest.New(t, rdb, false, n)
		s.Work()
		began := time.Now().Truncate(time.Millisecond)
		placed := s.MustPlace(s.Purchase("u", "k", 2, ordertest.Long))
		o := placed.Order
		if !placed.Committed || placed.Replayed || o.Status != order.StatusConfirmed {
			t.Fatalf("placed %+v, want committed", placed)
		}
		if id, err := uuid.Parse(o.ID); err != nil || id.Version() != 7 {
			t.Errorf("order id %s: %v, want a UUID of version 7", o.ID, err)
		}
		if o.ItemID != s.Item || o.UserID != "u" || o.Quantity != 2 || o.UnitPriceMinor != 1999 || o.Currency != "EUR" ||
			o.CreatedAt.Before(began) || o.ConfirmedAt.Before(o.CreatedAt) || o.ExpiresAt.Sub(o.ConfirmedAt) != time.Minute || !o.ClosedAt.IsZero() {
			t.Errorf("order %+v", o)
		}
		// The answer was sent after the commit: the row exists, and equals the answer.
		row, err := s.Store.Order(await.Context(t), o.ID)
		if err != nil || row != o {
			t.Errorf("row %+v, %v, want the answer, %+v", row, err, o)
		}
		for _, wait := range []time.Duration{0, ordertest.Long} {
			again := s.MustPlace(s.Purchase("u", "k", 2, wait))
			if again != (order.Placed{Order: o, Committed: true, Replayed: true}) {
				t.Errorf("replay %+v, want order %+v", again, o)
			}
		}
		for _, c := range []struct {
			p    order.Purchase
			want error
		}{
			{s.Purchase("u", "k", 1, ordertest.Long), inventory.ErrKeyReused},
			{s.Purchase("u", "k2", 2, ordertest.Long), inventory.ErrUserLimit},
			{order.Purchase{ItemID: "none", UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: ordertest.Long}, catalog.ErrItemNotFound},
		} {
			if placed, err := s.Service.Place(await.Context(t), c.p); !errors.Is(err, c.want) || placed != (order.Placed{}) {
				t.Errorf("%+v: %+v, %v, want %v", c.p, placed, err, c.want)
			}
		}
		var above *inventory.QuantityError
		if placed, err := s.Service.Place(await.Context(t), s.Purchase("v", "k", 9, ordertest.Long)); !errors.As(err, &above) || above.Limit != 3 || placed != (order.Placed{}) {
			t.Errorf("9 of at most 3: %+v, %v, want a QuantityError with 3", placed, err)
		}
		if ids := s.Waiters.IDs(); len(ids) != 0 {
			t.Errorf("tickets %v are left", ids)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

func TestService_Place_Async(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 3))
		placed := s.MustPlace(s.Purchase("u", "k", 2, 0))
		o := placed.Order
		if placed.Committed || placed.Replayed || o.Status != order.StatusQueued || o.ID == "" {
			t.Fatalf("placed %+v, want queued", placed)
		}
		if got := s.MustGet(o.ID); got != o {
			t.Errorf("get of a queued order: %+v, want %+v", got, o)
		}
		if again := s.MustPlace(s.Purchase("u", "k", 2, 0)); again != (order.Placed{Order: o, Replayed: true}) {
			t.Errorf("replay %+v, want the queued order %+v", again, o)
		}
		// Leased, and not committed yet.
		f, err := s.Queue.Dequeue(await.Context(t), 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		if got := s.MustGet(o.ID); got != o {
			t.Errorf("get of a leased order: %+v, want %+v", got, o)
		}
		if _, err := s.Queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Uncounted: true}); err != nil {
			t.Fatal(err)
		}
		s.Work()
		await.True(t, "the row", func() bool { return s.MustGet(o.ID).Status != order.StatusQueued })
		got := s.MustGet(o.ID)
		if got.ConfirmedAt.IsZero() {
			t.Errorf("row %+v", got)
		}
		o.Status, o.ConfirmedAt = order.StatusConfirmed, got.ConfirmedAt
		if got != o {
			t.Errorf("row %+v, want %+v", got, o)
		}
		s.Drained()
		if again := s.MustPlace(s.Purchase("u", "k", 2, 0)); again != (order.Placed{Order: o, Committed: true, Replayed: true}) {
			t.Errorf("replay %+v, want the committed order %+v", again, o)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Place_WaitRunsOut: without a worker no order is answered as committed; with
// one, accepted orders become rows, and a waiting replay gets its row.
func TestService_Place_WaitRunsOut(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 3))
		placed := s.MustPlace(s.Purchase("u", "k", 1, 20*time.Millisecond))
		if placed.Committed || placed.Order.Status != order.StatusQueued {
			t.Fatalf("placed %+v without a worker, want queued", placed)
		}
		again := s.MustPlace(s.Purchase("u", "k", 1, 20*time.Millisecond))
		if again != (order.Placed{Order: placed.Order, Replayed: true}) {
			t.Errorf("replay %+v, want the queued order", again)
		}
		type answer struct {
			placed order.Placed
			err    error
		}
		waiting := make(chan answer, 1)
		go func() {
			p, err := s.Service.Place(await.Context(t), s.Purchase("u", "k", 1, ordertest.Long))
			waiting <- answer{p, err}
		}()
		s.Work()
		select {
		case a := <-waiting:
			if a.err != nil || !a.placed.Committed || !a.placed.Replayed || a.placed.Order.ID != placed.Order.ID || a.placed.Order.Status != order.StatusConfirmed {
				t.Errorf("waiting replay: %+v, %v", a.placed, a.err)
			}
		case <-time.After(ordertest.Limit):
			t.Fatal("the waiting replay was not answered")
		}
		if o := s.MustGet(placed.Order.ID); o.Status != order.StatusConfirmed {
			t.Errorf("order %+v", o)
		}
		if ids := s.Waiters.IDs(); len(ids) != 0 {
			t.Errorf("tickets %v are left", ids)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Place_RefusedByDatabase: an order that Redis accepted and the database
// refused has a reason, in the answer and in every later read.
func TestService_Place_RefusedByDatabase(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 1))
		if err := s.Store.Writer().Exec("UPDATE items SET sold = 9 WHERE id = ?", s.Item).Error; err != nil {
			t.Fatal(err)
		}
		s.Work()
		sold := 0
		for i := range 3 {
			p := s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long)
			placed, err := s.Service.Place(await.Context(t), p)
			switch {
			case err == nil && placed.Committed && placed.Order.Status == order.StatusConfirmed:
				sold++
			case !errors.Is(err, inventory.ErrSoldOut):
				t.Errorf("placed %+v, %v", placed, err)
			}
			// A repeat gets the same answer.
			if again, aerr := s.Service.Place(await.Context(t), p); !errors.Is(aerr, err) || again.Order != placed.Order {
				t.Errorf("replay %+v, %v after %+v, %v", again, aerr, placed, err)
			}
		}
		if sold != 1 {
			t.Errorf("%d sold, want 1", sold)
		}
		if it := ordertest.ItemOf(t, s.Store, s.Item); it.Sold != it.Total {
			t.Errorf("sold %d of %d", it.Sold, it.Total)
		}
		// The refusal showed that Redis had a wrong count. Now its count equals the
		// database's, without a repair. (The 9 units of this test have no orders, so the
		// equation itself cannot hold here.)
		if l, err := reconciletest.New(s).Ledger(await.Context(t), s.Item); err != nil || l.Left != 0 {
			t.Errorf("ledger %+v, %v, want nothing left", l, err)
		}
	})
}

// TestService_CreateItem_Leftover: data in Redis under a new item's id belongs to another
// database, or is left over.
func TestService_CreateItem_Leftover(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		id := s.Item + "-next"
		tag := inventory.QueuePrefix(0, 1)[:len("fs:{p0}:")]
		epoch, err := s.Store.Epoch(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(
			rdb.HSet(await.Context(t), tag+"sale:"+id, "epoch", epoch, "fence", 1, "left", 500, "per_user_limit", 9, "opens_ms", 0, "closes_ms", 0, "control", "open", "version", "1.1").Err(),
			rdb.HSet(await.Context(t), tag+"buyers:"+id, "u", "9 1:gone k").Err())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Sales.CreateItem(await.Context(t), ordertest.NewItem(id, 3, 1)); err != nil {
			t.Fatal(err)
		}
		s.Work()
		p := s.Purchase("u", "k", 1, ordertest.Long)
		p.ItemID = id
		if placed := s.MustPlace(p); placed.Replayed {
			t.Errorf("placed %+v, want a first order", placed)
		}
		if l, err := reconciletest.New(s).Ledger(await.Context(t), id); err != nil || l.Left != 2 || !l.Balanced() {
			t.Errorf("ledger %+v, %v", l, err)
		}
	})
}

func TestService_Place_Volatile(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), true, ordertest.NewItem("", 10, 10))
	// Whatever wait was requested, an uncommitted order is not an answer.
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		placed, err := s.Service.Place(ctx, s.Purchase("u", "early", 1, 0))
		if placed != (order.Placed{}) {
			t.Errorf("placed %+v without a commit", placed)
		}
		ended <- err
	}()
	await.True(t, "the order to be queued", func() bool { return ordertest.StatsOf(t, s.Queue).Ready == 1 })
	select {
	case err := <-ended:
		t.Fatalf("answered before the commit: %v", err)
	default:
	}
	cancel(ordertest.ErrTest)
	if err := <-ended; !errors.Is(err, ordertest.ErrTest) {
		t.Errorf("ended with %v, want the context's cause", err)
	}
	s.Service.SetVolatileWait(ordertest.Limit) // the usual one passes on a busy machine
	s.Work()
	for _, wait := range []time.Duration{0, -time.Second, time.Nanosecond, ordertest.Long} {
		placed := s.MustPlace(s.Purchase("u", fmt.Sprint("k", wait), 1, wait))
		if !placed.Committed || placed.Order.Status != order.StatusConfirmed {
			t.Errorf("wait of %v: placed %+v, want committed", wait, placed)
		}
	}
	if placed := s.MustPlace(s.Purchase("u", "early", 1, 0)); !placed.Committed || !placed.Replayed {
		t.Errorf("the repeat of the unknown one: %+v", placed)
	}
	ordertest.AuditStore(t, s.Store)
}

// TestService_Place_VolatileWaitRunsOut: an order that is not committed is refused once the
// wait for its commit is over, though it asked for no wait.
func TestService_Place_VolatileWaitRunsOut(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), true, ordertest.NewItem("", 10, 10))
	s.Service.SetVolatileWait(500 * time.Millisecond)
	twice := func() {
		var wg sync.WaitGroup
		for range 2 { // one of them is a replay
			wg.Go(func() {
				placed, err := s.Service.Place(await.Context(t), s.Purchase("u", "k", 1, 0))
				if !errors.Is(err, inventory.ErrUnavailable) || placed != (order.Placed{}) {
					t.Errorf("without a worker: %+v, %v, want ErrUnavailable", placed, err)
				}
			})
		}
		wg.Wait()
	}
	// On a busy machine the wait is over before the order is queued, and the next attempt queues it.
	await.True(t, "the order to be queued", func() bool {
		twice()
		return ordertest.StatsOf(t, s.Queue).Ready > 0
	})
	twice()
	if st := ordertest.StatsOf(t, s.Queue); st.Ready != 1 {
		t.Errorf("%d orders queued, want 1", st.Ready)
	}
}

// TestService_Place_Burst is a sale: every buyer tries two keys concurrently, each key
// twice, with both kinds of wait.
func TestService_Place_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const stock, buyers = 60, 100
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", stock, 1))
		s.Work()
		ctx := await.Context(t)
		var mu sync.Mutex
		orders := map[string]string{} // buyer and key -> order
		committed := map[string]bool{}
		var refused, replayed atomic.Int64
		var wg sync.WaitGroup
		for i := range buyers * 4 {
			wg.Go(func() {
				user, key := fmt.Sprintf("u%d", i/4), fmt.Sprintf("k%d", i%2)
				wait := ordertest.Long
				if i%3 == 0 {
					wait = 0
				}
				placed, err := s.Service.Place(ctx, s.Purchase(user, key, 1, wait))
				for errors.Is(err, inventory.ErrOverloaded) && ctx.Err() == nil { // a busy machine: no script has seen it
					placed, err = s.Service.Place(ctx, s.Purchase(user, key, 1, wait))
				}
				switch {
				case errors.Is(err, inventory.ErrSoldOut), errors.Is(err, inventory.ErrUserLimit):
					refused.Add(1)
					return
				case err != nil:
					t.Errorf("place: %v", err)
					return
				}
				if placed.Committed {
					if o, err := s.Store.Order(ctx, placed.Order.ID); err != nil || o.Status != order.StatusConfirmed {
						t.Errorf("order %s was answered as committed: %+v, %v", placed.Order.ID, o, err)
					}
				} else if wait == ordertest.Long {
					t.Errorf("order %s was not committed in time", placed.Order.ID)
				}
				if placed.Replayed {
					replayed.Add(1)
				}
				mu.Lock()
				defer mu.Unlock()
				if other, ok := orders[user+" "+key]; ok && other != placed.Order.ID {
					t.Errorf("%s %s has orders %s and %s", user, key, other, placed.Order.ID)
				}
				orders[user+" "+key] = placed.Order.ID
				committed[placed.Order.ID] = true
			})
		}
		wg.Wait()
		s.Drained()
		rows := ordertest.AllRows(t, s.Store)
		if len(rows) != stock || len(orders) != stock {
			t.Errorf("%d rows, %d orders answered, want %d", len(rows), len(orders), stock)
		}
		for id := range committed {
			if rows[id].Status != string(order.StatusConfirmed) {
				t.Errorf("accepted order %s has the row %+v", id, rows[id])
			}
		}
		if int64(stock)+replayed.Load()+refused.Load() != buyers*4 {
			t.Errorf("%d accepted, %d replayed, %d refused of %d", stock, replayed.Load(), refused.Load(), buyers*4)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: stock, Sold: stock}) {
			t.Errorf("ledger %+v", l)
		}
		if ids := s.Waiters.IDs(); len(ids) != 0 {
			t.Errorf("tickets %v are left", ids)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

func TestService_Get(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 5))
	tk := ordertest.Bought("o1", "item", "u", "k", 1)
	commits := 0
	service := checkout.NewService(checkout.Config{Store: s, Tasks: []order.Queued{between{commit: func() {
		if commits++; commits == 2 {
			storetest.MustCommit(t, s, tk)
		}
	}}}})
	if _, err := service.Get(await.Context(t), "o1"); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("get of no order: %v, want ErrNotFound", err)
	}
	if o, err := service.Get(await.Context(t), "o1"); err != nil || o.Status != order.StatusConfirmed {
		t.Errorf("get of an order committed between the reads: %+v, %v", o, err)
	}
	if o, err := service.Get(await.Context(t), "o1"); err != nil || o.ID != "o1" || commits != 2 {
		t.Errorf("get of a committed order: %+v, %v, %d reads of the queue", o, err, commits-2)
	}
	broken := checkout.NewService(checkout.Config{Store: s, Tasks: []order.Queued{failing{}}})
	if _, err := broken.Get(await.Context(t), "o2"); !errors.Is(err, ordertest.ErrTest) || !errors.Is(err, inventory.ErrUnavailable) {
		t.Errorf("get with the queue down: %v, want its error and ErrUnavailable", err)
	}
	empty := between{commit: func() {}}
	second := checkout.NewService(checkout.Config{Store: s, Tasks: []order.Queued{empty, stuck{seen: func() {}}}})
	if o, err := second.Get(await.Context(t), "o2"); err != nil || o.ID != "o2" || o.Status != order.StatusQueued {
		t.Errorf("get of an order in the second queue: %+v, %v", o, err)
	}
	var reported []error
	unreadable := checkout.NewService(checkout.Config{
		Store: s, Tasks: []order.Queued{stuck{seen: func() {}, payload: "?"}}, OnError: func(err error) { reported = append(reported, err) },
	})
	if _, err := unreadable.Get(await.Context(t), "o2"); !errors.Is(err, order.ErrNotFound) || len(reported) != 1 {
		t.Errorf("get of an unreadable task: %v, reported %v, want ErrNotFound and a report", err, reported)
	}
}

func TestService_CreateItem(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 3))
		// It was loaded at once, so the first buyer need not wait.
		if left, err := s.Stock.Left(await.Context(t), []string{s.Item}); err != nil || left[0] != 10 {
			t.Errorf("left after creation: %v, %v", left, err)
		}
		again := ordertest.NewItem(s.Item, 99, 9)
		if _, err := s.Sales.CreateItem(await.Context(t), again); !errors.Is(err, order.ErrItemExists) {
			t.Errorf("second creation: %v, want ErrItemExists", err)
		}
		if it, err := s.Items.Item(await.Context(t), s.Item); err != nil || it.StockTotal != 10 || it.PerUserLimit != 3 {
			t.Errorf("item %+v, %v, want the first one's", it, err)
		}
		// An id that was requested before its creation is found as soon as it exists.
		next := ordertest.NewItem("next-"+s.Item, 5, 1)
		opens := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
		next.OpensAt, next.ClosesAt, next.PaymentWindow = opens, opens.Add(time.Hour), time.Minute
		next.Description, next.ImageURL = "d", "/images/next.jpg"
		if _, err := s.Items.Item(await.Context(t), next.ID); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Fatalf("item before its creation: %v", err)
		}
		created, err := s.Sales.CreateItem(await.Context(t), next)
		if err != nil {
			t.Fatal(err)
		}
		want := catalog.Item{
			ID: next.ID, Name: "Thing", Description: "d", ImageURL: "/images/next.jpg", PriceMinor: 1999, Currency: "EUR", StockInitial: 5, StockTotal: 5, StockLeft: 5,
			PerUserLimit: 1, OpensAt: opens, ClosesAt: opens.Add(time.Hour), PaymentWindow: time.Minute, Control: catalog.ControlOpen, Version: 1, Buckets: 1,
		}
		if created != want {
			t.Errorf("created %+v, want %+v", created, want)
		}
		if it, err := s.Items.Item(await.Context(t), next.ID); err != nil || it != want {
			t.Errorf("item after its creation: %+v, %v, want %+v", it, err, want)
		}
		var notOpen *inventory.NotOpenError
		if _, err := s.Service.Place(await.Context(t), order.Purchase{ItemID: next.ID, UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: ordertest.Long}); !errors.As(err, &notOpen) || !notOpen.OpensAt.Equal(opens) {
			t.Errorf("purchase before the opening: %v", err)
		}
	})
}

// TestService_CreateItem_StockAway: the item exists once its row does, even while Redis is
// down.
func TestService_CreateItem_StockAway(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	var heard []error
	cache, err := catalog.New(await.Context(t), s, noStock{}, catalog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	sales := items.Service{Store: s, Stock: failingItems{}, Catalog: cache, OnError: func(err error) { heard = append(heard, err) }}
	if _, err := sales.CreateItem(await.Context(t), ordertest.NewItem("item", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if len(heard) != 1 || !errors.Is(heard[0], ordertest.ErrTest) {
		t.Errorf("reported %v", heard)
	}
	if it := ordertest.ItemOf(t, s, "item"); it.Total != 1 {
		t.Errorf("item %+v", it)
	}
	service := checkout.NewService(checkout.Config{Store: s, Stock: failing{}, Items: cache, Waiters: checkout.NewWaiters()})
	if _, err := service.Place(await.Context(t), order.Purchase{ItemID: "item", UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: ordertest.Long}); !errors.Is(err, inventory.ErrOverloaded) {
		t.Errorf("place: %v, want the stock's refusal", err)
	}
	if ids := service.Waiters.IDs(); len(ids) != 0 {
		t.Errorf("tickets %v are left", ids)
	}
}

type noStock struct{}

func (noStock) Left(_ context.Context, items []string) ([]int64, error) {
	left := make([]int64, len(items))
	for i := range left {
		left[i] = -1
	}
	return left, nil
}

// stuck is a queue in which every order waits forever.
type stuck struct {
	order.Queued
	seen    func()
	payload string // empty: that of a valid task
}

func (q stuck) Find(_ context.Context, ids ...string) ([]accepted.Order, error) {
	q.seen()
	t := ordertest.Bought(ids[0], "item", "u", "k", 1)
	return []accepted.Order{{OrderID: ids[0], Payload: cmp.Or(q.payload, t.Payload())}}, nil
}
