package payments

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
)

// mixedPayments records payments of every kind for the orders o0 to o3, and returns their
// references, oldest first.
func mixedPayments(t testing.TB, s *store.Store) []string {
	t.Helper()
	storetest.MustInsert(t, s, ordertest.Asking("item", 100, 50, time.Hour))
	var references []string
	for i := range 4 {
		id := fmt.Sprint("o", i)
		storetest.MustCommit(t, s, ordertest.Bought(id, "item", "u"+id, "k", 1))
		for _, p := range []order.Payment{{Reference: "short-" + id, AmountMinor: 1, Currency: "EUR"}, {Reference: "right-" + id, AmountMinor: 1999, Currency: "EUR"}, {Reference: "twice-" + id, AmountMinor: 1999, Currency: "EUR"}, {Reference: "other-" + id, AmountMinor: 1999, Currency: "USD"}} {
			if _, err := s.Pay(await.Context(t), id, p); (err == nil) != strings.HasPrefix(p.Reference, "right") {
				t.Fatalf("%+v: %v", p, err)
			}
			references = append(references, p.Reference)
		}
	}
	return references
}

// paymentsOf reads all payments.
func paymentsOf(t testing.TB, s *store.Store) []order.PaymentRecord {
	t.Helper()
	service := Service{Store: s}
	list, more, err := service.Payments(await.Context(t), order.PaymentFilter{Limit: 1000})
	if err != nil || more {
		t.Fatalf("read payments: more %v, %v", more, err)
	}
	return list
}

func TestService_Payments(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	service := Service{Store: s}
	references := mixedPayments(t, s)
	slices.Reverse(references)
	pick := func(prefixes ...string) (out []string) {
		for _, r := range references {
			if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(r, p) }) {
				out = append(out, r)
			}
		}
		return out
	}
	id := ordertest.PaymentIDs(t, s)["twice-o1"]
	if _, err := service.MarkRefunded(await.Context(t), id, ordertest.Root); err != nil {
		t.Fatal(err)
	}
	left := slices.DeleteFunc(pick("short", "twice", "other"), func(r string) bool { return r == "twice-o1" })
	for _, tt := range []struct {
		filter order.PaymentFilter
		want   []string
	}{
		{order.PaymentFilter{}, references},
		{order.PaymentFilter{Outcome: order.PaymentAccepted}, pick("right")},
		{order.PaymentFilter{Outcome: order.PaymentMismatch}, pick("short", "other")},
		{order.PaymentFilter{Outcome: order.PaymentDuplicate}, slices.DeleteFunc(pick("twice"), func(r string) bool { return r == "twice-o1" })},
		{order.PaymentFilter{Outcome: order.PaymentRefunded}, []string{"twice-o1"}},
		{order.PaymentFilter{Outcome: order.PaymentLate}, nil},
		{order.PaymentFilter{NeedsRefund: true}, left},
		{order.PaymentFilter{NeedsRefund: true, Outcome: order.PaymentMismatch}, pick("short", "other")},
		{order.PaymentFilter{NeedsRefund: true, Outcome: order.PaymentAccepted}, nil},
		{order.PaymentFilter{NeedsRefund: true, Outcome: order.PaymentRefunded}, nil},
		{order.PaymentFilter{Reference: "twice-o1"}, []string{"twice-o1"}},
		{order.PaymentFilter{Reference: "twice-o1", Outcome: order.PaymentRefunded}, []string{"twice-o1"}},
		{order.PaymentFilter{Reference: "twice-o1", Outcome: order.PaymentDuplicate}, nil},
		{order.PaymentFilter{Reference: "twice-o1", NeedsRefund: true}, nil},
		{order.PaymentFilter{Reference: "short-o1", NeedsRefund: true}, []string{"short-o1"}},
		{order.PaymentFilter{Reference: "short"}, nil},
	} {
		for _, limit := range []int{1, 3, 100} {
			f := tt.filter
			f.Limit = limit
			var got []string
			for more := true; more; {
				var page []order.PaymentRecord
				var err error
				if page, more, err = service.Payments(await.Context(t), f); err != nil || more && len(page) != limit {
					t.Fatalf("%+v: %d payments, more %v, %v", f, len(page), more, err)
				}
				for _, p := range page {
					got = append(got, p.Reference)
					order := p.Reference[len(p.Reference)-2:]
					if p.OrderID != order || p.ItemID != "item" || p.UserID != "u"+order || p.ReceivedAt.UnixMilli() != c.Load() ||
						(p.ID == id) != (p.RefundedAt.UnixMilli() == c.Load()) || (p.ID == id) != (p.ReceivedAs != p.Outcome) {
						t.Errorf("payment %+v", p)
					}
					f.Before = p.ID
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%+v: %v, want %v", f, got, tt.want)
			}
		}
	}
	list, err := service.OrderPayments(await.Context(t), "o2")
	if err != nil || len(list) != 4 || list[0].Reference != "short-o2" || list[3].Reference != "other-o2" {
		t.Errorf("payments of an order: %+v, %v", list, err)
	}
	for limit, want := range map[int]int{5: 5, 100: len(left)} {
		if n, err := service.ToRefund(await.Context(t), limit); err != nil || n != want {
			t.Errorf("to refund, up to %d: %d, %v, want %d", limit, n, err, want)
		}
	}
}

