package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/privacy"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
)

func mustReadBooks(t *testing.T, s *store.Store, item string) *books {
	t.Helper()
	var b books
	if moved, err := readBooks(await.Context(t), s, item, &b, allPages); err != nil || moved || !b.done() {
		t.Fatalf("books of %s: %+v, moved %v, %v", item, b, moved, err)
	}
	return &b
}

// TestCounted_Left: a caller that leaves while an item is counted gets no panic.
func TestCounted_Left(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 5))
	ctx, leave := context.WithCancel(await.Context(t))
	// The clock is read between the two statements.
	store.WithClock(ordertest.ClockFunc(func() time.Time { leave(); return time.Now() }))(s)
	if _, _, _, err := counted(ctx, s, "item", true); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

// tally is a stock that counts the calls.
type tally struct {
	Examiner
	live, lives, held int
	holds             bool // the item's lock is held
}

func (c *tally) Live(ctx context.Context, item string) (inventory.Live, error) {
	c.live++
	return c.Examiner.Live(ctx, item)
}

func (c *tally) Lives(ctx context.Context, items []string) ([]inventory.Live, error) {
	c.lives += len(items)
	return c.Examiner.Lives(ctx, items)
}

func (c *tally) Examine(ctx context.Context, item string, look func(context.Context, *inventory.Examined) (bool, error)) error {
	c.held++
	return c.Examiner.Examine(ctx, item, func(ctx context.Context, x *inventory.Examined) (bool, error) {
		c.holds = true
		defer func() { c.holds = false }()
		return look(ctx, x)
	})
}

// unheld is a queue that must not be read while the stock's lock is held.
type unheld struct {
	order.Queued
	stock *tally
	scans int
}

func (u *unheld) Scan(ctx context.Context, fn func(accepted.Order) error) error {
	u.scans++
	if u.stock.holds {
		return ordertest.ErrTest
	}
	return u.Queued.Scan(ctx, fn)
}

// TestInspection_Orders: no inspection reads an item's orders, of which there may be any
// number: the ledger and a reconciliation do not need their table.
func TestInspection_Orders(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 50, 10, time.Hour))
		s.Work()
		paid := s.MustPlace(s.Purchase("a", "k", 3, ordertest.Long)).Order
		if _, err := s.Service.Pay(await.Context(t), paid.ID, ordertest.Money(paid.ID, 3)); err != nil {
			t.Fatal(err)
		}
		s.MustPlace(s.Purchase("b", "k", 4, ordertest.Long))
		closed := s.MustPlace(s.Purchase("c", "k", 5, ordertest.Long)).Order
		if _, err := s.Service.Cancel(await.Context(t), closed.ID, order.Canceller{UserID: "c"}); err != nil {
			t.Fatal(err)
		}
		s.Drained()
		ordertest.AuditStore(t, s.Store)
		s.Exec("ALTER TABLE orders RENAME TO hidden")
		want := order.Ledger{Initial: 50, Left: 43, Held: 4, Sold: 3}
		if l := ledgerOf(s); l != want {
			t.Errorf("ledger %+v, want %+v", l, want)
		}
		report, err := ReconcilerOf(s).Reconcile(await.Context(t), Options{})
		if err != nil || !report.Balanced || len(report.Items) != 1 || report.Items[0].Ledger != want || report.Items[0].Partial {
			t.Errorf("reconciliation %+v, %v", report, err)
		}
	})
}

