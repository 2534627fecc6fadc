package handler

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"flashsale/handler/auth"
	"flashsale/handler/request"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/store/database"
)

// fakeMoney records its calls and returns the test's results.
type fakeMoney struct {
	lists    []order.PaymentFilter
	orders   []string
	marked   []int64
	refunded []string
	refund   checkout.Refund
	by       order.By
	more     bool
	err      error
}

func somePayment() order.PaymentRecord {
	return order.PaymentRecord{
		Payment: order.Payment{Reference: "psp-1", AmountMinor: 990, Currency: "EUR"}, ID: 41, OrderID: someOrderID, ItemID: "thing",
		UserID: "alice", Outcome: order.PaymentLate, ReceivedAs: order.PaymentLate, ReceivedAt: someTime,
	}
}

const somePaymentJSON = `{"id":41,"order_id":"` + someOrderID + `","item_id":"thing","user_id":"alice","reference":"psp-1","amount_minor":990,` +
	`"currency":"EUR","outcome":"late","received_as":"late","received_at":"2030-01-02T03:04:05.678Z"}`

func (f *fakeMoney) Payments(_ context.Context, filter order.PaymentFilter) ([]order.PaymentRecord, bool, error) {
	f.lists = append(f.lists, filter)
	return []order.PaymentRecord{somePayment(), somePayment()}, f.more, f.err
}

func (f *fakeMoney) OrderPayments(_ context.Context, id string) ([]order.PaymentRecord, error) {
	f.orders = append(f.orders, id)
	return []order.PaymentRecord{somePayment()}, f.err
}

func (f *fakeMoney) MarkRefunded(_ context.Context, id int64, by order.By) (order.PaymentRecord, error) {
	f.marked, f.by = append(f.marked, id), by
	p := somePayment()
	p.Outcome, p.RefundedAt = order.PaymentRefunded, someTime
	return p, f.err
}

// refundingOrders are orders whose refunds fakeMoney answers.
type refundingOrders struct {
	orderService
	money *fakeMoney
}

func (o refundingOrders) Refund(ctx context.Context, id string, r checkout.Refund) (order.Order, error) {
	return o.money.Refund(ctx, id, r)
}

func (f *fakeMoney) Refund(_ context.Context, id string, r checkout.Refund) (order.Order, error) {
	f.refunded, f.refund = append(f.refunded, id), r
	o := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
	o.Status, o.Restocked, o.ClosedAt = order.StatusRefunded, r.Restock, someTime
	return o, f.err
}

func withMoney(tb testing.TB, change ...func(*Config)) (*shop, *fakeMoney) {
	tb.Helper()
	m := &fakeMoney{}
	return open(tb, append(change, func(c *Config) { c.Payments, c.Orders = m, refundingOrders{c.Orders, m} })...), m
}

