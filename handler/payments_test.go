package handler

import (
	"fmt"
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store/database"
)

// paidOrder is an order that a payment has paid.
func paidOrder(id string, p order.Payment) order.Order {
	o := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
	o.ID, o.Status, o.PaidAt, o.PaymentReference = id, order.StatusPaid, someTime, p.Reference
	return o
}

func TestPayOrder(t *testing.T) {
	t.Parallel()
	s := open(t)
	var got order.Payment
	s.orders.pay = func(id string, p order.Payment) (order.Order, error) {
		got = p
		return paidOrder(id, p), nil
	}
	const body = `{"reference":"psp-1","amount_minor":100,"currency":"EUR"}`
	w := s.post(t, "/v1/orders/"+someOrderID+"/payment", "psp", auth.RoleService, body)
	if want := (order.Payment{Reference: "psp-1", AmountMinor: 100, Currency: "EUR"}); w.Code != 200 || got != want {
		t.Fatalf("%d %s: paid %+v, want %+v", w.Code, w.Body, got, want)
	}
	if b := decodeBody(t, w.Body); b["status"] != "paid" || b["payment_reference"] != "psp-1" || b["id"] != someOrderID {
		t.Errorf("body = %v", b)
	}
	for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleAdmin} {
		wantProblem(t, s.post(t, "/v1/orders/"+someOrderID+"/payment", "alice", role, body).Result(), 403, "forbidden")
	}
	for err, want := range map[error]struct {
		status int
		code   string
	}{
		order.ErrOrderExpired:    {409, "order_expired"},
		order.ErrOrderFinal:      {409, "order_final"},
		order.ErrPaidAlready:     {409, "order_final"},
		order.ErrAmountMismatch:  {409, "amount_mismatch"},
		order.ErrReferenceReused: {409, "payment_reference_reused"},
		order.ErrPaymentLimit:    {409, "payment_limit"},
		order.ErrNotFound:        {404, "order_not_found"},
		database.ErrUnavailable:  {503, "unavailable"},
		inventory.ErrUnavailable: {503, "unavailable"},
	} {
		s.orders.pay = func(string, order.Payment) (order.Order, error) { return order.Order{}, fmt.Errorf("pay: %w", err) }
		wantProblem(t, s.post(t, "/v1/orders/"+someOrderID+"/payment", "psp", auth.RoleService, body).Result(), want.status, want.code)
	}
	s.orders.pay = func(string, order.Payment) (order.Order, error) { return order.Order{}, order.ErrPaidAlready }
	if a := s.post(t, "/v1/orders/"+someOrderID+"/payment", "psp", auth.RoleService, body); !strings.Contains(a.Body.String(), "recorded; refund it") {
		t.Errorf("the answer to a second payment does not say that it is to be refunded: %s", a.Body)
	}
}

func TestPayOrder_BadRequests(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.orders.pay = func(string, order.Payment) (order.Order, error) {
		t.Error("a bad request was executed")
		return order.Order{}, nil
	}
	for body, want := range map[string]struct {
		status int
		code   string
	}{
		``: {400, "body_missing"},
		`{"reference":"a","amount_minor":1,"currency":"EUR"} x`:                                     {400, "json_trailing"},
		`{"reference":"a","amount_minor":1,"currency":"EUR","more":1}`:                              {400, "unknown_field"},
		`{"amount_minor":1,"currency":"EUR"}`:                                                       {400, "field_missing"},
		`{"reference":"a","currency":"EUR"}`:                                                        {400, "field_missing"},
		`{"reference":"a","amount_minor":1}`:                                                        {400, "field_missing"},
		`{"reference":"a","amount_minor":"1","currency":"EUR"}`:                                     {400, "field_type"},
		`{"reference":"a","amount_minor":1.5,"currency":"EUR"}`:                                     {400, "field_type"},
		`{"reference":"a","amount_minor":-1,"currency":"EUR"}`:                                      {422, "field_range"},
		`{"reference":"a","amount_minor":9223372036854775808,"currency":"EUR"}`:                     {422, "field_range"},
		`{"reference":"a","amount_minor":1,"currency":"eur"}`:                                       {422, "field_range"},
		`{"reference":"","amount_minor":1,"currency":"EUR"}`:                                        {422, "field_range"},
		`{"reference":"a b","amount_minor":1,"currency":"EUR"}`:                                     {422, "field_range"},
		`{"reference":"é","amount_minor":1,"currency":"EUR"}`:                                       {422, "field_range"},
		fmt.Sprintf(`{"reference":%q,"amount_minor":1,"currency":"EUR"}`, strings.Repeat("a", 256)): {422, "field_range"},
	} {
		wantProblem(t, s.post(t, "/v1/orders/"+someOrderID+"/payment", "psp", auth.RoleService, body).Result(), want.status, want.code)
	}
	wantProblem(t, s.post(t, "/v1/orders/X/payment", "psp", auth.RoleService, "{}").Result(), 400, "id_invalid")
}

func TestCancelOrder(t *testing.T) {
	t.Parallel()
	s := open(t)
	var got order.Canceller
	s.orders.cancel = func(id string, by order.Canceller) (order.Order, error) {
		got = by
		o := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
		o.ID, o.Status, o.Reason = id, order.StatusCancelled, order.ReasonBuyer
		return o, nil
	}
	path := "/v1/orders/" + someOrderID + "/cancel"
	for _, tt := range []struct {
		sub  string
		role auth.Role
		body string
		want order.Canceller
	}{
		{"alice", auth.RoleBuyer, "", order.Canceller{UserID: "alice"}},
		{"alice", auth.RoleBuyer, "{}", order.Canceller{UserID: "alice"}},
		{"root", auth.RoleAdmin, "", order.Canceller{UserID: "root", Admin: true}},
	} {
		w := s.post(t, path, tt.sub, tt.role, tt.body)
		tt.want.RequestID = w.Header().Get("X-Request-Id")
		if b := decodeBody(t, w.Body); w.Code != 200 || got != tt.want || b["status"] != "cancelled" {
			t.Errorf("%s %q: %d %v by %+v, want %+v", tt.sub, tt.body, w.Code, b, got, tt.want)
		}
	}
	wantProblem(t, s.post(t, path, "psp", auth.RoleService, "").Result(), 403, "forbidden")
	wantProblem(t, s.post(t, path, "alice", auth.RoleBuyer, `{"reason":"x"}`).Result(), 400, "unknown_field")
	wantProblem(t, s.post(t, path, "alice", auth.RoleBuyer, `[]`).Result(), 400, "json_invalid")
	wantProblem(t, s.post(t, "/v1/orders/X/cancel", "alice", auth.RoleBuyer, "").Result(), 400, "id_invalid")
	s.orders.cancel = func(string, order.Canceller) (order.Order, error) { return order.Order{}, order.ErrOrderFinal }
	wantProblem(t, s.post(t, path, "alice", auth.RoleBuyer, "").Result(), 409, "order_final")
	s.orders.cancel = nil
	wantProblem(t, s.post(t, path, "alice", auth.RoleBuyer, "").Result(), 404, "order_not_found")
}
