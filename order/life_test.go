package order

import (
	"context"
	"errors"
	"fmt"
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
	s := newStore(t)
	// The data need not survive a power failure.
	if err := s.Writer().Exec("PRAGMA synchronous = OFF").Error; err != nil {
		t.Fatal(err)
	}
	c := setClock(s)
	mustInsert(t, s, asking("item", int64(orders), 1, time.Minute))
	tasks := distinct("n", "item", orders)
	ids := make([]string, orders)
	for from := 0; from < orders; from += 500 {
		mustCommit(t, s, tasks[from:from+500]...)
	}
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	instant := c.Load() + time.Minute.Milliseconds()
	var ticks atomic.Int64
	WithClock(clockFunc(func() time.Time { return time.UnixMilli(instant - 1 + ticks.Add(1)/3%2) }))(s)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	answers := make([]error, orders)
	var wg sync.WaitGroup
	const payers = 4
	for k := range payers {
		wg.Go(func() {
			for i := k; i < orders; i += payers {
				_, answers[i] = s.pay(ctx, ids[i], money(ids[i], 1))
			}
		})
	}
	wg.Go(func() {
		for from := 0; from < orders; from += 8 {
			if _, _, err := s.expire(ctx, ids[from:from+8]); err != nil {
				t.Errorf("expire: %v", err)
			}
		}
	})
	wg.Wait()
	WithClock(clockFunc(func() time.Time { return time.UnixMilli(instant) }))(s)
	for from := 0; from < orders; from += 500 { // the orders whose payment was too late and whose expiry was too early
		if _, _, err := s.expire(ctx, ids[from:from+500]); err != nil {
			t.Fatal(err)
		}
	}
	rows, money, owed := allRows(t, s), payments(t, s), owedOf(t, s)
	won := map[Status]int{}
	for i, id := range ids {
		r := rows[id]
		won[Status(r.Status)]++
		_, due := slices.BinarySearch(owed, id)
		switch Status(r.Status) {
		case StatusPaid:
			if answers[i] != nil || money[id] != id+" accepted" || due || r.PaidAt >= r.ExpiresAt || r.ClosedAt != 0 || r.PaymentReference != id {
				t.Errorf("paid %+v: answer %v, payment %q, pending releases: %v", r, answers[i], money[id], due)
			}
		case StatusExpired:
			if !errors.Is(answers[i], ErrOrderExpired) || money[id] != id+" late" || !due || r.PaidAt != 0 || r.ClosedAt < r.ExpiresAt || r.PaymentReference != "" {
				t.Errorf("expired %+v: answer %v, payment %q, pending releases: %v", r, answers[i], money[id], due)
			}
		default:
			t.Errorf("order %s is %s", id, r.Status)
		}
	}
	if won[StatusPaid] < orders/100 || won[StatusExpired] < orders/100 {
		t.Errorf("%v: too few of one outcome", won)
	}
	if sold := itemOf(t, s, "item").Sold; int(sold) != won[StatusPaid] || len(owed) != won[StatusExpired] {
		t.Errorf("%d sold, %d pending releases, want %v", sold, len(owed), won)
	}
	t.Log(won)
	auditStore(t, s)
}

