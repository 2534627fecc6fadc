package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/release"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
)

// TestStore_PayOrExpire runs payments and expiries concurrently, with the clock stopped
// just before the orders' expires_at, or exactly at it.
func TestStore_PayOrExpire(t *testing.T) {
	t.Parallel()
	testPayOrExpire(t, 1000)
}

func TestStore_PayOrExpire_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testPayOrExpire(t, 10_000)
}

// testPayOrExpire does so with that many orders, a multiple of 1,000.
func testPayOrExpire(t *testing.T, orders int) {
	s := storetest.New(t)
	// The data need not survive a power failure.
	ordertest.NoSync(t, s)
	c := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", int64(orders), 1, time.Minute))
	tasks := ordertest.Distinct("n", "item", orders)
	ids := make([]string, orders)
	for from := 0; from < orders; from += 500 {
		storetest.MustCommit(t, s, tasks[from:from+500]...)
	}
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	instant := c.Load() + time.Minute.Milliseconds()
	var ticks atomic.Int64
	store.WithClock(ordertest.ClockFunc(func() time.Time { return time.UnixMilli(instant - 1 + ticks.Add(1)/3%2) }))(s)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	answers := make([]error, orders)
	var wg sync.WaitGroup
	const payers = 4
	for k := range payers {
		wg.Go(func() {
			for i := k; i < orders; i += payers {
				_, answers[i] = s.Pay(ctx, ids[i], ordertest.Money(ids[i], 1))
			}
		})
	}
	wg.Go(func() {
		for from := 0; from < orders; from += 8 {
			if _, _, err := s.Expire(ctx, ids[from:from+8]); err != nil {
				t.Errorf("expire: %v", err)
			}
		}
	})
	wg.Wait()
	store.WithClock(ordertest.ClockFunc(func() time.Time { return time.UnixMilli(instant) }))(s)
	for from := 0; from < orders; from += 500 { // the orders whose payment was too late and whose expiry was too early
		if _, _, err := s.Expire(ctx, ids[from:from+500]); err != nil {
			t.Fatal(err)
		}
	}
	rows, money, pending := ordertest.AllRows(t, s), ordertest.PaymentsOf(t, s), ordertest.ReleasesOf(t, s)
	won := map[order.Status]int{}
	for i, id := range ids {
		r := rows[id]
		won[order.Status(r.Status)]++
		_, due := slices.BinarySearch(pending, id)
		switch order.Status(r.Status) {
		case order.StatusPaid:
			if answers[i] != nil || money[id] != id+" accepted" || due || r.PaidAt >= r.ExpiresAt || r.ClosedAt != 0 || r.PaymentReference != id {
				t.Errorf("paid %+v: answer %v, payment %q, pending releases: %v", r, answers[i], money[id], due)
			}
		case order.StatusExpired:
			if !errors.Is(answers[i], order.ErrOrderExpired) || money[id] != id+" late" || !due || r.PaidAt != 0 || r.ClosedAt < r.ExpiresAt || r.PaymentReference != "" {
				t.Errorf("expired %+v: answer %v, payment %q, pending releases: %v", r, answers[i], money[id], due)
			}
		default:
			t.Errorf("order %s is %s", id, r.Status)
		}
	}
	if won[order.StatusPaid] < orders/100 || won[order.StatusExpired] < orders/100 {
		t.Errorf("%v: too few of one outcome", won)
	}
	if sold := ordertest.ItemOf(t, s, "item").Sold; int(sold) != won[order.StatusPaid] || len(pending) != won[order.StatusExpired] {
		t.Errorf("%d sold, %d pending releases, want %v", sold, len(pending), won)
	}
	t.Log(won)
	ordertest.AuditStore(t, s)
}