func TestListPayments(t *testing.T) {
	t.Parallel()
	s, m := withMoney(t)
	list := func(query string) (order.PaymentFilter, string) {
		t.Helper()
		w := s.get(t, "/v1/admin/payments"+query, "root", auth.RoleAdmin)
		if w.Code != 200 || w.Header().Get("Cache-Control") != "no-store" {
			t.Fatalf("%s: %d %s", query, w.Code, w.Body)
		}
		body := w.Body.String()
		rest, ok := strings.CutPrefix(body, `{"payments":[`+somePaymentJSON+`,`+somePaymentJSON+`],"next_cursor":"`)
		if !ok {
			t.Errorf("%s: %s", query, body)
		}
		return m.lists[len(m.lists)-1], strings.TrimSuffix(rest, `"}`)
	}
	for query, want := range map[string]order.PaymentFilter{
		"":                                     {Limit: request.DefaultPage},
		"?limit=100&outcome=mismatch":          {Limit: 100, Outcome: order.PaymentMismatch},
		"?outcome=refunded":                    {Limit: request.DefaultPage, Outcome: order.PaymentRefunded},
		"?needs_refund=true":                   {Limit: request.DefaultPage, NeedsRefund: true},
		"?needs_refund=false&outcome=accepted": {Limit: request.DefaultPage, Outcome: order.PaymentAccepted},
		"?reference=psp-1%2F":                  {Limit: request.DefaultPage, Reference: "psp-1/"},
		"?needs_refund=true&outcome=duplicate": {Limit: request.DefaultPage, NeedsRefund: true, Outcome: order.PaymentDuplicate},
	} {
		m.more = false
		if got, cursor := list(query); got != want || cursor != "" {
			t.Errorf("%s: asks for %+v, cursor %q, want %+v and none", query, got, cursor, want)
		}
		m.more = true
		_, cursor := list(query)
		and := "?"
		if query != "" {
			and = query + "&"
		}
		want.Before = 41
		if got, _ := list(and + "cursor=" + cursor); got != want {
			t.Errorf("%s: the next page asks for %+v, want %+v", query, got, want)
		}
	}
	_, cursor := list("?outcome=late")
	audit := sealer{[]byte("flashsale list cursor")}.after(41, true, auditList(order.AuditFilter{}))
	calls := len(m.lists)
	for query, code := range map[string]string{
		"?outcome=paid": "parameter_invalid", "?outcome=": "parameter_invalid", "?needs_refund=1": "parameter_invalid",
		"?limit=0": "limit_range", "?limit=101": "limit_range", "?limit=": "limit_range", "?state=late": "unknown_parameter",
		"?outcome=late&outcome=late": "parameter_invalid", "?cursor=": "cursor_invalid", "?cursor=abc": "cursor_invalid",
		"?cursor=" + cursor: "cursor_invalid", "?outcome=mismatch&cursor=" + cursor: "cursor_invalid",
		"?outcome=late&needs_refund=true&cursor=" + cursor: "cursor_invalid", "?cursor=" + audit: "cursor_invalid",
		"?outcome=late&cursor=" + cursor + "A": "cursor_invalid", "?outcome=late&reference=psp-1&cursor=" + cursor: "cursor_invalid",
		"?reference=": "parameter_invalid", "?reference=a%20b": "parameter_invalid", "?reference=" + strings.Repeat("x", 256): "parameter_invalid",
	} {
		wantProblem(t, s.get(t, "/v1/admin/payments"+query, "root", auth.RoleAdmin).Result(), 400, code)
	}
	for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleService} {
		wantProblem(t, s.get(t, "/v1/admin/payments", "x", role).Result(), 403, "forbidden")
	}
	if len(m.lists) != calls {
		t.Error("a bad request was executed")
	}
	m.err = database.ErrUnavailable
	wantProblem(t, s.get(t, "/v1/admin/payments", "root", auth.RoleAdmin).Result(), 503, "unavailable")
}

func TestMarkRefunded(t *testing.T) {
	t.Parallel()
	s, m := withMoney(t)
	const path = "/v1/admin/payments/41/refunded"
	want := strings.Replace(strings.TrimSuffix(somePaymentJSON, "}"), `"outcome":"late"`, `"outcome":"refunded"`, 1) + `,"refunded_at":"2030-01-02T03:04:05.678Z"}`
	for _, body := range []string{"", "{}"} {
		w := s.post(t, path, "root", auth.RoleAdmin, body)
		by := order.By{Actor: "root", RequestID: w.Header().Get("X-Request-Id")}
		if w.Code != 200 || w.Body.String() != want || m.marked[len(m.marked)-1] != 41 || m.by != by {
			t.Errorf("%q: %d %s\nwant %s\nby %+v", body, w.Code, w.Body, want, m.by)
		}
	}
	calls := len(m.marked)
	for _, id := range []string{"0", "-1", "041", "+41", "x", "41.0", "9223372036854775808", someOrderID} {
		wantProblem(t, s.post(t, "/v1/admin/payments/"+id+"/refunded", "root", auth.RoleAdmin, "").Result(), 400, "id_invalid")
	}
	wantProblem(t, s.post(t, path, "root", auth.RoleAdmin, `{"note":"x"}`).Result(), 400, "unknown_field")
	wantProblem(t, s.post(t, path+"?force=true", "root", auth.RoleAdmin, "").Result(), 400, "unknown_parameter")
	for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleService} {
		wantProblem(t, s.post(t, path, "x", role, "").Result(), 403, "forbidden")
	}
	if len(m.marked) != calls {
		t.Error("a bad request was executed")
	}
	m.err = fmt.Errorf("mark: %w", order.ErrPaymentNotFound)
	wantProblem(t, s.post(t, path, "root", auth.RoleAdmin, "").Result(), 404, "payment_not_found")
	m.err = fmt.Errorf("mark: %w", order.ErrPaymentAccepted)
	p := wantProblem(t, s.post(t, path, "root", auth.RoleAdmin, "").Result(), 409, "payment_accepted")
	if text, ok := p["detail"].(string); !ok || !strings.Contains(text, "/v1/admin/orders/{order}/refund") {
		t.Errorf("detail %q does not say how to refund the order", p["detail"])
	}
}