// TestStore_expire_NeverEarly: an order does not expire a millisecond before its time.
func TestStore_expire_NeverEarly(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := setClock(s)
	mustInsert(t, s, asking("item", 10, 5, time.Minute))
	mustInsert(t, s, newItem("free", 10, 5))
	mustCommit(t, s, bought("o1", "item", "u", "k", 2), bought("o2", "free", "u", "k", 1))
	ids := []string{"o1", "o2", "none"}
	c.Add(time.Minute.Milliseconds() - 1)
	stand, owed, err := s.expire(await.Context(t), ids)
	if err != nil || len(owed) != 0 || len(stand) != 2 || stand["o1"] != (expiry{StatusConfirmed, time.Millisecond}) || stand["o2"] != (expiry{StatusConfirmed, 0}) {
		t.Errorf("a millisecond early: %+v, %+v, %v", stand, owed, err)
	}
	auditStore(t, s)
	c.Add(1)
	for range 2 {
		stand, owed, err = s.expire(await.Context(t), ids)
		want := []returned{{"o1", "item", "u", "k", 2, c.Load()}}
		if err != nil || !slices.Equal(owed, want) || stand["o1"].status != StatusExpired || stand["o2"].status != StatusConfirmed {
			t.Errorf("on time: %+v, %+v, %v", stand, owed, err)
		}
	}
	o, err := s.Order(await.Context(t), "o1")
	if err != nil || o.Status != StatusExpired || o.Reason != reasonUnpaid || !o.ClosedAt.Equal(o.ExpiresAt) {
		t.Errorf("order %+v, %v", o, err)
	}
	c.Add(time.Hour.Milliseconds())
	if stand, _, err = s.expire(await.Context(t), []string{"o2"}); err != nil || stand["o2"].status != StatusConfirmed {
		t.Errorf("an order without a payment window: %+v, %v", stand, err)
	}
	auditStore(t, s)
}

func TestStore_pay(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := setClock(s)
	mustInsert(t, s, asking("item", 100, 50, time.Minute))
	mustInsert(t, s, newItem("free", 100, 50))
	for i, id := range []string{"o", "other", "over", "gone", "passed"} {
		mustCommit(t, s, bought(id, "item", "u", fmt.Sprint("k", i), 2))
	}
	mustCommit(t, s, bought("free", "free", "u", "k", 2))
	wantVerdicts(t, mustCommit(t, s, bought("refused", "item", "u", "k9", 99)), rejectedPrefix+reasonSoldOut)
	if _, _, err := s.cancel(await.Context(t), "gone", Canceller{UserID: "u"}); err != nil {
		t.Fatal(err)
	}
	check := func(name, id string, p Payment, want Status, wantErr error) {
		t.Helper()
		before := payments(t, s)
		o, err := s.pay(await.Context(t), id, p)
		if !errors.Is(err, wantErr) || o.Status != want {
			t.Errorf("%s: %+v, %v, want %s, %v", name, o, err, want, wantErr)
		}
		again, err := s.pay(await.Context(t), id, p)
		if !errors.Is(err, wantErr) || again != o {
			t.Errorf("%s, repeated: %+v, %v, want %+v, %v", name, again, err, o, wantErr)
		}
		recorded := len(payments(t, s)) - len(before)
		if record := !errors.Is(wantErr, ErrNotFound); record != (recorded == 1) || recorded > 1 {
			t.Errorf("%s: %d payments recorded", name, recorded)
		}
		auditStore(t, s)
	}
	const two = 2 * 1999
	check("no order", "none", Payment{"r0", two, "EUR"}, "", ErrNotFound)
	check("too little", "o", Payment{"m1", two - 1, "EUR"}, StatusConfirmed, ErrAmountMismatch)
	check("one unit", "o", Payment{"m2", 1999, "EUR"}, StatusConfirmed, ErrAmountMismatch)
	check("other currency", "o", Payment{"m3", two, "USD"}, StatusConfirmed, ErrAmountMismatch)
	c.Add(time.Minute.Milliseconds() - 1) // the last instant
	check("right", "o", Payment{"r1", two, "EUR"}, StatusPaid, nil)
	if o, err := s.Order(await.Context(t), "o"); err != nil || o.PaidAt.UnixMilli() != c.Load() || o.PaymentReference != "r1" {
		t.Errorf("paid order %+v, %v", o, err)
	}
	check("without a window", "free", Payment{"r2", two, "EUR"}, StatusPaid, nil)
	paid, err := s.Order(await.Context(t), "o")
	if err != nil {
		t.Fatal(err)
	}
	check("paid twice", "o", Payment{"r3", two, "EUR"}, StatusPaid, ErrOrderFinal)
	check("paid, and too much came", "o", Payment{"m4", two + 1, "EUR"}, StatusPaid, ErrAmountMismatch)
	check("paid, and another currency came", "o", Payment{"m5", two, "USD"}, StatusPaid, ErrAmountMismatch)
	if o, err := s.Order(await.Context(t), "o"); err != nil || o != paid {
		t.Errorf("a second payment made %+v of %+v, %v", o, paid, err)
	}
	for _, p := range []Payment{{"r1", two, "EUR"}, {"r1", two - 1, "EUR"}, {"r1", two, "USD"}} {
		id := "o"
		if p == (Payment{"r1", two, "EUR"}) {
			id = "other"
		}
		if _, err := s.pay(await.Context(t), id, p); !errors.Is(err, ErrReferenceReused) {
			t.Errorf("%+v for %s: %v, want ErrReferenceReused", p, id, err)
		}
	}
	check("cancelled", "gone", Payment{"r4", two, "EUR"}, StatusCancelled, ErrOrderExpired)
	check("rejected", "refused", Payment{"r5", two, "EUR"}, StatusRejected, ErrOrderExpired)
	c.Add(1)
	// The window is over, even if the order was not expired yet.
	check("past its time", "passed", Payment{"r6", two, "EUR"}, StatusConfirmed, ErrOrderExpired)
	if _, _, err := s.expire(await.Context(t), []string{"over", "passed"}); err != nil {
		t.Fatal(err)
	}
	check("expired", "over", Payment{"r7", two - 5, "EUR"}, StatusExpired, ErrOrderExpired)
	want := map[string]string{"r1": "o accepted", "r2": "free accepted", "r3": "o duplicate", "r4": "gone late", "r5": "refused late", "r6": "passed late", "r7": "over late",
		"m1": "o mismatch", "m2": "o mismatch", "m3": "o mismatch", "m4": "o mismatch", "m5": "o mismatch"}
	if got := payments(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("payments %v, want %v", got, want)
	}
	for id, status := range map[string]Status{"gone": StatusCancelled, "refused": StatusRejected, "over": StatusExpired, "passed": StatusExpired} {
		if o, err := s.Order(await.Context(t), id); err != nil || o.Status != status || !o.PaidAt.IsZero() || o.PaymentReference != "" {
			t.Errorf("a late payment changed %+v, %v", o, err)
		}
	}
	occupy(t, s)
	busyTimeout(t, s, time.Millisecond)
	if _, err := s.pay(await.Context(t), "other", Payment{"r8", two, "EUR"}); !errors.Is(err, ErrDatabase) {
		t.Errorf("with the database busy: %v, want ErrDatabase", err)
	}
}

