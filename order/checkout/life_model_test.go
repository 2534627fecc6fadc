package checkout_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/payments"
	"flashsale/order/release"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// lifeOrder is an order in the model.
type lifeOrder struct {
	order.Task
	status    order.Status
	reason    string
	expiresAt int64 // Unix milliseconds; 0: never
	// restocked says that the units of a refunded order returned to stock.
	restocked    bool
	pendingSince int64 // when its release was recorded; 0: no pending release
}

// holds reports whether the order's units are taken from the stock.
func (o *lifeOrder) holds() bool {
	return o.status == order.StatusConfirmed || o.status == order.StatusPaid || o.status == order.StatusRefunded && !o.restocked
}

// lives is a model of the orders' transitions, after the tables of docs/order-life.md, with
// the store that it is compared with.
type lives struct {
	tb    testing.TB
	store *store.Store
	f     *worker.Fulfiller
	shelf *shoptest.Shelf
	clock *ordertest.Clock

	total, limit, window int64
	tasks                []order.Task // all that were ever queued
	orders               map[string]*lifeOrder
	keys                 map[string]bool
	money                map[string]string        // outcome by reference, as payments reads it
	paid                 map[string]order.Payment // by reference
	received             map[string]order.PaymentOutcome
	away                 bool // units cannot be released at present
}

func (m *lives) now() int64 { return m.clock.Load() }

// held sums the units that orders hold, of one buyer or of all.
func (m *lives) held(user string) (n int64) {
	for _, o := range m.orders {
		if o.holds() && (user == "" || user == o.UserID) {
			n += o.Quantity
		}
	}
	return n
}

// newLives empties the store and inserts one item.
func newLives(t *testing.T, rt *rapid.T, s *store.Store, c *ordertest.Clock) *lives {
	for _, table := range []string{"orders", "buyers", "payments", "releases", "stock_changes", "items"} {
		if err := s.Writer().Exec("DELETE FROM " + table).Error; err != nil {
			rt.Fatal(err)
		}
	}
	m := &lives{
		tb: t, store: s, clock: c, orders: map[string]*lifeOrder{}, keys: map[string]bool{},
		money: map[string]string{}, paid: map[string]order.Payment{}, received: map[string]order.PaymentOutcome{},
		total: rapid.Int64Range(0, 30).Draw(rt, "stock"), limit: rapid.Int64Range(1, 6).Draw(rt, "limit"),
		window: rapid.SampledFrom([]int64{0, 10_000, 10_000, 60_000}).Draw(rt, "window"),
	}
	m.f, m.shelf = shoptest.OnShelf(t, s)
	storetest.MustInsert(t, s, ordertest.Asking("item", m.total, m.limit, time.Duration(m.window)*time.Millisecond))
	return m
}

// queue accepts a purchase. There is no Redis that would refuse one, so the database gets
// purchases that it must refuse, too.
func (m *lives) queue(t *rapid.T) {
	for range rapid.IntRange(1, 4).Draw(t, "purchases") {
		m.tasks = append(m.tasks, ordertest.Bought(fmt.Sprintf("o%03d", len(m.tasks)), "item",
			fmt.Sprintf("u%d", rapid.IntRange(0, 5).Draw(t, "user")), fmt.Sprintf("k%d", rapid.IntRange(0, 3).Draw(t, "key")),
			rapid.Int64Range(1, 3).Draw(t, "quantity")))
	}
}

func (m *lives) draw(t *rapid.T, n int) []order.Task {
	if len(m.tasks) == 0 {
		t.Skip("nothing was bought")
	}
	return rapid.SliceOfN(rapid.SampledFrom(m.tasks), 1, n).Draw(t, "orders")
}

// commit commits tasks, some of which were delivered before.
func (m *lives) commit(t *rapid.T) {
	tasks := m.draw(t, 8)
	want := make([]string, len(tasks))
	for i := range tasks {
		want[i] = m.committed(&tasks[i])
	}
	out, err := m.store.Commit(await.Context(m.tb), tasks)
	if err != nil {
		t.Fatal(err)
	}
	if got := ordertest.Verdicts(out); !slices.Equal(got, want) {
		t.Fatalf("committed as %q, want %q, of %+v", got, want, tasks)
	}
}