// TestInspection_Queue: the queue is read without the item's lock, once for all items, and
// a ledger does not read a long one.
func TestInspection_Queue(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 100, 50))
		items := []string{s.Item}
		for i := range 4 {
			n := ordertest.NewItem(fmt.Sprintf("%s-%d", s.Item, i), 10, 5)
			if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
				t.Fatal(err)
			}
			items = append(items, n.ID)
		}
		for _, item := range items {
			s.MustPlace(order.Purchase{ItemID: item, UserID: "u", IdempotencyKey: "k", Quantity: 2})
		}
		stock := &tally{Examiner: s.Stock}
		tasks := &unheld{Queued: accepted.NewOrders(s.Queue), stock: stock}
		r := ReconcilerOf(s)
		r.on(stock)
		r.Tasks = []order.Queued{tasks}
		report, err := r.Reconcile(await.Context(t), Options{Repair: RepairAll})
		if err != nil || !report.Balanced || report.Examined != 5 || tasks.scans != 1 || stock.held != 0 {
			t.Errorf("%d scans, %d locks: %+v, %v", tasks.scans, stock.held, report, err)
		}
		if report, err = r.Reconcile(await.Context(t), Options{Deep: true, Repair: RepairAll}); err != nil || !report.Balanced {
			t.Errorf("deep: %+v, %v", report, err)
		}
		tasks.scans = 0
		ledger := func() order.Ledger {
			l, err := r.Ledger(await.Context(t), s.Item)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		if l := ledger(); l != (order.Ledger{Initial: 100, Left: 98, Held: 2}) || tasks.scans != 1 {
			t.Errorf("ledger %+v after %d scans", l, tasks.scans)
		}
		ordertest.MustEnqueue(t, s.Queue, ordertest.Leased(ordertest.Distinct("q", "other", ledgerTasks)...))
		tasks.scans = 0
		if l := ledger(); l != (order.Ledger{Initial: 100, Left: 98, Held: 2}) || tasks.scans != 0 {
			t.Errorf("with a long queue: ledger %+v after %d scans", l, tasks.scans)
		}
		// Too many units left are detected without reading the queue.
		s.Hset("sale", "left", 101)
		if l := ledger(); l.Balanced() {
			t.Errorf("with a long queue and too much left: %+v", l)
		}
	})
}

// TestInspection_Busy: an item that changes during every read is read under its lock.
func TestInspection_Busy(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		n := 0
		buying := hooked{s.Stock, func(*inventory.Live) {
			if n++; n <= 2*freeReads && n%2 == 1 {
				s.MustPlace(s.Purchase("u", fmt.Sprint(n), 1, 0))
			}
		}}
		stock := &tally{Examiner: buying}
		r := ReconcilerOf(s)
		r.on(stock)
		l, err := r.Ledger(await.Context(t), s.Item)
		if err != nil {
			t.Fatal(err)
		}
		if l != (order.Ledger{Initial: 10, Left: 7, Held: 3}) || stock.held != 1 {
			t.Errorf("ledger %+v, %d locks", l, stock.held)
		}
	})
}

// TestReconciler_Run_Cost: a round costs only as much as has changed. An unchanged item is
// one of the sales that are read together, and an unchanged item whose sale has ended is
// not read at all.
func TestReconciler_Run_Cost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 100, 50))
		s.Work()
		const more = 3
		for i := range more {
			n := ordertest.NewItem(fmt.Sprintf("%s-%d", s.Item, i), 10, 5)
			if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
				t.Fatal(err)
			}
		}
		s.Exec("UPDATE items SET control = 'closed' WHERE id = ?", s.Item+"-0")
		if err := rdb.HSet(await.Context(t), "fs:{p0}:sale:"+s.Item+"-0", "control", "closed").Err(); err != nil {
			t.Fatal(err)
		}
		s.Exec("UPDATE items SET closes_at = 1000, opens_at = 1 WHERE id = ?", s.Item+"-1") // ended long ago
		stock := &tally{Examiner: s.Stock}
		tasks := &unheld{Queued: accepted.NewOrders(s.Queue), stock: stock}
		r := ReconcilerOf(s)
		r.on(stock)
		r.Tasks = []order.Queued{tasks}
		var b roundMemory
		round := func(name string, examined, lives, live int) {
			t.Helper()
			stock.live, stock.lives, stock.held, tasks.scans = 0, 0, 0, 0
			report, err := r.round(await.Context(t), &b)
			if err != nil || !report.Balanced || report.Examined != examined {
				t.Errorf("%s: %+v, %v", name, report, err)
			}
			if stock.lives != lives || stock.live != live || stock.held != 0 || tasks.scans != 0 {
				t.Errorf("%s: %d sales read together, %d reads of one, %d locks, %d scans, want %d, %d and none",
					name, stock.lives, stock.live, stock.held, tasks.scans, lives, live)
			}
		}
		round("first", 3, 3, 6)
		s.Exec("ALTER TABLE orders RENAME TO hidden") // comparing the books would fail
		for range idleRounds - 3 {
			round("nothing happened", 3, 2, 0)
		}
		s.Exec("ALTER TABLE hidden RENAME TO orders")
		s.MustPlace(s.Purchase("u", "k", 1, ordertest.Long))
		s.Drained()
		round("one was sold of", 3, 2, 2)
	})
}