// TestService_Pay_Copies: ten copies of one callback, one of them after the order's window,
// and ten copies of a late one.
func TestService_Pay_Copies(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := setClock(s)
	mustInsert(t, s, asking("item", 10, 5, time.Minute))
	mustCommit(t, s, bought("o1", "item", "u", "k1", 1), bought("o2", "item", "u", "k2", 1))
	service := NewService(Config{Store: s})
	copies := func(n int, id string, want Status, wantErr error) {
		t.Helper()
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				o, err := service.Pay(await.Context(t), id, money("psp "+id, 1))
				if !errors.Is(err, wantErr) || o.Status != want {
					t.Errorf("paying %s: %+v, %v, want %s, %v", id, o, err, want, wantErr)
				}
			})
		}
		wg.Wait()
	}
	copies(9, "o1", StatusPaid, nil)
	c.Add(time.Minute.Milliseconds())
	if _, _, err := s.expire(await.Context(t), []string{"o1", "o2"}); err != nil {
		t.Fatal(err)
	}
	copies(1, "o1", StatusPaid, nil)
	copies(10, "o2", StatusExpired, ErrOrderExpired)
	if got := payments(t, s); fmt.Sprint(got) != fmt.Sprint(map[string]string{"psp o1": "o1 accepted", "psp o2": "o2 late"}) {
		t.Errorf("payments %v", got)
	}
	if owed := owedOf(t, s); !slices.Equal(owed, []string{"o2"}) {
		t.Errorf("pending releases: %v", owed)
	}
	auditStore(t, s)
}

