package order

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestService_ExportBuyer exports all data of one buyer, and none of another.
func TestService_ExportBuyer(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, asking("", 2000, 1500, time.Hour))
		var many []task
		for i := range exportPage + 1 { // more than a page
			many = append(many, bought(fmt.Sprintf("o%04d-%s", i, s.item), s.item, "alice", fmt.Sprintf("k%d", i), 1))
		}
		mustCommit(t, s.store, many...)
		mustCommit(t, s.store, bought("bobs-"+s.item, s.item, "bob", "kb", 5))
		queued := s.mustPlace(s.purchase("alice", "kq", 2, 0)).Order
		s.mustPlace(s.purchase("bob", "kq", 2, 0))
		both := many[3] // committed, and not acknowledged
		mustEnqueue(t, s.queue, leased(both))
		if _, err := s.service.Pay(await.Context(t), many[0].ID, money("psp-a", 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.service.Pay(await.Context(t), many[0].ID, money("psp-c", 2)); !errors.Is(err, ErrAmountMismatch) {
			t.Fatal(err)
		}
		if _, _, err := s.store.refund(await.Context(t), many[0].ID, Refund{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.service.Pay(await.Context(t), "bobs-"+s.item, money("psp-b", 5)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.store.cancel(await.Context(t), many[1].ID, Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.store.cancel(await.Context(t), "bobs-"+s.item, Canceller{Admin: true}); !errors.Is(err, ErrOrderFinal) {
			t.Fatal(err)
		}
		for _, e := range [][3]string{{"alice", "", "{}"}, {"root", many[2].ID, ""}, {"root", "", `{"user_id":"alice"}`}, {"root", "", `{"user_id":"bob"}`}, {"bob", "bobs", ""}} {
			err := s.store.Writer().Exec("INSERT INTO audit (at, actor, action, order_id, after) VALUES (5, ?, 'test', ?, ?)", e[0], e[1], e[2]).Error
			if err != nil {
				t.Fatal(err)
			}
		}
		orders := map[string]Order{}
		var got []string
		note := func(format string, args ...any) error {
			got = append(got, fmt.Sprintf(format, args...))
			return nil
		}
		to := BuyerRecords{
			Orders: func(o Order) error {
				if _, twice := orders[o.ID]; twice {
					t.Errorf("order %s is exported twice", o.ID)
				}
				orders[o.ID] = o
				return nil
			},
			Queued:   func(o Order) error { return note("queued %s %s", o.ID, o.IdempotencyKey) },
			Holdings: func(item string, n int64) error { return note("holds %s %d", item, n) },
			Payments: func(p PaymentRecord) error {
				if p.ID == 0 || p.ItemID != s.item || p.UserID != "alice" || p.ReceivedAt.IsZero() {
					t.Errorf("payment %+v", p)
				}
				return note("payment %s of %s: %d %s %s, received as %s, refunded %v", p.Reference, p.OrderID, p.AmountMinor, p.Currency,
					p.Outcome, p.ReceivedAs, !p.RefundedAt.IsZero())
			},
			Returns: func(r ReturnRecord) error {
				return note("return %s %s %d, %v", r.OrderID, r.IdempotencyKey, r.Quantity, !r.CreatedAt.IsZero())
			},
			Audit: func(a AuditEntry) error { return note("audit %s %s %s", a.Actor, a.OrderID, a.After) },
		}
		if err := buyerService(s).ExportBuyer(await.Context(t), "alice", to); err != nil {
			t.Fatal(err)
		}
		rows := allRows(t, s.store)
		for _, task := range many {
			if r := rows[task.ID]; orders[task.ID] != r.order() {
				t.Errorf("order %+v, want %+v", orders[task.ID], r.order())
			}
		}
		if len(orders) != len(many) {
			t.Errorf("%d orders, want %d", len(orders), len(many))
		}
		want := []string{
			"queued " + queued.ID + " kq",
			fmt.Sprintf("holds %s %d", s.item, exportPage),
			"payment psp-a of " + many[0].ID + ": 1999 EUR refunded, received as accepted, refunded true",
			"payment psp-c of " + many[0].ID + ": 3998 EUR mismatch, received as mismatch, refunded false",
			"return " + many[1].ID + " k1 1, true",
			"audit  " + many[0].ID + ` {"restocked":false,"status":"refunded"}`,
			"audit  " + many[1].ID + ` {"reason":"admin","status":"cancelled"}`, "audit alice  {}", "audit root " + many[2].ID + " ", `audit root  {"user_id":"alice"}`,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		to.Orders = func(Order) error { return errTest }
		if err := buyerService(s).ExportBuyer(await.Context(t), "alice", to); !errors.Is(err, errTest) {
			t.Errorf("a reader's error: %v", err)
		}
	})
}