// TestReconciler_Run_Books: the background compares the database's counts with the orders a
// few pages each round, and finds differences after the first page, too.
func TestReconciler_Run_Books(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const orders = booksPage + 10
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 2*orders, 1))
		storetest.MustCommit(t, s.Store, ordertest.Distinct("c", s.Item, orders)...)
		s.Exec("UPDATE orders SET quantity = 3 WHERE user_id = ?", fmt.Sprintf("cu%d", orders-1))
		var b books
		pages := 0
		for ; !b.done(); pages++ {
			if moved, err := readBooks(await.Context(t), s.Store, s.Item, &b, 1); err != nil || moved {
				t.Fatalf("moved %v, %v", moved, err)
			}
		}
		if pages != 4 || kinds(b.drifts()) != "buyers sold" || b.held != orders+2 || b.astray != 1 {
			t.Errorf("%d pages: %+v", pages, b)
		}
		// A change between two pages restarts the comparison.
		b = books{}
		for _, want := range []bool{false, true, false} {
			moved, err := readBooks(await.Context(t), s.Store, s.Item, &b, 1)
			if err != nil || moved != want || moved == b.begun {
				t.Errorf("moved %v: %+v, %v", moved, b, err)
			}
			if !moved {
				s.Exec("UPDATE items SET revision = revision + 1 WHERE id = ?", s.Item)
			}
		}
	})
}

// TestStore_Mend: a repair of many buyers is made in short steps, each with its audit
// entry, and an interrupted repair is finished by the next.
func TestStore_Mend(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	const buyers = 2*repairPage + 10
	storetest.MustInsert(t, s, ordertest.NewItem("item", 2*buyers, 1))
	storetest.MustCommit(t, s, ordertest.Distinct("c", "item", buyers)...)
	for _, spoil := range []string{"UPDATE buyers SET quantity = 7", "DELETE FROM buyers WHERE user_id LIKE 'cu%5'", "UPDATE items SET sold = 5, awaiting = 2"} {
		if err := s.Writer().Exec(spoil).Error; err != nil {
			t.Fatal(err)
		}
	}
	b := mustReadBooks(t, s, "item")
	if kinds(b.drifts()) != "buyers sold" {
		t.Fatalf("%+v", b.drifts())
	}
	wrong := func() (n int64) {
		t.Helper()
		if err := s.Reader().Raw("SELECT COUNT(*) FROM buyers WHERE quantity <> 1").Scan(&n).Error; err != nil {
			t.Fatal(err)
		}
		return n
	}
	all := wrong()
	cut, cancel := context.WithCancel(await.Context(t))
	store.WithClock(ordertest.ClockFunc(func() time.Time { cancel(); return time.Now() }))(s) // the first step has begun
	if err := repairCounts(cut, s, "item", b, "root", "r1"); !errors.Is(err, context.Canceled) {
		t.Fatalf("cut off: %v", err)
	}
	if n := wrong(); n != all-repairPage {
		t.Errorf("%d wrong after one step, want %d", n, all-repairPage)
	}
	store.WithClock(ordertest.ClockFunc(time.Now))(s)
	if err := repairCounts(await.Context(t), s, "item", b, "root", "r1"); err != nil {
		t.Fatal(err)
	}
	if b := mustReadBooks(t, s, "item"); len(b.drifts()) != 0 {
		t.Errorf("after it: %+v", b.drifts())
	}
	ordertest.AuditStore(t, s)
	// The item has changed since it was compared: nothing is changed.
	if err := repairCounts(await.Context(t), s, "item", b, "root", "r1"); !errors.Is(err, errMoved) {
		t.Errorf("again: %v, want errMoved", err)
	}
}