func TestService_Cancel(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, asking("", 5, 3, time.Hour))
		s.work()
		o := s.mustPlace(s.purchase("u", "k", 3, long)).Order
		other := s.mustPlace(s.purchase("v", "k", 2, long)).Order
		if _, err := s.service.Place(await.Context(t), s.purchase("w", "k", 1, long)); !errors.Is(err, inventory.ErrSoldOut) {
			t.Fatalf("beyond the stock: %v", err)
		}
		for _, by := range []Canceller{{UserID: "v"}, {}} {
			if got, err := s.service.Cancel(await.Context(t), o.ID, by); !errors.Is(err, ErrNotFound) || got != (Order{}) {
				t.Errorf("cancelled by %+v: %+v, %v, want ErrNotFound", by, got, err)
			}
		}
		if _, err := s.service.Cancel(await.Context(t), "none", Canceller{Admin: true}); !errors.Is(err, ErrNotFound) {
			t.Errorf("no order: %v", err)
		}
		var wg sync.WaitGroup
		var first atomic.Pointer[Order]
		for range 100 {
			wg.Go(func() {
				got, err := s.service.Cancel(await.Context(t), o.ID, Canceller{UserID: "u"})
				if err != nil || got.Status != StatusCancelled || got.Reason != reasonBuyer || got.ClosedAt.IsZero() {
					t.Errorf("cancel: %+v, %v", got, err)
				}
				if !first.CompareAndSwap(nil, &got) && *first.Load() != got {
					t.Errorf("one cancel answered %+v, another %+v", *first.Load(), got)
				}
			})
		}
		wg.Wait()
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Left: 3, Held: 2}) {
			t.Errorf("ledger after a hundred cancels: %+v", l)
		}
		if again := s.mustPlace(s.purchase("u", "k", 3, long)); again.Order != *first.Load() || !again.Replayed {
			t.Errorf("replay %+v", again)
		}
		// The buyer's limit allows another order, and the units are available.
		next := s.mustPlace(s.purchase("u", "k2", 3, long)).Order
		if _, err := s.service.Pay(await.Context(t), next.ID, money("psp", 3)); err != nil {
			t.Fatal(err)
		}
		for _, by := range []Canceller{{UserID: "u"}, {Admin: true}} {
			if got, err := s.service.Cancel(await.Context(t), next.ID, by); !errors.Is(err, ErrOrderFinal) || got.Status != StatusPaid {
				t.Errorf("cancel of a paid order: %+v, %v, want ErrOrderFinal", got, err)
			}
		}
		if got, err := s.service.Cancel(await.Context(t), other.ID, Canceller{Admin: true}); err != nil || got.Reason != reasonAdmin {
			t.Errorf("cancel by an admin: %+v, %v", got, err)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Left: 2, Sold: 3}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		if owed := owedOf(t, s.store); len(owed) != 0 {
			t.Errorf("pending releases: %v", owed)
		}
		auditStore(t, s.store)
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
		s := newSiteWith(t, rdb, asking("", 1, 1, time.Hour), inventory.Config{
			MarkLife: time.Hour,
			Observe:  inventory.Observers{OnChange: func(string) { first.Do(func() { close(busy); <-free }) }}.For,
		})
		t.Cleanup(sync.OnceFunc(func() { close(free) }))
		s.work()
		o := s.mustPlace(s.purchase("u", "k1", 1, long)).Order
		s.mustChange(ItemChange{PaymentWindow: ptr(time.Minute)})
		<-busy // from here on the process receives no messages
		s.refused(s.purchase("v", "k", 1, 0), inventory.ErrSoldOut)
		if _, err := s.service.Cancel(await.Context(t), o.ID, Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		s.mustPlace(s.purchase("u", "k2", 1, 0))
	})
}

