package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/pooltest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
)

// calls are calls that wait for the writer, in the order of their start.
type calls struct {
	t     *testing.T
	s     *Store
	ended []chan error
}

// add starts a call, and returns once it waits.
func (c *calls) add(call func() error) {
	c.t.Helper()
	batches, changes := c.s.Waiting()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	await.True(c.t, "a call to wait", func() bool { b, n := c.s.Waiting(); return b+n == batches+changes+1 })
	c.ended = append(c.ended, ended)
}

// pay adds a payment of an order.
func (c *calls) pay(id string, p order.Payment) {
	c.t.Helper()
	c.add(func() error { _, err := c.s.Pay(await.Context(c.t), id, p); return err })
}

// cancel adds a cancellation of an order by an admin.
func (c *calls) cancel(id string) {
	c.t.Helper()
	c.add(func() error {
		_, _, err := c.s.Cancel(await.Context(c.t), id, order.Canceller{Admin: true, UserID: "root"})
		return err
	})
}

// results waits for all calls.
func (c *calls) results() []error {
	errs := make([]error, len(c.ended))
	for i := range c.ended {
		errs[i] = <-c.ended[i]
	}
	return errs
}

// succeeded waits for all calls and reports those that failed.
func (c *calls) succeeded() {
	c.t.Helper()
	for i, err := range c.results() {
		if err != nil {
			c.t.Errorf("call %d: %v", i, err)
		}
	}
}

// paidOrders returns the number of paid orders.
func paidOrders(t *testing.T, s *Store) (n int) {
	t.Helper()
	for _, r := range ordertest.AllRows(t, s) {
		if r.Status == string(order.StatusPaid) {
			n++
		}
	}
	return n
}

// TestStore_Crowd: 300 payments wait when a batch of orders arrives. The batch is served
// first, and all payments are committed by two transactions: each increments the item's
// revision once. On Postgres another writer serves the batch, at the same time.
func TestStore_Crowd(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 300)...)
	before := ordertest.ItemOf(t, s, "item").Revision
	release := pooltest.Hold(t, s.Writer())
	c := &calls{t: t, s: s}
	for i := range 300 {
		id := fmt.Sprintf("o%04d", i)
		c.pay(id, ordertest.Money("psp-"+id, 1))
	}
	paid := -1
	c.add(func() error {
		tasks := ordertest.Distinct("n", "item", 256)
		return s.batch(await.Context(t), false, tasks, func(ctx context.Context, tx *database.Tx, box *Outbox) error {
			if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM payments").Scan(&paid); err != nil {
				return err
			}
			_, err := commitWhole(ctx, tx, tasks, box)
			return err
		})
	})
	release()
	c.succeeded()
	if paid != 0 && !s.Postgres() {
		t.Errorf("%d payments were served before the batch", paid)
	}
	if n := paidOrders(t, s); n != 300 {
		t.Errorf("%d orders are paid, want 300", n)
	}
	want := int64(2)
	if s.Postgres() {
		want = 3
	}
	if raised := ordertest.ItemOf(t, s, "item").Revision - before; raised != want {
		t.Errorf("the revision rose by %d, want one for each of %d transactions", raised, want)
	}
	ordertest.AuditStore(t, s)
}

