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
func oneSale(ctx context.Context, sales *Sales, item string, each func(inventory.Holding) error) (sale inventory.Sale, err error) {
	queued, err := sales.Queued(ctx, []string{item})
	if err != nil {
		return sale, err
	}
	err = sales.Sales(ctx, []string{item}, queued,
		func(_ string, h inventory.Holding) error { return each(h) },
		func(_ string, s inventory.Sale) error { sale = s; return nil })
	return sale, err
}

// TestSales_Sale: an order that is in the queue and in the database counts
// once, and a dead letter still holds its units.
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
		sales := &Sales{Store: s, Tasks: []Tasks{failing{}, q}, Partition: func(item string) int {
			if asked++; item != "item" {
				t.Errorf("asked for the partition of %s", item)
			}
			return 1
		}}
		got := map[string]inventory.Holding{}
		sale, err := oneSale(await.Context(t), sales, "item", func(h inventory.Holding) error {
			if first, ok := got[h.OrderID]; ok {
				t.Errorf("order %s is told twice: %+v, %+v", h.OrderID, first, h)
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
		// The states of later days: what is released does not count.
		for status, counts := range map[string]bool{"paid": true, "cancelled": false, "expired": false} {
			if err := s.Writer().Exec("UPDATE orders SET status = ? WHERE id = 'gone'", status).Error; err != nil {
				t.Fatal(err)
			}
			_, err := oneSale(await.Context(t), sales, "item", func(h inventory.Holding) error {
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
		if _, err := oneSale(await.Context(t), sales, "item", func(inventory.Holding) error { return errTest }); !errors.Is(err, errTest) {
			t.Errorf("a caller's error: %v", err)
		}
	})
}

func TestSales_Sale_Errors(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	q := newQueue(t, redistest.Embedded(t), queue.Config{})
	sales := &Sales{Store: s, Tasks: []Tasks{q}, Partition: func(string) int { return 0 }}
	if _, err := oneSale(await.Context(t), sales, "none", func(inventory.Holding) error { return nil }); !errors.Is(err, catalog.ErrItemNotFound) {
		t.Errorf("sale of no item: %v, want ErrItemNotFound", err)
	}
	sales = &Sales{Store: s, Tasks: []Tasks{failing{}}, Partition: sales.Partition}
	if _, err := oneSale(await.Context(t), sales, "none", func(inventory.Holding) error { return nil }); !errors.Is(err, errTest) {
		t.Errorf("sale with the queue away: %v, want its error", err)
	}
}

// TestSales_Sale_Pages reads more orders than a page holds.
func TestSales_Sale_Pages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	q := newQueue(t, redistest.Embedded(t), queue.Config{})
	mustInsert(t, s, newItem("item", 10_000, 1))
	sales := &Sales{Store: s, Tasks: []Tasks{q}, Partition: func(string) int { return 0 }}
	total := 0
	for _, n := range []int{salePage - 1, 1, 1, salePage + 10} {
		mustCommit(t, s, distinct(fmt.Sprintf("n%d-%d-", total, n), "item", n)...)
		total += n
		seen := map[string]bool{}
		sale, err := oneSale(await.Context(t), sales, "item", func(h inventory.Holding) error {
			seen[h.OrderID] = true
			return nil
		})
		if err != nil || len(seen) != total || sale.Left != int64(10_000-total) {
			t.Errorf("%d orders seen, %d left, %v; want %d orders", len(seen), sale.Left, err, total)
		}
	}
}

// TestService_Rebuild loses the sale in Redis while orders are in all places,
// and sells on: limits, keys and the sum hold.
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
		// c is committed, the worker dies; b goes back.
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
			t.Fatalf("%d keys were there to lose", lost)
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
		// c's lease has not ended, so its task is still there; its units are not counted twice.
		if l := ledgerOf(s); l != (Ledger{Initial: stock, Sold: stock}) {
			t.Errorf("ledger %+v", l)
		}
		auditStore(t, s.store)
	})
}

// interrupted is a source during whose look something else happens, once.
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

// TestService_Rebuild_Refused: the database refuses an order that a load under way
// has counted already. The sale that it drops is that one, so no unit is lost.
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