// TestService_Cancel_Queued: a queued order is cancelled once it is committed; if it stays
// queued, the answer is an error.
func TestService_Cancel_Queued(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 5, 3))
		o := s.mustPlace(s.purchase("u", "k", 3, 0)).Order
		if _, err := s.service.Cancel(await.Context(t), o.ID, Canceller{UserID: "v"}); !errors.Is(err, ErrNotFound) {
			t.Errorf("another's order: %v", err)
		}
		if _, err := s.service.Pay(await.Context(t), o.ID, money("psp", 3)); !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("payment without a worker: %v, want ErrUnavailable", err)
		}
		if _, err := s.service.Cancel(await.Context(t), o.ID, Canceller{UserID: "u"}); !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("cancel without a worker: %v, want ErrUnavailable", err)
		}
		if len(payments(t, s.store))+len(owedOf(t, s.store)) != 0 {
			t.Error("something was recorded for an order without a row")
		}
		s.work()
		got, err := s.service.Cancel(await.Context(t), o.ID, Canceller{UserID: "u"})
		if err != nil || got.Status != StatusCancelled {
			t.Errorf("cancel with a worker: %+v, %v", got, err)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Left: 5}) {
			t.Errorf("ledger %+v", l)
		}
		ctx, cancel := context.WithCancelCause(await.Context(t))
		lost := NewService(Config{Store: s.store, Tasks: []Tasks{stuck{seen: func() { cancel(errTest) }}}})
		if _, err := lost.Cancel(ctx, "o1", Canceller{UserID: "u"}); !errors.Is(err, errTest) {
			t.Errorf("cancel with an ended context: %v", err)
		}
		auditStore(t, s.store)
	})
}

// TestService_Life_JustCommitted: if an order is committed while a payment or a
// cancellation waits for it, it is then paid or cancelled.
func TestService_Life_JustCommitted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, asking("item", 10, 5, time.Minute))
	_, sh := onShelf(t, s)
	arriving := func(id string) *Service {
		commit := func() { mustCommit(t, s, bought(id, "item", "u", id, 1)) }
		returns := NewReturns(s, nil, 1, nil, func(err error) { t.Errorf("reported %v", err) })
		returns.stock = sh
		return NewService(Config{Store: s, Tasks: []Tasks{between{commit: commit}}, Returns: returns})
	}
	if o, err := arriving("o1").Pay(await.Context(t), "o1", money("psp", 1)); err != nil || o.Status != StatusPaid {
		t.Errorf("pay: %+v, %v", o, err)
	}
	if o, err := arriving("o2").Cancel(await.Context(t), "o2", Canceller{UserID: "u"}); err != nil || o.Status != StatusCancelled || sh.units["o2"] != 1 {
		t.Errorf("cancel: %+v, %v, released %v", o, err, sh.units)
	}
	auditStore(t, s)
}

// TestService_Cancel_Burst repeatedly reads the ledger while buyers buy and cancel: the
// equation always holds, and no unit is lost.
func TestService_Cancel_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const stock, buyers, rounds = 20, 8, 12
		s := newSite(t, rdb, false, asking("", stock, 2, time.Hour))
		s.work()
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
				if l, err := s.reconciler().Ledger(await.Context(t), s.item); err != nil || !l.Balanced() || l.Left < 0 || l.Held < 0 {
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
					placed, err := s.service.Place(await.Context(t), s.purchase(user, fmt.Sprint("k", k), 2, long))
					if err != nil {
						t.Errorf("%s, round %d: %v", user, k, err)
						return
					}
					if _, err := s.service.Cancel(await.Context(t), placed.Order.ID, Canceller{UserID: user}); err != nil {
						t.Errorf("%s, round %d: %v", user, k, err)
					}
				}
			})
		}
		wg.Wait()
		close(done)
		all.Wait()
		if l := ledgerOf(s); l != (Ledger{Initial: stock, Left: stock}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		auditStore(t, s.store)
	})
}