func (o *lifeOrder) verdict() string {
	if o.reason == "" {
		return string(o.status)
	}
	return string(o.status) + " " + o.reason
}

func (m *lives) committed(t *order.Task) string {
	if o, ok := m.orders[t.ID]; ok {
		return o.verdict()
	}
	o := &lifeOrder{Task: *t, status: order.StatusRejected}
	switch key := t.UserID + " " + t.IdempotencyKey; {
	case m.keys[key]:
		o.reason = order.ReasonDuplicate
	case m.held("")+t.Quantity > m.total:
		o.reason = order.ReasonSoldOut
	case m.held(t.UserID)+t.Quantity > m.limit:
		o.reason = order.ReasonUserLimit
	default:
		o.status = order.StatusConfirmed
		if m.window > 0 {
			o.expiresAt = m.now() + m.window
		}
	}
	m.orders[t.ID] = o
	m.keys[t.UserID+" "+t.IdempotencyKey] = true
	return o.verdict()
}

// bury rejects orders that no worker could commit; orders with a row stay.
func (m *lives) bury(t *rapid.T) {
	tasks := m.draw(t, 2)
	want := 0
	for i := range tasks {
		if m.orders[tasks[i].ID] != nil {
			continue
		}
		want++
		m.keys[tasks[i].UserID+" "+tasks[i].IdempotencyKey] = true
		m.orders[tasks[i].ID] = &lifeOrder{Task: tasks[i], status: order.StatusRejected, reason: order.ReasonFailed, pendingSince: m.now()}
	}
	if n, _, err := worker.RejectDead(await.Context(m.tb), m.store, tasks); err != nil || n != want {
		t.Fatalf("rejected %d, %v, want %d", n, err, want)
	}
}

// pay sends a payment, often a repeated one, often with a wrong amount.
func (m *lives) pay(t *rapid.T) {
	tk := m.draw(t, 1)[0]
	p := ordertest.Money(fmt.Sprintf("psp%d", rapid.IntRange(0, 9).Draw(t, "reference")), tk.Quantity)
	if rapid.IntRange(0, 4).Draw(t, "another amount") == 0 {
		p.AmountMinor++
	}
	o := m.orders[tk.ID]
	want := m.payment(tk.ID, o, p)
	got, err := m.store.Pay(await.Context(m.tb), tk.ID, p)
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Fatalf("payment %+v of %+v: %v, want %v", p, o, err, want)
	}
	answered := want == nil || errors.Is(want, order.ErrOrderExpired) || errors.Is(want, order.ErrOrderFinal) || errors.Is(want, order.ErrAmountMismatch)
	if answered && (got.ID != tk.ID || got.Status != o.status) {
		t.Fatalf("payment %+v: answered with %+v, want %s", p, got, o.status)
	}
}

func (m *lives) payment(id string, o *lifeOrder, p order.Payment) error {
	known, ok := m.paid[p.Reference]
	switch {
	case !ok:
	case known == p && strings.HasPrefix(m.money[p.Reference], id+" "):
		return store.PaymentErrors[m.received[p.Reference]]
	case m.money[p.Reference] != id+" mismatch": // a mismatch can be corrected
		return order.ErrReferenceReused
	}
	if o == nil {
		return order.ErrNotFound
	}
	outcome := order.PaymentLate
	inTime := o.status == order.StatusConfirmed && (o.expiresAt == 0 || m.now() < o.expiresAt)
	switch {
	case (inTime || o.status == order.StatusPaid) && p.AmountMinor != 1999*o.Quantity:
		outcome = order.PaymentMismatch
	case o.status == order.StatusPaid:
		outcome = order.PaymentDuplicate
	case inTime:
		outcome, o.status = order.PaymentAccepted, order.StatusPaid
	}
	m.paid[p.Reference], m.received[p.Reference] = p, outcome
	m.money[p.Reference] = id + " " + string(outcome)
	return store.PaymentErrors[outcome]
}