// TestStore_expire_NeverEarly: an order does not expire a millisecond before its time.
func TestStore_expire_NeverEarly(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Minute))
	storetest.MustInsert(t, s, ordertest.NewItem("free", 10, 5))
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "k", 2), ordertest.Bought("o2", "free", "u", "k", 1))
	ids := []string{"o1", "o2", "none"}
	c.Add(time.Minute.Milliseconds() - 1)
	results, pending, err := s.Expire(await.Context(t), ids)
	if err != nil || len(pending) != 0 || len(results) != 2 || results["o1"] != (store.Expiry{Status: order.StatusConfirmed, In: time.Millisecond}) || results["o2"] != (store.Expiry{Status: order.StatusConfirmed, In: 0}) {
		t.Errorf("a millisecond early: %+v, %+v, %v", results, pending, err)
	}
	ordertest.AuditStore(t, s)
	c.Add(1)
	for range 2 {
		results, pending, err = s.Expire(await.Context(t), ids)
		want := []store.Release{{OrderID: "o1", ItemID: "item", UserID: "u", IdempotencyKey: "k", Quantity: 2, CreatedAt: c.Load()}}
		if err != nil || !slices.Equal(pending, want) || results["o1"].Status != order.StatusExpired || results["o2"].Status != order.StatusConfirmed {
			t.Errorf("on time: %+v, %+v, %v", results, pending, err)
		}
	}
	o, err := s.Order(await.Context(t), "o1")
	if err != nil || o.Status != order.StatusExpired || o.Reason != order.ReasonUnpaid || !o.ClosedAt.Equal(o.ExpiresAt) {
		t.Errorf("order %+v, %v", o, err)
	}
	c.Add(time.Hour.Milliseconds())
	if results, _, err = s.Expire(await.Context(t), []string{"o2"}); err != nil || results["o2"].Status != order.StatusConfirmed {
		t.Errorf("an order without a payment window: %+v, %v", results, err)
	}
	ordertest.AuditStore(t, s)
}

// checkPayment pays an order twice, and checks both responses and what was recorded.
func checkPayment(t *testing.T, s *store.Store, name, id string, p order.Payment, want order.Status, wantErr error) {
	t.Helper()
	before := ordertest.PaymentsOf(t, s)
	o, err := s.Pay(await.Context(t), id, p)
	if !errors.Is(err, wantErr) || o.Status != want {
		t.Errorf("%s: %+v, %v, want %s, %v", name, o, err, want, wantErr)
	}
	again, err := s.Pay(await.Context(t), id, p)
	if !errors.Is(err, wantErr) || again != o {
		t.Errorf("%s, repeated: %+v, %v, want %+v, %v", name, again, err, o, wantErr)
	}
	recorded := len(ordertest.PaymentsOf(t, s)) - len(before)
	if record := !errors.Is(wantErr, order.ErrNotFound); record != (recorded == 1) || recorded > 1 {
		t.Errorf("%s: %d payments recorded", name, recorded)
	}
	ordertest.AuditStore(t, s)
}