func TestRefundOrder(t *testing.T) {
	t.Parallel()
	s, m := withMoney(t)
	const path = "/v1/admin/orders/" + someOrderID + "/refund"
	for body, restock := range map[string]bool{`{"restock":true}`: true, `{"restock":false}`: false} {
		w := s.post(t, path, "root", auth.RoleAdmin, body)
		want := checkout.Refund{Restock: restock, By: order.By{Actor: "root", RequestID: w.Header().Get("X-Request-Id")}}
		b := decodeBody(t, w.Body)
		if w.Code != 200 || m.refund != want || m.refunded[len(m.refunded)-1] != someOrderID || b["status"] != "refunded" || b["restocked"] != restock {
			t.Errorf("%s: %d %v with %+v, want %+v", body, w.Code, b, m.refund, want)
		}
	}
	calls := len(m.refunded)
	for body, code := range map[string]string{
		``: "body_missing", `{}`: "field_missing", `{"restock":null}`: "field_type", `{"restock":"true"}`: "field_type",
		`{"restock":1}`: "field_type", `{"restock":true,"reason":"x"}`: "unknown_field", `{"restock":true} x`: "json_trailing",
		`{"restock":true,"restock":false}`: "json_duplicate_key",
	} {
		wantProblem(t, s.post(t, path, "root", auth.RoleAdmin, body).Result(), 400, code)
	}
	wantProblem(t, s.post(t, "/v1/admin/orders/X/refund", "root", auth.RoleAdmin, `{"restock":true}`).Result(), 400, "id_invalid")
	wantProblem(t, s.post(t, path+"?restock=true", "root", auth.RoleAdmin, `{"restock":true}`).Result(), 400, "unknown_parameter")
	for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleService} {
		wantProblem(t, s.post(t, path, "x", role, `{"restock":true}`).Result(), 403, "forbidden")
	}
	if len(m.refunded) != calls {
		t.Error("a bad request was executed")
	}
	for err, want := range map[error]struct {
		status int
		code   string
	}{
		checkout.ErrNotPaid:       {409, "order_not_paid"},
		checkout.ErrRefundDiffers: {409, "order_final"},
		order.ErrNotFound:         {404, "order_not_found"},
		database.ErrUnavailable:   {503, "unavailable"},
	} {
		m.err = fmt.Errorf("refund: %w", err)
		wantProblem(t, s.post(t, path, "root", auth.RoleAdmin, `{"restock":true}`).Result(), want.status, want.code)
	}
}