// refund makes an admin's refund of an order, often a repeated one, and may release the
// units.
func (m *lives) refund(t *rapid.T) {
	tk := m.draw(t, 1)[0]
	r := checkout.Refund{Restock: rapid.Bool().Draw(t, "restock"), By: order.By{Actor: "root"}}
	o := m.orders[tk.ID]
	var want error
	switch {
	case o == nil:
		want = order.ErrNotFound
	case o.status == order.StatusPaid:
		o.status, o.restocked = order.StatusRefunded, r.Restock
		if r.Restock {
			o.pendingSince = m.now()
		}
		for reference, was := range m.money {
			if was == tk.ID+" accepted" {
				m.money[reference] = tk.ID + " refunded"
			}
		}
	case o.status != order.StatusRefunded:
		want = checkout.ErrNotPaid
	case o.restocked != r.Restock:
		want = checkout.ErrRefundDiffers
	}
	got, pending, err := checkout.RefundInStore(await.Context(m.tb), m.store, tk.ID, r)
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Fatalf("refund %+v of %+v: %v, want %v", r, o, err, want)
	}
	if err == nil && (got.Status != order.StatusRefunded || got.Restocked != r.Restock || (len(pending) == 1) != (o.pendingSince != 0)) {
		t.Fatalf("refunded as %+v, pending %+v, and the model has %+v", got, pending, o)
	}
	m.give(t, pending)
}

// mark marks payments as refunded, including some for which that is refused.
func (m *lives) mark(t *rapid.T) {
	id := rapid.Int64Range(1, 12).Draw(t, "payment")
	service := payments.Service{Store: m.store}
	list, _, err := service.Payments(await.Context(m.tb), order.PaymentFilter{Before: id + 1, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(p order.PaymentRecord) bool { return p.ID != id })
	want := order.ErrPaymentNotFound
	if len(list) == 1 {
		switch was := m.money[list[0].Reference]; {
		case strings.HasSuffix(was, " accepted"):
			want = order.ErrPaymentAccepted
		default:
			want = nil
			m.money[list[0].Reference] = list[0].OrderID + " refunded"
		}
	}
	got, err := service.MarkRefunded(await.Context(m.tb), id, order.By{Actor: "root"})
	if !errors.Is(err, want) || (err == nil) != (want == nil) || err == nil && got.Outcome != order.PaymentRefunded {
		t.Fatalf("payment %d marked: %+v, %v, want %v", id, got, err, want)
	}
}

// cancel cancels as the buyer, an admin or another user. Then the units are released, or
// released without a record of it, or the process dies.
func (m *lives) cancel(t *rapid.T) {
	tk := m.draw(t, 1)[0]
	by := rapid.SampledFrom([]order.Canceller{{UserID: tk.UserID}, {UserID: "root", Admin: true}, {UserID: "stranger"}, {}}).Draw(t, "by")
	o := m.orders[tk.ID]
	var want error
	switch {
	case o == nil, !by.Admin && by.UserID != o.UserID:
		want = order.ErrNotFound
	case o.status == order.StatusConfirmed:
		o.status, o.pendingSince, o.reason = order.StatusCancelled, m.now(), order.ReasonBuyer
		if by.Admin {
			o.reason = order.ReasonAdmin
		}
	case o.status != order.StatusCancelled:
		want = order.ErrOrderFinal
	}
	got, pending, err := m.store.Cancel(await.Context(m.tb), tk.ID, by)
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Fatalf("cancel %+v by %+v: %v, want %v", o, by, err, want)
	}
	if err == nil && (got.Status != order.StatusCancelled || (len(pending) == 1) != (o.pendingSince != 0)) {
		t.Fatalf("cancelled as %+v, pending %+v, and the model has %+v", got, pending, o)
	}
	m.give(t, pending)
}