func TestStore_pay(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 100, 50, time.Minute))
	storetest.MustInsert(t, s, ordertest.NewItem("free", 100, 50))
	for i, id := range []string{"o", "other", "over", "gone", "passed"} {
		storetest.MustCommit(t, s, ordertest.Bought(id, "item", "u", fmt.Sprint("k", i), 2))
	}
	storetest.MustCommit(t, s, ordertest.Bought("free", "free", "u", "k", 2))
	ordertest.WantVerdicts(t, storetest.MustCommit(t, s, ordertest.Bought("refused", "item", "u", "k9", 99)), ordertest.RejectedPrefix+order.ReasonSoldOut)
	if _, _, err := s.Cancel(await.Context(t), "gone", order.Canceller{UserID: "u"}); err != nil {
		t.Fatal(err)
	}
	check := func(name, id string, p order.Payment, want order.Status, wantErr error) {
		t.Helper()
		checkPayment(t, s, name, id, p, want, wantErr)
	}
	const two = 2 * 1999
	check("no order", "none", order.Payment{Reference: "r0", AmountMinor: two, Currency: "EUR"}, "", order.ErrNotFound)
	check("too little", "o", order.Payment{Reference: "m1", AmountMinor: two - 1, Currency: "EUR"}, order.StatusConfirmed, order.ErrAmountMismatch)
	check("one unit", "o", order.Payment{Reference: "m2", AmountMinor: 1999, Currency: "EUR"}, order.StatusConfirmed, order.ErrAmountMismatch)
	check("other currency", "o", order.Payment{Reference: "m3", AmountMinor: two, Currency: "USD"}, order.StatusConfirmed, order.ErrAmountMismatch)
	c.Add(time.Minute.Milliseconds() - 1) // the last instant
	check("right", "o", order.Payment{Reference: "r1", AmountMinor: two, Currency: "EUR"}, order.StatusPaid, nil)
	if o, err := s.Order(await.Context(t), "o"); err != nil || o.PaidAt.UnixMilli() != c.Load() || o.PaymentReference != "r1" {
		t.Errorf("paid order %+v, %v", o, err)
	}
	check("without a window", "free", order.Payment{Reference: "r2", AmountMinor: two, Currency: "EUR"}, order.StatusPaid, nil)
	paid, err := s.Order(await.Context(t), "o")
	if err != nil {
		t.Fatal(err)
	}
	check("paid twice", "o", order.Payment{Reference: "r3", AmountMinor: two, Currency: "EUR"}, order.StatusPaid, order.ErrOrderFinal)
	check("paid, and too much came", "o", order.Payment{Reference: "m4", AmountMinor: two + 1, Currency: "EUR"}, order.StatusPaid, order.ErrAmountMismatch)
	check("paid, and another currency came", "o", order.Payment{Reference: "m5", AmountMinor: two, Currency: "USD"}, order.StatusPaid, order.ErrAmountMismatch)
	if o, err := s.Order(await.Context(t), "o"); err != nil || o != paid {
		t.Errorf("a second payment made %+v of %+v, %v", o, paid, err)
	}
	for _, p := range []order.Payment{{Reference: "r1", AmountMinor: two, Currency: "EUR"}, {Reference: "r1", AmountMinor: two - 1, Currency: "EUR"}, {Reference: "r1", AmountMinor: two, Currency: "USD"}} {
		id := "o"
		if p == (order.Payment{Reference: "r1", AmountMinor: two, Currency: "EUR"}) {
			id = "other"
		}
		if _, err := s.Pay(await.Context(t), id, p); !errors.Is(err, order.ErrReferenceReused) {
			t.Errorf("%+v for %s: %v, want ErrReferenceReused", p, id, err)
		}
	}
	check("cancelled", "gone", order.Payment{Reference: "r4", AmountMinor: two, Currency: "EUR"}, order.StatusCancelled, order.ErrOrderExpired)
	check("rejected", "refused", order.Payment{Reference: "r5", AmountMinor: two, Currency: "EUR"}, order.StatusRejected, order.ErrOrderExpired)
	c.Add(1)
	// The window is over, even if the order was not expired yet.
	check("past its time", "passed", order.Payment{Reference: "r6", AmountMinor: two, Currency: "EUR"}, order.StatusConfirmed, order.ErrOrderExpired)
	if _, _, err := s.Expire(await.Context(t), []string{"over", "passed"}); err != nil {
		t.Fatal(err)
	}
	check("expired", "over", order.Payment{Reference: "r7", AmountMinor: two - 5, Currency: "EUR"}, order.StatusExpired, order.ErrOrderExpired)
	want := map[string]string{"r1": "o accepted", "r2": "free accepted", "r3": "o duplicate", "r4": "gone late", "r5": "refused late", "r6": "passed late", "r7": "over late",
		"m1": "o mismatch", "m2": "o mismatch", "m3": "o mismatch", "m4": "o mismatch", "m5": "o mismatch"}
	if got := ordertest.PaymentsOf(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("payments %v, want %v", got, want)
	}
	for id, status := range map[string]order.Status{"gone": order.StatusCancelled, "refused": order.StatusRejected, "over": order.StatusExpired, "passed": order.StatusExpired} {
		if o, err := s.Order(await.Context(t), id); err != nil || o.Status != status || !o.PaidAt.IsZero() || o.PaymentReference != "" {
			t.Errorf("a late payment changed %+v, %v", o, err)
		}
	}
	ordertest.Occupy(t, s)
	ordertest.BusyTimeout(t, s, time.Millisecond)
	if _, err := s.Pay(await.Context(t), "other", order.Payment{Reference: "r8", AmountMinor: two, Currency: "EUR"}); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("with the database busy: %v, want ErrUnavailable", err)
	}
}