func TestService_Ledger(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := newItem("", 50, 10)
		n.PaymentWindow = time.Hour
		s := newSite(t, rdb, false, n)
		want := func(name string, l Ledger) {
			t.Helper()
			if got := ledgerOf(s); got != l || !got.Balanced() {
				t.Errorf("%s: ledger %+v, want %+v, balanced", name, got, l)
			}
		}
		want("fresh", Ledger{Initial: 50, Left: 50})
		placed := s.mustPlace(s.purchase("a", "k", 3, 0))
		s.mustPlace(s.purchase("b", "k", 4, 0))
		want("queued", Ledger{Initial: 50, Left: 43, Held: 7})
		s.work()
		s.drained()
		want("awaiting payment", Ledger{Initial: 50, Left: 43, Held: 7})
		if _, err := s.service.Pay(await.Context(t), placed.Order.ID, Payment{"psp", 3 * 1999, "EUR"}); err != nil {
			t.Fatal(err)
		}
		want("paid", Ledger{Initial: 50, Left: 43, Held: 4, Sold: 3})
		if _, err := s.reconciler().Ledger(await.Context(t), "none-"+s.item); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("ledger of no item: %v, want ErrItemNotFound", err)
		}
		// A unit that nobody accounts for is seen.
		if err := rdb.HSet(await.Context(t), "fs:{p0}:sale:"+s.item, "left", 44).Err(); err != nil {
			t.Fatal(err)
		}
		if l := ledgerOf(s); l.Balanced() {
			t.Errorf("ledger %+v of a wrong stock is balanced", l)
		}
	})
}

// TestService_Ledger_Burst looks again and again while buyers buy and workers
// commit: the equation holds at every look (P: conservation).
func TestService_Ledger_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const stock, buyers = 400, 600
		s := newSite(t, rdb, false, newItem("", stock, 1))
		done, moving := make(chan struct{}), make(chan struct{})
		type look struct {
			n, moving int
			last      Ledger
		}
		looked := make(chan look, 1)
		go func() {
			var l look
			for ended := false; !ended; l.n++ {
				select {
				case <-done:
					ended = true
				default:
				}
				got, err := s.reconciler().Ledger(await.Context(t), s.item)
				if err != nil || !got.Balanced() || got.Initial != stock || got.Restocked != 0 || got.Left < 0 || got.Held < 0 || got.Sold < l.last.Sold {
					t.Errorf("look %d: %+v after %+v, %v", l.n, got, l.last, err)
				}
				if got.Held > 0 {
					if l.moving++; l.moving == 1 {
						close(moving)
					}
				}
				l.last = got
			}
			looked <- l
		}()
		ctx := await.Context(t)
		var wg sync.WaitGroup
		next := make(chan int)
		for range 24 {
			wg.Go(func() {
				for i := range next {
					wait := long
					if i%2 == 0 {
						wait = 0
					}
					_, err := s.service.Place(ctx, s.purchase(fmt.Sprintf("u%d", i), "k", 1, wait))
					if err != nil && !errors.Is(err, inventory.ErrSoldOut) {
						t.Errorf("place: %v", err)
					}
				}
			})
		}
		wg.Go(func() {
			defer close(next)
			for i := range buyers {
				next <- i
			}
		})
		// The worker comes late, so that orders under way are seen for sure.
		select {
		case <-moving:
		case <-ctx.Done():
			t.Error("no look saw an order under way")
		}
		s.work()
		wg.Wait()
		s.drained()
		close(done)
		l := <-looked
		if l.last != (Ledger{Initial: stock, Sold: stock}) {
			t.Errorf("at the end: %+v", l.last)
		}
		if l.n < 3 {
			t.Errorf("%d looks: the test saw too little", l.n)
		}
		auditStore(t, s.store)
	})
}

// hooked is a stock that calls hook after each reading of a sale.
type hooked struct {
	Examiner
	hook func(*inventory.Live)
}

func (h hooked) Live(ctx context.Context, item string) (inventory.Live, error) {
	live, err := h.Examiner.Live(ctx, item)
	h.hook(&live)
	return live, err
}