// TestService_Payments_Plans: no list of payments scans or sorts the table.
func TestService_Payments_Plans(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	for query, want := range map[string]string{
		listPayments:         "SEARCH p USING INTEGER PRIMARY KEY (rowid<?)",
		listPaymentsBy:       "SEARCH p USING INDEX payments_outcome (outcome=? AND id<?)",
		listPaymentsToRefund: "SEARCH p USING INDEX payments_refund (id<?)",
		selectPaymentsOf:     "SEARCH p USING INDEX payments_order (order_id=?)",
		selectPaymentByID:    "SEARCH p USING INTEGER PRIMARY KEY (rowid=?)",
		store.SelectPayment:  "SEARCH payments USING INDEX sqlite_autoindex_payments_1 (reference=?)",
		store.CountPayments:  "SEARCH payments USING COVERING INDEX payments_order (order_id=?)",
		countPaymentsToWatch: "COVERING INDEX payments_refund",
		store.RefundAccepted: "SEARCH payments USING INDEX payments_",
	} {
		var plan []struct{ Detail string }
		args := make([]any, strings.Count(query, "?"))
		if err := s.Reader().Raw("EXPLAIN QUERY PLAN "+query, args...).Scan(&plan).Error; err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		got := fmt.Sprint(plan)
		if !strings.Contains(got, want) || strings.Contains(got, "SCAN p ") || strings.Contains(got, "TEMP") {
			t.Errorf("plan of %s:\n%s", query, got)
		}
	}
}

// TestStore_pay_Limit: a backend that reports an order's payment with ever new references
// does not fill the disk, and an order can be paid after any number of recorded payments.
func TestStore_pay_Limit(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Hour))
	storetest.MustCommit(t, s, ordertest.Bought("o", "item", "u", "k", 1), ordertest.Bought("other", "item", "u", "k2", 1))
	wrong := func(i int) order.Payment {
		return order.Payment{Reference: fmt.Sprint("r", i), AmountMinor: 1, Currency: "EUR"}
	}
	for i := range store.MaxPayments {
		if _, err := s.Pay(await.Context(t), "o", wrong(i)); !errors.Is(err, order.ErrAmountMismatch) {
			t.Fatalf("payment %d: %v, want ErrAmountMismatch", i, err)
		}
	}
	if o, err := s.Pay(await.Context(t), "o", wrong(store.MaxPayments)); !errors.Is(err, order.ErrPaymentLimit) || o.ID != "o" {
		t.Errorf("beyond the limit: %+v, %v, want ErrPaymentLimit", o, err)
	}
	if _, err := s.Pay(await.Context(t), "o", wrong(3)); !errors.Is(err, order.ErrAmountMismatch) {
		t.Errorf("a repeat at the limit: %v, want ErrAmountMismatch", err)
	}
	if _, err := s.Pay(await.Context(t), "other", wrong(store.MaxPayments)); !errors.Is(err, order.ErrAmountMismatch) {
		t.Errorf("another order's: %v, want ErrAmountMismatch", err)
	}
	if o, err := s.Pay(await.Context(t), "o", ordertest.Money("right", 1)); err != nil || o.Status != order.StatusPaid {
		t.Errorf("the right amount: %+v, %v", o, err)
	}
	if _, err := s.Pay(await.Context(t), "o", ordertest.Money("again", 1)); !errors.Is(err, order.ErrPaymentLimit) {
		t.Errorf("a duplicate beyond the limit: %v, want ErrPaymentLimit", err)
	}
	if n := len(ordertest.PaymentsOf(t, s)); n != store.MaxPayments+2 {
		t.Errorf("%d payments recorded, want %d", n, store.MaxPayments+2)
	}
}