// TestService_Pay_Copies: ten copies of one callback, one of them after the order's window,
// and ten copies of a late one.
func TestService_Pay_Copies(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Minute))
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "k1", 1), ordertest.Bought("o2", "item", "u", "k2", 1))
	service := checkout.NewService(checkout.Config{Store: s})
	copies := func(n int, id string, want order.Status, wantErr error) {
		t.Helper()
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				o, err := service.Pay(await.Context(t), id, ordertest.Money("psp "+id, 1))
				if !errors.Is(err, wantErr) || o.Status != want {
					t.Errorf("paying %s: %+v, %v, want %s, %v", id, o, err, want, wantErr)
				}
			})
		}
		wg.Wait()
	}
	copies(9, "o1", order.StatusPaid, nil)
	c.Add(time.Minute.Milliseconds())
	if _, _, err := s.Expire(await.Context(t), []string{"o1", "o2"}); err != nil {
		t.Fatal(err)
	}
	copies(1, "o1", order.StatusPaid, nil)
	copies(10, "o2", order.StatusExpired, order.ErrOrderExpired)
	if got := ordertest.PaymentsOf(t, s); fmt.Sprint(got) != fmt.Sprint(map[string]string{"psp o1": "o1 accepted", "psp o2": "o2 late"}) {
		t.Errorf("payments %v", got)
	}
	if pending := ordertest.ReleasesOf(t, s); !slices.Equal(pending, []string{"o2"}) {
		t.Errorf("pending releases: %v", pending)
	}
	ordertest.AuditStore(t, s)
}