// TestStore_MemberFails: changes of one group fail, are refused and panic. The others are
// committed, and the failed ones leave nothing.
func TestStore_MemberFails(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	events := ordertest.SubscribeAll(t, s)
	mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 20)...)
	ordertest.Refuse(t, s, "INSERT", "payments", "NEW.order_id = 'o0007'")
	before := ordertest.ItemOf(t, s, "item").Revision
	release := pooltest.Hold(t, s.Writer())
	c := &calls{t: t, s: s}
	for i := range 20 {
		id := fmt.Sprintf("o%04d", i)
		c.pay(id, ordertest.Money("psp-"+id, 1))
	}
	c.add(func() error {
		_, _, err := s.Cancel(await.Context(t), "o0003", order.Canceller{UserID: "stranger"})
		return err
	})
	c.add(func() (err error) {
		defer func() { err = fmt.Errorf("panicked: %v", recover()) }()
		return s.ChangeWithEvents(await.Context(t), "test", func(ctx context.Context, c database.Conn, _ *Outbox) error {
			if _, err := c.ExecContext(ctx, "UPDATE items SET sold = 0"); err != nil {
				t.Error(err)
			}
			panic("on purpose")
		})
	})
	c.add(func() error {
		return s.ChangeWithEvents(await.Context(t), "test", func(_ context.Context, _ database.Conn, box *Outbox) error {
			box.Closed(order.EventCancelled, []order.Order{{ID: "o0000", ItemID: "item"}})
			return ordertest.ErrTest
		})
	})
	release()
	for i, err := range c.results() {
		switch {
		case i == 7 && (err == nil || database.Transient(err)), i == 20 && !errors.Is(err, order.ErrNotFound),
			i == 21 && err.Error() != "panicked: on purpose", i == 22 && !errors.Is(err, ordertest.ErrTest), i < 20 && i != 7 && err != nil:
			t.Errorf("call %d: %v", i, err)
		}
	}
	rows := ordertest.AllRows(t, s)
	if n := paidOrders(t, s); n != 19 || rows["o0007"].Status != string(order.StatusConfirmed) {
		t.Errorf("%d orders are paid, and the one that failed is %s", n, rows["o0007"].Status)
	}
	if raised := ordertest.ItemOf(t, s, "item").Revision - before; raised != 1 {
		t.Errorf("the revision rose by %d, want 1 for one transaction", raised)
	}
	if n := events(); n != 20+19 {
		t.Errorf("%d events, want one for each order and each payment that was made", n)
	}
	ordertest.AuditStore(t, s)
}

// TestStore_PaymentsTogether: payments that are recorded together get the same answers as
// one after the other.
func TestStore_PaymentsTogether(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 9)...)
	wrong := ordertest.Money("psp-4", 2)
	odd := ordertest.Money("psp \"5\"\x01\\", 1)
	for _, p := range []struct {
		id   string
		p    order.Payment
		want error
	}{{"o0000", ordertest.Money("psp-0", 1), nil}} {
		if _, err := s.Pay(await.Context(t), p.id, p.p); !errors.Is(err, p.want) {
			t.Fatal(err)
		}
	}
	list := []struct {
		id   string
		p    order.Payment
		want error
	}{
		{"o0000", ordertest.Money("psp-0", 1), nil}, // a repeat
		{"o0001", ordertest.Money("psp-1", 1), nil},
		{"o0001", ordertest.Money("psp-1", 1), nil},
		{"o0001", ordertest.Money("psp-2", 1), order.ErrOrderFinal},
		{"o0003", ordertest.Money("psp-1", 1), order.ErrReferenceReused},
		{"o0003", ordertest.Money("psp-3", 1), nil},
		{"o0004", wrong, order.ErrAmountMismatch},
		{"o0004", ordertest.Money("psp-4", 1), nil}, // corrects the mismatch
		{"o0005", odd, nil},
		{"none", ordertest.Money("psp-9", 1), order.ErrNotFound},
		{"o0006", ordertest.Money("psp-6", 1), nil},
		{"o0007", ordertest.Money("psp-6", 1), order.ErrReferenceReused},
	}
	release := pooltest.Hold(t, s.Writer())
	c := &calls{t: t, s: s}
	for _, one := range list {
		c.pay(one.id, one.p)
	}
	release()
	for i, err := range c.results() {
		if !errors.Is(err, list[i].want) || (err == nil) != (list[i].want == nil) {
			t.Errorf("payment %d of %s: %v, want %v", i, list[i].id, err, list[i].want)
		}
	}
	if got := ordertest.PaymentsOf(t, s); len(got) != 7 || got["psp-1"] != "o0001 accepted" || got["psp-2"] != "o0001 duplicate" ||
		got["psp-4"] != "o0004 accepted" || got["psp-6"] != "o0006 accepted" || got[odd.Reference] != "o0005 accepted" {
		t.Errorf("payments are %v", got)
	}
	ordertest.AuditStore(t, s)
}