// TestService_Ledger_Moving puts the steps of a cancellation between those of a
// look: it sees the units where they were or where they went, once.
func TestService_Ledger_Moving(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, asking("", 9, 9, time.Hour))
		s.work()
		ids := make([]string, 3)
		for i := range ids {
			ids[i] = s.mustPlace(s.purchase("u", fmt.Sprint(i), 2, long)).Order.ID
		}
		s.drained()
		u := Canceller{UserID: "u"}
		var owed []returned
		steps := []func(){
			func() { // closed and given back in the middle of a look
				if _, err := s.service.Cancel(await.Context(t), ids[0], u); err != nil {
					t.Error(err)
				}
			},
			func() {}, func() {}, func() {}, // the second look is undisturbed
			func() { // closed in the middle, and not given back yet
				var err error
				if _, owed, err = s.store.cancel(await.Context(t), ids[1], u); err != nil {
					t.Error(err)
				}
			},
			func() {}, func() {}, func() {},
			func() { // what a look has given back is forgotten in the middle of another
				s.service.Returns.give(await.Context(t), owed)
			},
		}
		said := 0
		r := s.reconciler()
		ledger := func() Ledger {
			t.Helper()
			l, err := r.Ledger(await.Context(t), s.item)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		r.on(hooked{s.stock, func(*inventory.Live) {
			if said < len(steps) {
				steps[said]()
			}
			said++
		}})
		for i, want := range []struct {
			ledger Ledger
			said   int
		}{
			{Ledger{Initial: 9, Left: 5, Held: 4}, 4},
			{Ledger{Initial: 9, Left: 7, Held: 2}, 8},
			{Ledger{Initial: 9, Left: 7, Held: 2}, 10},
		} {
			if l := ledger(); l != want.ledger || said != want.said {
				t.Errorf("look %d: %+v after %d reads, want %+v after %d", i, l, said, want.ledger, want.said)
			}
		}
		// With the sale gone meanwhile, the ledger is the database's.
		r.on(hooked{s.stock, func(l *inventory.Live) { *l = inventory.Live{} }})
		if l := ledger(); l != (Ledger{Initial: 9, Left: 7, Held: 2}) {
			t.Errorf("not loaded: %+v", l)
		}
	})
}

// TestService_Ledger_Many looks at many items at once while units of each are
// on their way: the looks share few connections, and none may wait for another.
func TestService_Ledger_Many(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Embedded(t), false, newItem("", 1, 1))
	s.work()
	const looks = 4 * readers
	items := make([]string, looks)
	for i := range items {
		n := newItem(fmt.Sprintf("%s-%d", s.item, i), 3, 1)
		if _, err := s.sales.CreateItem(await.Context(t), n); err != nil {
			t.Fatal(err)
		}
		items[i] = n.ID
		placed := s.mustPlace(Purchase{ItemID: n.ID, UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: long})
		if _, _, err := s.store.cancel(await.Context(t), placed.Order.ID, Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for _, item := range items {
		wg.Go(func() {
			for range 3 {
				if l, err := s.reconciler().Ledger(await.Context(t), item); err != nil || l != (Ledger{Initial: 3, Left: 3}) {
					t.Errorf("ledger of %s: %+v, %v", item, l, err)
				}
			}
		})
	}
	wg.Wait()
	if owed := owedOf(t, s.store); len(owed) != looks {
		t.Errorf("%d notes, want the %d that a look does not delete", len(owed), looks)
	}
}

func TestLedger_Balanced(t *testing.T) {
	t.Parallel()
	for l, want := range map[Ledger]bool{
		{}: true,
		{Initial: 10, Restocked: 5, Left: 7, Held: 3, Sold: 5}:  true,
		{Initial: 10, Restocked: -5, Left: 2, Held: 1, Sold: 2}: true,
		{Initial: 10, Left: 9}:                                  false,
		{Initial: 10, Left: 10, Sold: 1}:                        false,
	} {
		if l.Balanced() != want {
			t.Errorf("%+v: balanced %v", l, !want)
		}
	}
}