func TestService_Cancel(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 5, 3, time.Hour))
		s.Work()
		o := s.MustPlace(s.Purchase("u", "k", 3, ordertest.Long)).Order
		other := s.MustPlace(s.Purchase("v", "k", 2, ordertest.Long)).Order
		if _, err := s.Service.Place(await.Context(t), s.Purchase("w", "k", 1, ordertest.Long)); !errors.Is(err, inventory.ErrSoldOut) {
			t.Fatalf("beyond the stock: %v", err)
		}
		for _, by := range []order.Canceller{{UserID: "v"}, {}} {
			if got, err := s.Service.Cancel(await.Context(t), o.ID, by); !errors.Is(err, order.ErrNotFound) || got != (order.Order{}) {
				t.Errorf("cancelled by %+v: %+v, %v, want ErrNotFound", by, got, err)
			}
		}
		if _, err := s.Service.Cancel(await.Context(t), "none", order.Canceller{Admin: true}); !errors.Is(err, order.ErrNotFound) {
			t.Errorf("no order: %v", err)
		}
		var wg sync.WaitGroup
		var first atomic.Pointer[order.Order]
		for range 100 {
			wg.Go(func() {
				got, err := s.Service.Cancel(await.Context(t), o.ID, order.Canceller{UserID: "u"})
				if err != nil || got.Status != order.StatusCancelled || got.Reason != order.ReasonBuyer || got.ClosedAt.IsZero() {
					t.Errorf("cancel: %+v, %v", got, err)
				}
				if !first.CompareAndSwap(nil, &got) && *first.Load() != got {
					t.Errorf("one cancel answered %+v, another %+v", *first.Load(), got)
				}
			})
		}
		wg.Wait()
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Left: 3, Held: 2}) {
			t.Errorf("ledger after a hundred cancels: %+v", l)
		}
		if again := s.MustPlace(s.Purchase("u", "k", 3, ordertest.Long)); again.Order != *first.Load() || !again.Replayed {
			t.Errorf("replay %+v", again)
		}
		// The buyer's limit allows another order, and the units are available.
		next := s.MustPlace(s.Purchase("u", "k2", 3, ordertest.Long)).Order
		if _, err := s.Service.Pay(await.Context(t), next.ID, ordertest.Money("psp", 3)); err != nil {
			t.Fatal(err)
		}
		for _, by := range []order.Canceller{{UserID: "u"}, {Admin: true}} {
			if got, err := s.Service.Cancel(await.Context(t), next.ID, by); !errors.Is(err, order.ErrOrderFinal) || got.Status != order.StatusPaid {
				t.Errorf("cancel of a paid order: %+v, %v, want ErrOrderFinal", got, err)
			}
		}
		if got, err := s.Service.Cancel(await.Context(t), other.ID, order.Canceller{Admin: true}); err != nil || got.Reason != order.ReasonAdmin {
			t.Errorf("cancel by an admin: %+v, %v", got, err)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Left: 2, Sold: 3}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		if pending := ordertest.ReleasesOf(t, s.Store); len(pending) != 0 {
			t.Errorf("pending releases: %v", pending)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Cancel_SellsAgain: a buyer who cancels can buy again at once, even if this
// process has the item cached as sold out and has not received the message about the
// release.
func TestService_Cancel_SellsAgain(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		busy, free := make(chan struct{}), make(chan struct{})
		var first sync.Once
		s := shoptest.NewWith(t, rdb, ordertest.Asking("", 1, 1, time.Hour), inventory.Config{
			MarkLife: time.Hour,
			Observe:  inventory.Observers{OnChange: func(string) { first.Do(func() { close(busy); <-free }) }}.For,
		})
		t.Cleanup(sync.OnceFunc(func() { close(free) }))
		s.Work()
		o := s.MustPlace(s.Purchase("u", "k1", 1, ordertest.Long)).Order
		s.MustChange(items.Change{PaymentWindow: ordertest.Ptr(time.Minute)})
		<-busy // from here on the process receives no messages
		s.Refused(s.Purchase("v", "k", 1, 0), inventory.ErrSoldOut)
		if _, err := s.Service.Cancel(await.Context(t), o.ID, order.Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		s.MustPlace(s.Purchase("u", "k2", 1, 0))
	})
}

// TestService_Cancel_ConnectionLost: two connections to Redis are lost while they release a cancelled order's units, before
// or after Redis has run the script. They can be bought again at once, and return once.
func TestService_Cancel_ConnectionLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for name, ran := range map[string]bool{"Before": false, "After": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := shoptest.NewWith(t, rdb, ordertest.Asking("", 1, 1, time.Hour), inventory.Config{})
				s.Work()
				o := s.MustPlace(s.Purchase("u", "k1", 1, ordertest.Long)).Order
				losing := &losesConnection{Stock: s.Service.Releaser.Stock, ran: ran}
				s.Service.Releaser.Stock = losing
				if _, err := s.Service.Cancel(await.Context(t), o.ID, order.Canceller{UserID: "u"}); err != nil || losing.calls == 0 {
					t.Fatalf("%v after %d releases", err, losing.calls)
				}
				s.MustPlace(s.Purchase("u", "k2", 1, ordertest.Long))
				s.Refused(s.Purchase("v", "k", 1, 0), inventory.ErrSoldOut)
			})
		}
	})
}