// TestStore_PaymentsTogether_Refused: payments that may not pay their orders are refused, made together or one by one:
// for the state of the order, the time, the amount or the currency.
func TestStore_PaymentsTogether_Refused(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{true, false} {
		clock := ordertest.NewClock()
		s := openStore(t, ordertest.NewDatabase(t), WithClock(clock))
		mustInsert(t, s, ordertest.NewItem("plain", 1000, 1000))
		mustInsert(t, s, ordertest.Asking("asking", 1000, 1000, time.Minute))
		for _, id := range []string{"paid", "cancelled", "currency", "amount", "reused"} {
			mustCommit(t, s, ordertest.Bought(id, "plain", "u", id, 2))
		}
		mustCommit(t, s, ordertest.Bought("due", "asking", "u", "k", 2))
		if _, _, err := s.Cancel(await.Context(t), "cancelled", order.Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
		wrong := ordertest.Money("wrong", 3)
		if _, err := s.Pay(await.Context(t), "reused", wrong); !errors.Is(err, order.ErrAmountMismatch) {
			t.Fatal(err)
		}
		clock.Add(time.Minute.Milliseconds())
		list := []struct {
			id   string
			p    order.Payment
			want error
		}{
			{"paid", ordertest.Money("psp-0", 2), nil},
			{"cancelled", ordertest.Money("psp-1", 2), order.ErrOrderExpired},
			{"currency", order.Payment{Reference: "psp-2", AmountMinor: 2 * 1999, Currency: "USD"}, order.ErrAmountMismatch},
			{"amount", ordertest.Money("psp-3", 1), order.ErrAmountMismatch},
			{"due", ordertest.Money("psp-4", 2), order.ErrOrderExpired},
			{"amount", ordertest.Money(wrong.Reference, 2), order.ErrReferenceReused}, // the reference of another order's payment
		}
		c := &calls{t: t, s: s}
		release := func() {}
		if together {
			release = pooltest.Hold(t, s.Writer())
		}
		errs := make([]error, len(list))
		for i, one := range list {
			pay := func() error { _, errs[i] = s.Pay(await.Context(t), one.id, one.p); return nil }
			if together {
				c.add(pay)
			} else if err := pay(); err != nil {
				t.Error(err)
			}
		}
		release()
		c.succeeded()
		for i, err := range errs {
			if !errors.Is(err, list[i].want) || (err == nil) != (list[i].want == nil) {
				t.Errorf("together %v, payment %d of %s: %v, want %v", together, i, list[i].id, err, list[i].want)
			}
		}
		if n := paidOrders(t, s); n != 1 {
			t.Errorf("together %v: %d orders are paid, want 1", together, n)
		}
		ordertest.AuditStore(t, s)
	}
}

// TestStore_EventsFail: without its events, no change is committed.
func TestStore_EventsFail(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	events := ordertest.SubscribeAll(t, s)
	mustInsert(t, s, ordertest.NewItem("item", 10, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 2)...)
	before := events()
	ordertest.Refuse(t, s, "INSERT", "webhook_events", "NEW.order_id = 'o0000'")
	release := pooltest.Hold(t, s.Writer())
	c := &calls{t: t, s: s}
	c.cancel("o0000")
	c.cancel("o0001")
	release()
	if errs := c.results(); errs[0] == nil || errs[1] != nil {
		t.Errorf("cancelled with %v, want the first to fail", errs)
	}
	if rows := ordertest.AllRows(t, s); rows["o0000"].Status != string(order.StatusConfirmed) || events()-before != 1 {
		t.Errorf("the order without its event is %s, %d events", rows["o0000"].Status, events()-before)
	}
	ordertest.AuditStore(t, s)
}

// TestStore_PaidTogether: each payment of a group gets its own paid order.
func TestStore_PaidTogether(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	events := ordertest.SubscribeAll(t, s)
	mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 80)...)
	release := pooltest.Hold(t, s.Writer())
	c := &calls{t: t, s: s}
	for i := range 80 {
		id := fmt.Sprintf("o%04d", i)
		c.add(func() error {
			o, err := s.Pay(await.Context(t), id, ordertest.Money("psp-"+id, 1))
			if err == nil && (o.ID != id || o.Status != order.StatusPaid || o.PaymentReference != "psp-"+id || o.PaidAt.IsZero()) {
				err = fmt.Errorf("the answer is %+v", o)
			}
			return err
		})
	}
	release()
	c.succeeded()
	if n := events(); n != 160 {
		t.Errorf("%d events, want one for each order and each payment", n)
	}
	if got := ordertest.PaymentsOf(t, s); len(got) != 80 || got["psp-o0079"] != "o0079 accepted" {
		t.Errorf("%d payments", len(got))
	}
}

