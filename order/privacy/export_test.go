package privacy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
)

// recorder returns what collects the records of the buyer alice: her orders by id, and the
// rest as lines.
func recorder(t *testing.T, item string, orders map[string]order.Order, got *[]string) BuyerRecords {
	t.Helper()
	note := func(format string, args ...any) error {
		*got = append(*got, fmt.Sprintf(format, args...))
		return nil
	}
	return BuyerRecords{
		Orders: func(o order.Order) error {
			if _, twice := orders[o.ID]; twice {
				t.Errorf("order %s is exported twice", o.ID)
			}
			orders[o.ID] = o
			return nil
		},
		Queued:   func(o order.Order) error { return note("queued %s %s", o.ID, o.IdempotencyKey) },
		Holdings: func(item string, n int64) error { return note("holds %s %d", item, n) },
		Payments: func(p order.PaymentRecord) error {
			if p.ID == 0 || p.ItemID != item || p.UserID != "alice" || p.ReceivedAt.IsZero() {
				t.Errorf("payment %+v", p)
			}
			return note("payment %s of %s: %d %s %s, received as %s, refunded %v", p.Reference, p.OrderID, p.AmountMinor, p.Currency,
				p.Outcome, p.ReceivedAs, !p.RefundedAt.IsZero())
		},
		Releases: func(r ReleaseRecord) error {
			return note("return %s %s %d, %v", r.OrderID, r.IdempotencyKey, r.Quantity, !r.CreatedAt.IsZero())
		},
		Audit: func(a order.AuditEntry) error { return note("audit %s %s %s", a.Actor, a.OrderID, a.After) },
	}
}

// TestService_ExportBuyer exports all data of one buyer, and none of another.
func TestService_ExportBuyer(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 2000, 1500, time.Hour))
		var many []order.Task
		for i := range exportPage + 1 { // more than a page
			many = append(many, ordertest.Bought(fmt.Sprintf("o%04d-%s", i, s.Item), s.Item, "alice", fmt.Sprintf("k%d", i), 1))
		}
		storetest.MustCommit(t, s.Store, many...)
		storetest.MustCommit(t, s.Store, ordertest.Bought("bobs-"+s.Item, s.Item, "bob", "kb", 5))
		queued := s.MustPlace(s.Purchase("alice", "kq", 2, 0)).Order
		s.MustPlace(s.Purchase("bob", "kq", 2, 0))
		both := many[3] // committed, and not acknowledged
		ordertest.MustEnqueue(t, s.Queue, ordertest.Leased(both))
		if _, err := s.Service.Pay(await.Context(t), many[0].ID, ordertest.Money("psp-a", 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.Pay(await.Context(t), many[0].ID, ordertest.Money("psp-c", 2)); !errors.Is(err, order.ErrAmountMismatch) {
			t.Fatal(err)
		}
		if _, _, err := checkout.RefundInStore(await.Context(t), s.Store, many[0].ID, checkout.Refund{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.Pay(await.Context(t), "bobs-"+s.Item, ordertest.Money("psp-b", 5)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Store.Cancel(await.Context(t), many[1].ID, order.Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Store.Cancel(await.Context(t), "bobs-"+s.Item, order.Canceller{Admin: true}); !errors.Is(err, order.ErrOrderFinal) {
			t.Fatal(err)
		}
		for _, e := range [][3]string{{"alice", "", "{}"}, {"root", many[2].ID, ""}, {"root", "", `{"user_id":"alice"}`}, {"root", "", `{"user_id":"bob"}`}, {"bob", "bobs", ""}} {
			err := s.Store.Writer().Exec("INSERT INTO audit (at, actor, action, order_id, after) VALUES (5, ?, 'test', ?, ?)", e[0], e[1], e[2]).Error
			if err != nil {
				t.Fatal(err)
			}
		}
		orders := map[string]order.Order{}
		var got []string
		to := recorder(t, s.Item, orders, &got)
		if err := newService(s).ExportBuyer(await.Context(t), "alice", to); err != nil {
			t.Fatal(err)
		}
		rows := ordertest.AllRows(t, s.Store)
		for _, task := range many {
			if r := rows[task.ID]; orders[task.ID] != r.Order() {
				t.Errorf("order %+v, want %+v", orders[task.ID], r.Order())
			}
		}
		if len(orders) != len(many) {
			t.Errorf("%d orders, want %d", len(orders), len(many))
		}
		want := []string{
			"queued " + queued.ID + " kq",
			fmt.Sprintf("holds %s %d", s.Item, exportPage),
			"payment psp-a of " + many[0].ID + ": 1999 EUR refunded, received as accepted, refunded true",
			"payment psp-c of " + many[0].ID + ": 3998 EUR mismatch, received as mismatch, refunded false",
			"return " + many[1].ID + " k1 1, true",
			"audit  " + many[0].ID + ` {"restocked":false,"status":"refunded"}`,
			"audit  " + many[1].ID + ` {"reason":"admin","status":"cancelled"}`, "audit alice  {}", "audit root " + many[2].ID + " ", `audit root  {"user_id":"alice"}`,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		to.Orders = func(order.Order) error { return ordertest.ErrTest }
		if err := newService(s).ExportBuyer(await.Context(t), "alice", to); !errors.Is(err, ordertest.ErrTest) {
			t.Errorf("a reader's error: %v", err)
		}
	})
}

// TestService_ExportBuyer_Standby: while it is in doubt whether a synchronous standby has the rows,
// none is exported.
func TestService_ExportBuyer_Standby(t *testing.T) {
	t.Parallel()
	d := storetest.NewDoubt(t)
	storetest.MustInsert(t, d.Store, ordertest.NewItem("item", 5, 5))
	storetest.MustCommit(t, d.Store, ordertest.Bought("o", "item", "u", "k", 1))
	s := &Service{Store: d.Store}
	var got []string
	orders := make(map[string]order.Order)
	export := func(ctx context.Context) error {
		return s.ExportBuyer(ctx, "u", recorder(t, "item", orders, &got))
	}
	d.Begin(t)
	d.Refuses(t, export)
	if len(orders)+len(got) != 0 {
		t.Errorf("%v and %v were exported", orders, got)
	}
	d.End(t)
	if err := export(await.Context(t)); err != nil || len(orders) != 1 || len(got) != 1 {
		t.Errorf("once no standby is required: %v, %v, %v", orders, got, err)
	}
}