// losesConnection loses the connections of its first two releases.
type losesConnection struct {
	release.Stock
	ran   bool // Redis has run the script by then
	calls int
}

func (l *losesConnection) Release(ctx context.Context, item string, orders []inventory.Released) ([]inventory.ReleaseStatus, int64, error) {
	l.calls++
	if l.calls > 2 {
		return l.Stock.Release(ctx, item, orders)
	}
	if l.ran {
		if _, _, err := l.Stock.Release(ctx, item, orders); err != nil {
			return nil, 0, err
		}
	}
	return make([]inventory.ReleaseStatus, len(orders)), 0, io.EOF
}

// TestService_Cancel_Queued: a queued order is cancelled once it is committed; if it stays
// queued, the answer is an error.
func TestService_Cancel_Queued(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 3))
		o := s.MustPlace(s.Purchase("u", "k", 3, 0)).Order
		if _, err := s.Service.Cancel(await.Context(t), o.ID, order.Canceller{UserID: "v"}); !errors.Is(err, order.ErrNotFound) {
			t.Errorf("another's order: %v", err)
		}
		if _, err := s.Service.Pay(await.Context(t), o.ID, ordertest.Money("psp", 3)); !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("payment without a worker: %v, want ErrUnavailable", err)
		}
		if _, err := s.Service.Cancel(await.Context(t), o.ID, order.Canceller{UserID: "u"}); !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("cancel without a worker: %v, want ErrUnavailable", err)
		}
		if len(ordertest.PaymentsOf(t, s.Store))+len(ordertest.ReleasesOf(t, s.Store)) != 0 {
			t.Error("something was recorded for an order without a row")
		}
		s.Work()
		got, err := s.Service.Cancel(await.Context(t), o.ID, order.Canceller{UserID: "u"})
		if err != nil || got.Status != order.StatusCancelled {
			t.Errorf("cancel with a worker: %+v, %v", got, err)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Left: 5}) {
			t.Errorf("ledger %+v", l)
		}
		ctx, cancel := context.WithCancelCause(await.Context(t))
		lost := checkout.NewService(checkout.Config{Store: s.Store, Tasks: []order.Queued{stuck{seen: func() { cancel(ordertest.ErrTest) }}}})
		if _, err := lost.Cancel(ctx, "o1", order.Canceller{UserID: "u"}); !errors.Is(err, ordertest.ErrTest) {
			t.Errorf("cancel with an ended context: %v", err)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Life_JustCommitted: if an order is committed while a payment or a
// cancellation waits for it, it is then paid or cancelled.
func TestService_Life_JustCommitted(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Minute))
	_, sh := shoptest.OnShelf(t, s)
	arriving := func(id string) *checkout.Service {
		commit := func() { storetest.MustCommit(t, s, ordertest.Bought(id, "item", "u", id, 1)) }
		releaser := release.New(s, nil, 1, nil, func(err error) { t.Errorf("reported %v", err) })
		releaser.Stock = sh
		return checkout.NewService(checkout.Config{Store: s, Tasks: []order.Queued{between{commit: commit}}, Releaser: releaser})
	}
	if o, err := arriving("o1").Pay(await.Context(t), "o1", ordertest.Money("psp", 1)); err != nil || o.Status != order.StatusPaid {
		t.Errorf("pay: %+v, %v", o, err)
	}
	if o, err := arriving("o2").Cancel(await.Context(t), "o2", order.Canceller{UserID: "u"}); err != nil || o.Status != order.StatusCancelled || sh.Units["o2"] != 1 {
		t.Errorf("cancel: %+v, %v, released %v", o, err, sh.Units)
	}
	ordertest.AuditStore(t, s)
}