// TestGetOrder_Payments: an admin sees the amounts received for an order; its buyer and the
// shop's backend do not.
func TestGetOrder_Payments(t *testing.T) {
	t.Parallel()
	s, m := withMoney(t)
	o := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
	s.orders.get = func(string) (order.Order, error) { return o, nil }
	path := "/v1/orders/" + someOrderID
	plain := string(appendOrder(nil, &o))
	for sub, role := range map[string]auth.Role{"alice": auth.RoleBuyer, "shop": auth.RoleService} {
		if w := s.get(t, path, sub, role); w.Code != 200 || w.Body.String() != plain {
			t.Errorf("%s: %d %s, want %s", role, w.Code, w.Body, plain)
		}
	}
	if len(m.orders) != 0 {
		t.Errorf("payments of %v were read needlessly", m.orders)
	}
	want := strings.TrimSuffix(plain, "}") + `,"payments":[` + somePaymentJSON + `]}`
	if w := s.get(t, path, "root", auth.RoleAdmin); w.Code != 200 || w.Body.String() != want {
		t.Errorf("admin: %d %s, want %s", w.Code, w.Body, want)
	}
	m.err = database.ErrUnavailable
	wantProblem(t, s.get(t, path, "root", auth.RoleAdmin).Result(), 503, "unavailable")
}

// TestPayOrder_Log: every amount that paid for no order is logged with its reference.
func TestPayOrder_Log(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := open(t, func(c *Config) { c.Log = zerolog.New(&log) })
	const body = `{"reference":"psp-7","amount_minor":100,"currency":"EUR"}`
	for err, want := range map[error]string{
		order.ErrOrderExpired: "refund it", order.ErrOrderFinal: "refund it", order.ErrAmountMismatch: "refund it",
		order.ErrPaymentLimit: "was not recorded", order.ErrReferenceReused: "", order.ErrNotFound: "", nil: "",
	} {
		log.Reset()
		s.orders.pay = func(id string, p order.Payment) (order.Order, error) { return paidOrder(id, p), err }
		s.post(t, "/v1/orders/"+someOrderID+"/payment", "psp", auth.RoleService, body)
		if got := log.String(); want == "" && strings.Contains(got, "psp-7") || !strings.Contains(got, want) || want != "" && !strings.Contains(got, `"reference":"psp-7"`) {
			t.Errorf("%v: logged %q, want %q", err, got, want)
		}
	}
}

// TestPayOrder_LogCause: the log of a late payment names the state that the order had.
func TestPayOrder_LogCause(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := open(t, func(c *Config) { c.Log = zerolog.New(&log) })
	for status, want := range map[order.Status]string{
		order.StatusConfirmed: "the order's time to pay is over", order.StatusExpired: "the order is expired",
		order.StatusCancelled: "the order is cancelled", order.StatusRejected: "the order is rejected", order.StatusRefunded: "the order is refunded",
	} {
		log.Reset()
		s.orders.pay = func(id string, p order.Payment) (order.Order, error) {
			o := paidOrder(id, p)
			o.Status = status
			return o, order.ErrOrderExpired
		}
		s.post(t, "/v1/orders/"+someOrderID+"/payment", "psp", auth.RoleService, `{"reference":"psp-7","amount_minor":100,"currency":"EUR"}`)
		if got := log.String(); !strings.Contains(got, `"cause":"`+want+`"`) {
			t.Errorf("%s: logged %q, want the cause %q", status, got, want)
		}
	}
}

// TestListOrders_Refunded: refunded is a valid status filter.
func TestListOrders_Refunded(t *testing.T) {
	t.Parallel()
	s := open(t)
	if w := s.get(t, "/v1/orders?status=refunded", "root", auth.RoleAdmin); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if got := s.orders.lastList(t); got.Status != order.StatusRefunded {
		t.Errorf("asks for %+v", got)
	}
	o := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
	o.Status, o.PaidAt, o.ClosedAt = order.StatusRefunded, someTime, someTime.Add(time.Second)
	want := `,"status":"refunded",`
	if got := string(appendOrder(nil, &o)); !strings.Contains(got, want) || !strings.HasSuffix(got, `,"restocked":false}`) {
		t.Errorf("a refunded order is %s", got)
	}
}