// give releases pending units, possibly only some of them.
func (m *lives) give(t *rapid.T, pending []store.Release) {
	switch rapid.SampledFrom([]string{"given", "given", "dies before", "dies between"}).Draw(t, "units") {
	case "given":
		m.f.Releaser.Release(await.Context(m.tb), pending)
		m.back(pending)
	case "dies between":
		for _, r := range pending {
			if _, _, err := m.f.Releaser.ReleaseToSale(await.Context(m.tb), r.ItemID, []store.Release{r}); err != nil && !m.away {
				t.Fatal(err)
			}
		}
	}
}

// back deletes the records of released units.
func (m *lives) back(pending []store.Release) {
	for _, r := range pending {
		if !m.away {
			m.orders[r.OrderID].pendingSince = 0
		}
	}
}

// expireOrder expires one order in the model, if it is due.
func (m *lives) expireOrder(o *lifeOrder, by int64) bool {
	if o.status != order.StatusConfirmed || o.expiresAt == 0 || by < o.expiresAt {
		return false
	}
	o.status, o.reason, o.pendingSince = order.StatusExpired, order.ReasonUnpaid, m.now()
	return true
}

// expire delivers expiry tasks, early, late and repeatedly.
func (m *lives) expire(t *rapid.T) {
	var ids []string
	for _, tk := range m.draw(t, 6) {
		ids = append(ids, tk.ID)
		if o := m.orders[tk.ID]; o != nil {
			m.expireOrder(o, m.now())
		}
	}
	if rapid.Bool().Draw(t, "by a worker that lives") {
		m.handled(t, ids, m.f.Handle(await.Context(m.tb), ordertest.Expiries(ids...)))
		for _, id := range ids {
			if o := m.orders[id]; o != nil && !m.away {
				o.pendingSince = 0 // including orders closed before
			}
		}
		return
	}
	_, pending, err := m.store.Expire(await.Context(m.tb), ids)
	if err != nil {
		t.Fatal(err)
	}
	m.give(t, pending)
}

// handled expects a task to be retried if it was too early, or if its units could not be
// released.
func (m *lives) handled(t *rapid.T, ids []string, got []error) {
	for i, id := range ids {
		var want error
		switch o := m.orders[id]; {
		case o == nil:
		case o.status == order.StatusConfirmed && o.expiresAt > 0:
			want = queue.Snooze(time.Duration(o.expiresAt-m.now()) * time.Millisecond)
		case m.away && o.pendingSince != 0:
			want = release.ErrNotReleased
		}
		if (got[i] == nil) != (want == nil) || want != nil && !errors.Is(got[i], want) && got[i].Error() != want.Error() {
			t.Fatalf("expiry of %s: %v, want %v", id, got[i], want)
		}
	}
}

// sweep finishes work that is old enough.
func (m *lives) sweep(t *rapid.T) {
	want, before := worker.Swept{}, m.now()-worker.SweepGrace.Milliseconds()
	for _, id := range slices.Sorted(maps.Keys(m.orders)) {
		o := m.orders[id]
		fresh := m.expireOrder(o, before)
		if fresh && !m.away {
			o.pendingSince = 0
		}
		switch {
		case fresh && !m.away:
			want.Expired++
		case o.pendingSince == 0 || o.pendingSince > before:
		case m.away:
			want.Waiting++
		default:
			o.pendingSince = 0
			want.Released++
		}
	}
	got, err := worker.NewSweeper(m.f, worker.SweeperConfig{}).Sweep(await.Context(m.tb))
	if got != want || err != nil && !m.away {
		t.Fatalf("swept %+v, %v, want %+v", got, err, want)
	}
}