// TestStore_pay_Corrected: a mismatch can be corrected under its reference until it is
// refunded.
func TestStore_pay_Corrected(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 9, time.Minute))
	for _, id := range []string{"o1", "o2", "o3", "o4"} {
		storetest.MustCommit(t, s, ordertest.Bought(id, "item", "u", id, 1))
	}
	pay := func(id, reference string, amount int64, want error) {
		t.Helper()
		for range 2 {
			if _, err := s.Pay(await.Context(t), id, order.Payment{Reference: reference, AmountMinor: amount, Currency: "EUR"}); !errors.Is(err, want) {
				t.Errorf("%s, %d for %s: %v, want %v", reference, amount, id, err, want)
			}
		}
		ordertest.AuditStore(t, s)
	}
	for _, id := range []string{"o1", "o2", "o3", "o4"} {
		pay(id, "r-"+id, 19, order.ErrAmountMismatch)
	}
	ids := ordertest.PaymentIDs(t, s)
	pay("o2", "r-o1", 1999, order.ErrReferenceReused) // belongs to another order
	pay("o1", "r-o1", 20, order.ErrAmountMismatch)
	c.Add(1)
	pay("o1", "r-o1", 1999, nil)
	pay("o1", "r-o1", 19, order.ErrReferenceReused)
	pay("o1", "r-o1", 20, order.ErrReferenceReused)
	pay("o2", "other", 1999, nil)
	pay("o2", "r-o2", 1999, order.ErrOrderFinal)
	if _, err := (&Service{Store: s}).MarkRefunded(await.Context(t), ids["r-o3"], ordertest.Root); err != nil {
		t.Fatal(err)
	}
	pay("o3", "r-o3", 1999, order.ErrReferenceReused)
	c.Add(time.Minute.Milliseconds())
	pay("o4", "r-o4", 1999, order.ErrOrderExpired)
	pay("o4", "r-o4", 19, order.ErrReferenceReused)
	want := map[string]string{"r-o1": "o1 accepted", "r-o2": "o2 duplicate", "other": "o2 accepted", "r-o3": "o3 refunded", "r-o4": "o4 late"}
	if got := ordertest.PaymentsOf(t, s); !maps.Equal(got, want) {
		t.Errorf("payments %v, want %v", got, want)
	}
	list := slices.DeleteFunc(paymentsOf(t, s), func(p order.PaymentRecord) bool { return p.ID != ids["r-o1"] })
	if len(list) != 1 || list[0].AmountMinor != 1999 || list[0].ReceivedAs != order.PaymentAccepted || list[0].ReceivedAt.UnixMilli() != c.Load()-time.Minute.Milliseconds() {
		t.Errorf("the corrected payment is %+v", list)
	}
}

func TestStore_WithPayments(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	var heard []order.PaymentOutcome
	store.WithPayments(func(o order.PaymentOutcome) { heard = append(heard, o) })(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Hour))
	storetest.MustCommit(t, s, ordertest.Bought("o", "item", "u", "k", 1), ordertest.Bought("gone", "item", "u", "k2", 1))
	if _, _, err := s.Cancel(await.Context(t), "gone", order.Canceller{Admin: true}); err != nil {
		t.Fatal(err)
	}
	pay := func(id, reference string, units int64, want error) {
		t.Helper()
		for range 2 { // a repeat records nothing
			if _, err := s.Pay(await.Context(t), id, ordertest.Money(reference, units)); !errors.Is(err, want) {
				t.Errorf("%s for %s: %v, want %v", reference, id, err, want)
			}
		}
	}
	pay("o", "r1", 2, order.ErrAmountMismatch)
	pay("o", "r2", 1, nil)
	pay("o", "r3", 1, order.ErrOrderFinal)
	pay("gone", "r4", 1, order.ErrOrderExpired)
	pay("gone", "r1", 1, order.ErrReferenceReused)
	for range 2 {
		if _, _, err := checkout.RefundInStore(await.Context(t), s, "o", checkout.Refund{By: ordertest.Root}); err != nil {
			t.Fatal(err)
		}
		if _, err := (&Service{Store: s}).MarkRefunded(await.Context(t), ordertest.PaymentIDs(t, s)["r4"], ordertest.Root); err != nil {
			t.Fatal(err)
		}
	}
	want := []order.PaymentOutcome{order.PaymentMismatch, order.PaymentAccepted, order.PaymentDuplicate, order.PaymentLate, order.PaymentRefunded, order.PaymentRefunded}
	if !slices.Equal(heard, want) {
		t.Errorf("reported %v, want %v", heard, want)
	}
}