// TestService_Life_Published: a payment, a cancellation and a refund are published. Units that cannot
// be released now are reported, and change no answer.
func TestService_Life_Published(t *testing.T) {
	t.Parallel()
	s, rdb := storetest.New(t), redistest.Embedded(t)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Minute))
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "k1", 1), ordertest.Bought("o2", "item", "u", "k2", 1))
	_, shelf := shoptest.OnShelf(t, s)
	shelf.Set(inventory.ReleaseUnknown, ordertest.ErrTest)
	var reported []error
	cfg := checkout.Config{
		Store: s, OnError: func(err error) { reported = append(reported, err) },
		ChangeNotifier: checkout.NewChangeNotifier(rdb, func(err error) { t.Error(err) }),
		Releaser:       release.New(s, nil, 1, nil, func(error) {}),
	}
	cfg.Releaser.Stock = shelf
	service := checkout.NewService(cfg)
	sub := rdb.Subscribe(await.Context(t), order.ChangedChannel)
	defer sub.Close()
	if _, err := sub.Receive(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, id string
		call     func(ctx context.Context) (order.Order, error)
		want     order.Status
		reports  int
	}{
		{"pay", "o1", func(ctx context.Context) (order.Order, error) {
			return service.Pay(ctx, "o1", ordertest.Money("psp", 1))
		}, order.StatusPaid, 0},
		{"cancel", "o2", func(ctx context.Context) (order.Order, error) {
			return service.Cancel(ctx, "o2", order.Canceller{UserID: "u"})
		}, order.StatusCancelled, 1},
		{"refund", "o1", func(ctx context.Context) (order.Order, error) {
			return service.Refund(ctx, "o1", checkout.Refund{Restock: true, By: ordertest.Root})
		}, order.StatusRefunded, 1},
	} {
		reported = nil
		if o, err := tt.call(await.Context(t)); err != nil || o.Status != tt.want || len(reported) != tt.reports {
			t.Errorf("%s: %+v, %v, reported %v", tt.name, o, err, reported)
		}
		// Another order follows, so that a lost message is no wait without end.
		cfg.ChangeNotifier.Notify(t.Context(), "end")
		var published []string
		for len(published) == 0 || published[len(published)-1] != "end" {
			m, err := sub.ReceiveMessage(await.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			published = append(published, m.Payload)
		}
		if !slices.Equal(published, []string{tt.id, "end"}) {
			t.Errorf("%s: published %v, want %s", tt.name, published, tt.id)
		}
	}
}

// TestService_Cancel_Burst repeatedly reads the ledger while buyers buy and cancel: the
// equation always holds, and no unit is lost.
func TestService_Cancel_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const stock, buyers, rounds = 20, 8, 12
		s := shoptest.New(t, rdb, false, ordertest.Asking("", stock, 2, time.Hour))
		s.Work()
		done := make(chan struct{})
		var looks atomic.Int64
		var all sync.WaitGroup
		all.Go(func() {
			for n := 0; ; n++ {
				looks.Store(int64(n))
				select {
				case <-done:
					return
				default:
				}
				if l, err := reconciletest.New(s).Ledger(await.Context(t), s.Item); err != nil || !l.Balanced() || l.Left < 0 || l.Held < 0 {
					t.Errorf("read %d: %+v, %v", n, l, err)
					return
				}
			}
		})
		var wg sync.WaitGroup
		for b := range buyers {
			wg.Go(func() {
				user := fmt.Sprintf("u%d", b)
				// On a busy machine one read may take as long as many rounds.
				for k := 0; k < rounds || looks.Load() < 3 && !t.Failed(); k++ {
					placed, err := s.Service.Place(await.Context(t), s.Purchase(user, fmt.Sprint("k", k), 2, ordertest.Long))
					if err != nil {
						t.Errorf("%s, round %d: %v", user, k, err)
						return
					}
					if _, err := s.Service.Cancel(await.Context(t), placed.Order.ID, order.Canceller{UserID: user}); err != nil {
						t.Errorf("%s, round %d: %v", user, k, err)
					}
				}
			})
		}
		wg.Wait()
		close(done)
		all.Wait()
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: stock, Left: stock}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}