// pass advances the clock: to the instant of an order's expiry, a millisecond before it, or
// by some seconds.
func (m *lives) pass(t *rapid.T) {
	by := rapid.Int64Range(1, 5000).Draw(t, "ms")
	var next int64
	for _, o := range m.orders {
		if o.status == order.StatusConfirmed && o.expiresAt > m.now() && (next == 0 || o.expiresAt < next) {
			next = o.expiresAt
		}
	}
	if next > 0 {
		by = rapid.SampledFrom([]int64{by, next - m.now(), max(next-m.now()-1, 0)}).Draw(t, "to")
	}
	m.clock.Add(by)
}

// redis stops or starts Redis.
func (m *lives) redis(t *rapid.T) {
	if m.away = !m.away; m.away {
		m.shelf.Set(0, ordertest.ErrTest)
	} else {
		m.shelf.Set(0, nil)
	}
}

// check compares the tables with the model, and checks the sums.
func (m *lives) check(t *rapid.T) {
	rows := ordertest.AllRows(m.tb, m.store)
	if len(rows) != len(m.orders) {
		t.Fatalf("%d rows, want %d", len(rows), len(m.orders))
	}
	var pendingIDs []string
	left, pending := m.total, int64(0)
	for id, o := range m.orders {
		r := rows[id]
		if r.Status != string(o.status) || r.Reason != o.reason || r.ExpiresAt != o.expiresAt || r.Restocked != o.restocked ||
			(r.PaidAt != 0) != (o.status == order.StatusPaid || o.status == order.StatusRefunded) {
			t.Fatalf("the row of %s is %+v, want %+v", id, r, o)
		}
		back := m.shelf.Units[id]
		closed := o.status == order.StatusCancelled || o.status == order.StatusExpired || o.reason == order.ReasonFailed || o.restocked
		if back != 0 && (!closed || back != o.Quantity) || back == 0 && closed && o.pendingSince == 0 {
			t.Fatalf("%d units of %+v were released", back, o)
		}
		if o.pendingSince != 0 {
			pendingIDs = append(pendingIDs, id)
		}
		if r.ConfirmedAt == 0 {
			continue // the database never counted it
		}
		// As a sale counts: the units taken, minus those released. Without Redis to refuse
		// purchases the result may be negative.
		left += back - r.Quantity
		if back == 0 && o.pendingSince != 0 {
			pending += r.Quantity
		}
	}
	if sold := ordertest.ItemOf(m.tb, m.store, "item").Sold; left+pending+sold != m.total {
		t.Fatalf("%d left, %d pending and %d held or sold of %d", left, pending, sold, m.total)
	}
	slices.Sort(pendingIDs)
	if got := ordertest.ReleasesOf(m.tb, m.store); !slices.Equal(got, pendingIDs) {
		t.Fatalf("pending releases are %v, want %v", got, pendingIDs)
	}
	if got := ordertest.PaymentsOf(m.tb, m.store); !maps.Equal(got, m.money) {
		t.Fatalf("payments %v, want %v", got, m.money)
	}
	ordertest.AuditStore(m.tb, m.store)
	if m.tb.Failed() {
		t.Fatal("the tables do not add up")
	}
}

// TestStore_Life_Model drives orders through every transition, on a clock that it stops at
// critical instants, with callbacks repeated and processes that die between two steps, and
// after each step compares every table.
func TestStore_Life_Model(t *testing.T) {
	t.Parallel()
	testLifeModel(t)
}

func TestStore_Life_Model_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testLifeModel(t)
}

func testLifeModel(t *testing.T) {
	s := storetest.New(t)
	// The data need not survive a power failure.
	ordertest.NoSync(t, s)
	c := storetest.SetClock(s)
	rapid.Check(t, func(rt *rapid.T) {
		m := newLives(t, rt, s, c)
		rt.Repeat(map[string]func(*rapid.T){
			"queue": m.queue, "commit": m.commit, "commit more": m.commit, "bury": m.bury, "pay": m.pay, "pay more": m.pay,
			"cancel": m.cancel, "refund": m.refund, "mark": m.mark, "expire": m.expire, "sweep": m.sweep, "time": m.pass, "redis": m.redis, "": m.check,
		})
	})
}