// TestStore_CommitFails: the commit of a group fails. All callers get the error, and all
// can repeat their calls, whether it was committed or not.
func TestStore_CommitFails(t *testing.T) {
	t.Parallel()
	for _, committed := range []bool{false, true} {
		s := newStore(t)
		faults := BreakCommits(t, s)
		mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
		mustCommit(t, s, ordertest.Distinct("o", "item", 10)...)
		made := func() *calls {
			release := pooltest.Hold(t, s.Writer())
			c := &calls{t: t, s: s}
			for i := range 10 {
				id := fmt.Sprintf("o%04d", i)
				c.pay(id, ordertest.Money("psp-"+id, 1))
			}
			c.add(func() error { _, err := s.Commit(await.Context(t), ordertest.Distinct("n", "item", 5)); return err })
			c.add(func() error {
				_, _, err := s.Cancel(await.Context(t), "o0001", order.Canceller{Admin: true})
				return err
			})
			release()
			return c
		}
		faults.Strike(CommitFault{committed, io.ErrUnexpectedEOF})
		for i, err := range made().results() {
			if !errors.Is(err, io.ErrUnexpectedEOF) || !database.Transient(err) {
				t.Errorf("committed %v, call %d: %v", committed, i, err)
			}
		}
		faults.Struck(t, 1)
		results := made().results()
		for i, err := range results[:11] {
			if err != nil {
				t.Errorf("committed %v, call %d again: %v", committed, i, err)
			}
		}
		if err := results[11]; !errors.Is(err, order.ErrOrderFinal) {
			t.Errorf("committed %v, the cancellation of a paid order again: %v", committed, err)
		}
		if n := paidOrders(t, s); n != 10 || len(ordertest.AllRows(t, s)) != 15 {
			t.Errorf("committed %v: %d orders are paid", committed, n)
		}
		ordertest.AuditStore(t, s)
	}
}

// TestStore_TransactionLost: one change of a group ends the transaction. The others are
// still committed.
func TestStore_TransactionLost(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 10)...)
	release := pooltest.Hold(t, s.Writer())
	c := &calls{t: t, s: s}
	for i := range 10 {
		id := fmt.Sprintf("o%04d", i)
		if i == 5 {
			c.add(func() error {
				return s.Change(await.Context(t), "test", func(ctx context.Context, c database.Conn, _ int64) error {
					_, err := c.ExecContext(ctx, "ROLLBACK") // as SQLite does when the disk is full
					return errors.Join(err, ordertest.ErrTest)
				})
			})
		}
		c.pay(id, ordertest.Money("psp-"+id, 1))
	}
	c.add(func() error { _, err := s.Commit(await.Context(t), ordertest.Distinct("n", "item", 5)); return err })
	release()
	for i, err := range c.results() {
		if i == 5 && !errors.Is(err, ordertest.ErrTest) || i != 5 && err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if n := paidOrders(t, s); n != 10 || len(ordertest.AllRows(t, s)) != 15 {
		t.Errorf("%d orders are paid, %d rows", n, len(ordertest.AllRows(t, s)))
	}
	ordertest.AuditStore(t, s)
}

// TestStore_ContextEnded: a change whose caller leaves before it has begun is dropped,
// and one that has begun is finished.
func TestStore_ContextEnded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 10, 1))
	release := pooltest.Hold(t, s.Writer())
	ctx, cancel := context.WithCancel(await.Context(t))
	defer cancel()
	ran := false
	c := &calls{t: t, s: s}
	c.add(func() error {
		return s.Change(ctx, "test", func(context.Context, database.Conn, int64) error { ran = true; return nil })
	})
	cancel()
	if err := <-c.ended[0]; !errors.Is(err, context.Canceled) {
		t.Errorf("a change that was dropped: %v", err)
	}
	release()

	ctx, cancel = context.WithCancel(await.Context(t))
	defer cancel()
	err := s.Change(ctx, "test", func(ctx context.Context, c database.Conn, _ int64) error {
		cancel()
		_, err := c.ExecContext(ctx, "UPDATE items SET name = 'finished'")
		return err
	})
	if err != nil || ran {
		t.Errorf("a change that had begun: %v; the dropped one ran: %v", err, ran)
	}
	if name := ordertest.ItemOf(t, s, "item").Name; name != "finished" {
		t.Errorf("the item is called %q", name)
	}
	if err := s.Change(ctx, "test", func(context.Context, database.Conn, int64) error { return ordertest.ErrTest }); !errors.Is(err, context.Canceled) {
		t.Errorf("a change on an ended context: %v", err)
	}
}