func TestService_MarkRefunded(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	service := Service{Store: s}
	mixedPayments(t, s)
	ids := ordertest.PaymentIDs(t, s)
	at := c.Load()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			p, err := service.MarkRefunded(await.Context(t), ids["short-o0"], ordertest.Root)
			if err != nil || p.Outcome != order.PaymentRefunded || p.ReceivedAs != order.PaymentMismatch || p.RefundedAt.UnixMilli() != at || p.Reference != "short-o0" {
				t.Errorf("marked %+v, %v", p, err)
			}
		})
	}
	wg.Wait()
	c.Add(1000)
	if p, err := service.MarkRefunded(await.Context(t), ids["short-o0"], ordertest.Root); err != nil || p.RefundedAt.UnixMilli() != at {
		t.Errorf("marked again later: %+v, %v", p, err)
	}
	// A recorded mismatch is answered as one, refunded or not.
	if _, err := s.Pay(await.Context(t), "o0", order.Payment{Reference: "short-o0", AmountMinor: 1, Currency: "EUR"}); !errors.Is(err, order.ErrAmountMismatch) {
		t.Errorf("a repeat of a refunded payment: %v, want ErrAmountMismatch", err)
	}
	if _, err := service.MarkRefunded(await.Context(t), 999, ordertest.Root); !errors.Is(err, order.ErrPaymentNotFound) {
		t.Errorf("no payment: %v, want ErrPaymentNotFound", err)
	}
	if p, err := service.MarkRefunded(await.Context(t), ids["right-o0"], ordertest.Root); !errors.Is(err, order.ErrPaymentAccepted) || p.Outcome != order.PaymentAccepted {
		t.Errorf("an accepted payment: %+v, %v, want ErrPaymentAccepted", p, err)
	}
	entries, _, err := s.Audit(await.Context(t), order.AuditFilter{OrderID: "o0", Limit: 100})
	if err != nil || len(entries) != 1 {
		t.Fatalf("audit %+v, %v, want 1 entry", entries, err)
	}
	id := ids["short-o0"]
	want := order.AuditEntry{
		ID: entries[0].ID, At: time.UnixMilli(at).UTC(), Actor: ordertest.Root.Actor, Action: "payment.refund", ItemID: "item", OrderID: "o0",
		Before: fmt.Sprintf(`{"outcome":"mismatch","payment":%d}`, id), After: fmt.Sprintf(`{"outcome":"refunded","payment":%d}`, id),
		RequestID: ordertest.Root.RequestID,
	}
	if entries[0] != want {
		t.Errorf("audit %+v, want %+v", entries[0], want)
	}
	ordertest.Occupy(t, s)
	ordertest.BusyTimeout(t, s, time.Millisecond)
	if _, err := service.MarkRefunded(await.Context(t), ids["short-o1"], ordertest.Root); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("with the database busy: %v, want ErrUnavailable", err)
	}
}

// TestService_Payments_Unread: a database that does not answer in time gives ErrUnavailable.
func TestService_Payments_Unread(t *testing.T) {
	t.Parallel()
	service := Service{Store: storetest.New(t)}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	_, _, list := service.Payments(ctx, order.PaymentFilter{Limit: 1})
	_, of := service.OrderPayments(ctx, "o1")
	_, count := service.ToRefund(ctx, 1)
	for name, err := range map[string]error{"list": list, "payments of an order": of, "count": count} {
		if !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
}