// TestStore_Books_Erased: a buyer who is erased between two pages, and so moves to the
// other side of the pages read, is not a difference.
func TestStore_Books_Erased(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	const buyers = booksPage + 100
	storetest.MustInsert(t, s, ordertest.NewItem("item", buyers, 1))
	for n := 0; n < buyers; n += 1000 {
		tasks := make([]order.Task, 0, 1000)
		for i := n; i < min(n+1000, buyers); i++ {
			user := fmt.Sprintf("u%05d", i)
			tasks = append(tasks, ordertest.Bought(user, "item", user, "k", 1))
		}
		storetest.MustCommit(t, s, tasks...)
	}
	var b books
	if _, err := readBooks(await.Context(t), s, "item", &b, 3); err != nil || b.phase != 1 || b.after == "" {
		t.Fatalf("%+v, %v", b, err)
	}
	if _, err := privacy.EraseFromItem(await.Context(t), s, fmt.Sprintf("u%05d", buyers-1), "item", privacy.NewPseudonym(), privacy.Erasure{Actor: "a"}); err != nil {
		t.Fatal(err)
	}
	for !b.done() {
		if _, err := readBooks(await.Context(t), s, "item", &b, 100); err != nil {
			t.Fatal(err)
		}
	}
	if drifts := b.drifts(); len(drifts) > 0 {
		t.Errorf("%+v", drifts)
	}
}

// TestInspection_Drifts_Unread: records that were compared while the item changed prove nothing.
func TestInspection_Drifts_Unread(t *testing.T) {
	t.Parallel()
	i := &inspection{queued: -1, deep: newRecordCheck()}
	i.seen.live.Loaded = true
	i.seen.live.OpensAt = time.UnixMilli(0)
	i.deep.wrong[inventory.EntryKey{Buyer: "u"}] = true
	if d := i.drifts(); len(d) > 0 {
		t.Errorf("%+v", d)
	}
	i.queued = 0
	if d := i.drifts(); kinds(d) != "holds" {
		t.Errorf("%+v, want the wrong record", d)
	}
	i.seen.row.Total, i.seen.row.Sold, i.deep = 1, 2, nil
	if d := i.drifts(); kinds(d) != "oversold" {
		t.Errorf("%+v, want one unit oversold", d)
	}
}

// listsTwice is a queue whose first read lists every task twice.
type listsTwice struct {
	order.Queued
	scans *int
}

func (l listsTwice) Scan(ctx context.Context, fn func(accepted.Order) error) error {
	*l.scans++
	first := *l.scans == 1
	return l.Queued.Scan(ctx, func(a accepted.Order) error {
		if first {
			if err := fn(a); err != nil {
				return err
			}
		}
		return fn(a)
	})
}

// TestInspection_ListedTwice: a task that is listed twice is no difference.
func TestInspection_ListedTwice(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 10, 5))
	s.MustPlace(s.Purchase("u", "k", 2, 0))
	r := ReconcilerOf(s)
	scans := 0
	r.Tasks = []order.Queued{listsTwice{r.Tasks[0], &scans}}
	report, err := r.Reconcile(await.Context(t), Options{})
	if err != nil || !report.Balanced || scans < 2 {
		t.Errorf("%d reads: %+v, %v", scans, report, err)
	}
}

// sellsMeanwhile is a queue during whose reads the item is sold.
type sellsMeanwhile struct {
	order.Queued
	sell func()
}

func (q sellsMeanwhile) Scan(ctx context.Context, fn func(accepted.Order) error) error {
	q.sell()
	return q.Queued.Scan(ctx, fn)
}

// TestInspection_SellsMeanwhile: all records of an item that is being sold are read again only if a
// read is short; otherwise it would take three times as long, for the same result.
func TestInspection_SellsMeanwhile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		repeat time.Duration
		want   int
	}{{0, 1}, {time.Hour, maxQueueReads}} {
		t.Run(c.repeat.String(), func(t *testing.T) {
			t.Parallel()
			s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 10, 5))
			s.MustPlace(s.Purchase("u", "k", 1, 0))
			r := ReconcilerOf(s)
			r.repeat = c.repeat
			reads := 0
			r.Tasks = []order.Queued{sellsMeanwhile{r.Tasks[0], func() {
				reads++
				s.MustPlace(s.Purchase(fmt.Sprint("u", reads), "k", 1, 0))
			}}}
			report, err := r.Reconcile(await.Context(t), Options{Deep: true})
			if err != nil || len(report.Items) != 1 || !report.Items[0].Partial || !report.Balanced {
				t.Errorf("%+v, %v, want a partial report without differences", report, err)
			}
			if reads != c.want {
				t.Errorf("the item was read %d times, want %d", reads, c.want)
			}
		})
	}
}