// TestStore_Close_Waiting: Close refuses waiting writes, and finishes those that have
// begun.
func TestStore_Close_Waiting(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 10, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 5)...)
	begun, finish := make(chan struct{}), make(chan struct{})
	c := &calls{t: t, s: s}
	first := make(chan error, 1)
	go func() {
		first <- s.Change(await.Context(t), "test", func(ctx context.Context, c database.Conn, _ int64) error {
			close(begun)
			<-finish
			_, err := c.ExecContext(ctx, "UPDATE items SET name = 'finished'")
			return err
		})
	}()
	<-begun
	c.pay("o0000", ordertest.Money("psp-0", 1))
	c.add(func() error { _, err := s.Commit(await.Context(t), ordertest.Distinct("n", "item", 2)); return err })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	for i, err := range c.results() {
		if !errors.Is(err, sql.ErrConnDone) || !database.Transient(err) {
			t.Errorf("call %d, which waited: %v", i, err)
		}
	}
	if _, err := s.Pay(await.Context(t), "o0001", ordertest.Money("psp-1", 1)); !errors.Is(err, sql.ErrConnDone) {
		t.Errorf("a payment after that: %v", err)
	}
	select {
	case err := <-closed:
		t.Errorf("closed while a change was under way: %v", err)
	default:
	}
	close(finish)
	if err := errors.Join(<-first, <-closed); err != nil {
		t.Error(err)
	}
	again, err := Open(await.Context(t), ordertest.SettingOf(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	})
	if got := ordertest.ItemOf(t, again, "item"); got.Name != "finished" || paidOrders(t, again) != 0 {
		t.Errorf("the item is called %q, and %d orders are paid", got.Name, paidOrders(t, again))
	}
}

// TestStore_TwoStores: two stores, like those of two processes, write to one database.
func TestStore_TwoStores(t *testing.T) {
	t.Parallel()
	first := newStore(t)
	second, err := Open(await.Context(t), ordertest.SettingOf(first))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	mustInsert(t, first, ordertest.NewItem("item", 1000, 1))
	mustCommit(t, first, ordertest.Distinct("o", "item", 40)...)
	var all sync.WaitGroup
	for k, s := range []*Store{first, second} {
		for i := range 20 {
			all.Go(func() {
				id := fmt.Sprintf("o%04d", 20*k+i)
				for {
					_, err := s.Pay(await.Context(t), id, ordertest.Money("psp-"+id, 1))
					if err == nil {
						return
					}
					if !database.Transient(err) {
						t.Errorf("pay %s: %v", id, err)
						return
					}
				}
			})
		}
		all.Go(func() {
			for i := range 5 {
				mustCommitPatiently(t, s, ordertest.Distinct(fmt.Sprintf("n%d-%d-", k, i), "item", 10))
			}
		})
	}
	all.Wait()
	if n := paidOrders(t, second); n != 40 || len(ordertest.AllRows(t, first)) != 140 {
		t.Errorf("%d orders are paid, %d rows", n, len(ordertest.AllRows(t, first)))
	}
	ordertest.AuditStore(t, first)
}

// mustCommitPatiently commits even if the other store may have the database's lock.
func mustCommitPatiently(t *testing.T, s *Store, tasks []order.Task) {
	t.Helper()
	for {
		out, err := s.Commit(await.Context(t), tasks)
		switch {
		case err != nil && database.Transient(err):
			continue
		case err != nil:
			t.Error(err)
		case slices.ContainsFunc(out, func(o order.Outcome) bool { return o.Status != order.StatusConfirmed }):
			t.Errorf("outcomes %v", ordertest.Verdicts(out))
		}
		return
	}
}

// TestStore_Overloaded: the callers of changes that the database refuses because too many wait can tell that the
// shop is overloaded.
func TestStore_Overloaded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 10, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 1)...)
	release := pooltest.Hold(t, s.Writer())
	ctx, leave := context.WithCancel(await.Context(t))
	defer leave()
	const most = 8192 // changes wait at most
	var waiting sync.WaitGroup
	for range most {
		waiting.Go(func() {
			err := s.Change(ctx, "wait", func(context.Context, database.Conn, int64) error { return nil })
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a change that waits: %v", err)
			}
		})
	}
	await.True(t, "all changes to wait", func() bool { _, changes := s.Waiting(); return changes == most })
	if _, err := s.Pay(ctx, "o0000", ordertest.Money("psp", 1)); !errors.Is(err, inventory.ErrOverloaded) || !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("a payment beyond the bound: %v", err)
	}
	leave()
	waiting.Wait()
	release()
}
