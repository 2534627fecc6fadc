package handler

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/privacy"
	"flashsale/order/store/database"
)

// fakeBuyers passes on the test's data.
type fakeBuyers struct {
	export func(user string, to privacy.BuyerRecords) error
	erase  func(user string, e privacy.Erasure) (privacy.Erased, error)
}

func (f *fakeBuyers) ExportBuyer(_ context.Context, user string, to privacy.BuyerRecords) error {
	return f.export(user, to)
}

func (f *fakeBuyers) EraseBuyer(_ context.Context, user string, e privacy.Erasure) (privacy.Erased, error) {
	return f.erase(user, e)
}

// otherOrderID is the id of another order than someOrderID.
const otherOrderID = "0197a0f2-3c4d-7abc-8def-0123456789ac"

func withBuyers(tb testing.TB) (*shop, *fakeBuyers) {
	tb.Helper()
	b := &fakeBuyers{
		export: func(string, privacy.BuyerRecords) error { return nil },
		erase:  func(string, privacy.Erasure) (privacy.Erased, error) { return privacy.Erased{}, nil },
	}
	return open(tb, func(c *Config) { c.Buyers = b }), b
}

func TestExportBuyer(t *testing.T) {
	t.Parallel()
	s, b := withBuyers(t)
	const head = `{"user_id":"alice","exported_at":"2030-01-02T03:04:05.678Z",`
	for _, tt := range []struct {
		name   string
		export func(to privacy.BuyerRecords) error
		want   string
	}{
		{"nothing", func(privacy.BuyerRecords) error { return nil },
			head + `"orders":[],"queued":[],"holdings":[],"payments":[],"returns":[],"audit":[]}`},
		{"a late section alone", func(to privacy.BuyerRecords) error { return to.Holdings("thing", 2) },
			head + `"orders":[],"queued":[],"holdings":[{"item_id":"thing","quantity":2}],"payments":[],"returns":[],"audit":[]}`},
		{"everything", func(to privacy.BuyerRecords) error {
			o := order.Order{ID: someOrderID, ItemID: "thing", UserID: "alice", Quantity: 1, Currency: "EUR", Status: order.StatusPaid, CreatedAt: someTime, IdempotencyKey: `k"1`}
			queued := o
			queued.Status = order.StatusQueued
			for _, err := range []error{
				to.Orders(o), to.Orders(o), to.Queued(queued), to.Holdings("thing", 2), to.Holdings("other", 1),
				to.Payments(order.PaymentRecord{Payment: order.Payment{Reference: "psp-1", AmountMinor: 990, Currency: "EUR"}, ID: 3, OrderID: someOrderID, ItemID: "thing", UserID: "alice",
					Outcome: order.PaymentRefunded, ReceivedAs: order.PaymentLate, ReceivedAt: someTime, RefundedAt: someTime.Add(time.Second)}),
				to.Releases(privacy.ReleaseRecord{OrderID: otherOrderID, ItemID: "thing", IdempotencyKey: "k2", Quantity: 3, CreatedAt: someTime}),
				to.Audit(order.AuditEntry{ID: 7, At: someTime, Actor: "root", Action: "x", OrderID: someOrderID, Before: `{"a":1}`, After: "no JSON", RequestID: "r"}),
				to.Audit(order.AuditEntry{ID: 8, At: someTime, Actor: "alice", Action: "y", ItemID: "thing"}),
			} {
				if err != nil {
					return err
				}
			}
			return nil
		}, head + `"orders":[` + exported("paid") + `,` + exported("paid") + `],"queued":[` + exported("queued") + `],` +
			`"holdings":[{"item_id":"thing","quantity":2},{"item_id":"other","quantity":1}],` +
			`"payments":[{"id":3,"order_id":"` + someOrderID + `","item_id":"thing","user_id":"alice","reference":"psp-1","amount_minor":990,"currency":"EUR",` +
			`"outcome":"refunded","received_as":"late","received_at":"2030-01-02T03:04:05.678Z","refunded_at":"2030-01-02T03:04:06.678Z"}],` +
			`"returns":[{"order_id":"` + otherOrderID + `","item_id":"thing","idempotency_key":"k2","quantity":3,"created_at":"2030-01-02T03:04:05.678Z"}],` +
			`"audit":[{"id":7,"at":"2030-01-02T03:04:05.678Z","actor":"root","action":"x","order_id":"` + someOrderID + `","before":{"a":1},"after":"no JSON","request_id":"r"},` +
			`{"id":8,"at":"2030-01-02T03:04:05.678Z","actor":"alice","action":"y","item_id":"thing"}]}`},
	} {
		b.export = func(user string, to privacy.BuyerRecords) error {
			if user != "alice" {
				t.Errorf("exported %s", user)
			}
			return tt.export(to)
		}
		w := s.get(t, "/v1/admin/buyers/alice", "root", auth.RoleAdmin)
		if w.Code != 200 || w.Body.String() != tt.want || w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %v\n%s\nwant\n%s", tt.name, w.Code, w.Header(), w.Body, tt.want)
		}
	}
}

// exported is the order of the test above in the format of an export.
func exported(status string) string {
	return `{"id":"` + someOrderID + `","item_id":"thing","user_id":"alice","quantity":1,"unit_price_minor":0,"currency":"EUR","status":"` + status +
		`","created_at":"2030-01-02T03:04:05.678Z","idempotency_key":"k\"1"}`
}

func TestExportBuyer_Err(t *testing.T) {
	t.Parallel()
	s, b := withBuyers(t)
	for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleService} {
		wantProblem(t, s.get(t, "/v1/admin/buyers/alice", "alice", role).Result(), 403, "forbidden")
	}
	for _, user := range []string{"a%20b", "%C3%A9", strings.Repeat("a", 129), "a%2Fb"} {
		body := wantProblem(t, s.get(t, "/v1/admin/buyers/"+user, "root", auth.RoleAdmin).Result(), 400, "id_invalid")
		if body["param"] != "user" {
			t.Errorf("%s: param = %v", user, body["param"])
		}
	}
	for err, code := range map[error]string{database.ErrUnavailable: "unavailable", inventory.ErrUnavailable: "unavailable"} {
		b.export = func(string, privacy.BuyerRecords) error { return fmt.Errorf("export: %w", err) }
		wantProblem(t, s.get(t, "/v1/admin/buyers/alice", "root", auth.RoleAdmin).Result(), 503, code)
	}
}

// A failure during the export closes the connection, so that a client cannot take the part for
// the whole.
func TestExportBuyer_FailureClosesTheConnection(t *testing.T) {
	t.Parallel()
	s, b := withBuyers(t)
	b.export = func(_ string, to privacy.BuyerRecords) error {
		for range 2000 {
			if err := to.Holdings("thing", 1); err != nil {
				return err
			}
		}
		return errTest
	}
	r, err := http.NewRequest(http.MethodGet, "http://"+serve(t, s)+"/v1/admin/buyers/alice", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", bearer(t, "root", auth.RoleAdmin))
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err == nil || resp.StatusCode != 200 || len(got) < exportChunk {
		t.Errorf("%d, %d bytes, %v; want a beginning and no end", resp.StatusCode, len(got), err)
	}
}

// An export and an erasure may take longer than the server allows for a purchase.
func TestBuyers_MayExceedTheServersTimeLimits(t *testing.T) {
	t.Parallel()
	shop := func(brief time.Duration) http.Handler {
		s, b := withBuyers(t)
		b.export = func(_ string, to privacy.BuyerRecords) error {
			<-time.After(3 * brief)
			return to.Holdings("thing", 2)
		}
		b.erase = func(string, privacy.Erasure) (privacy.Erased, error) {
			<-time.After(3 * brief)
			return privacy.Erased{Pseudonym: "erased-1", Orders: 1}, nil
		}
		return s
	}
	const reason = `{"reason":"asked"}`
	for request, want := range map[string]string{
		"GET /v1/admin/buyers/alice HTTP/1.1\r\n%s\r\n": `"quantity":2`,
		"POST /v1/admin/buyers/alice/erase HTTP/1.1\r\n%sContent-Type: application/json\r\n" + withLength(reason) + "\r\n" + reason: `"orders":1`,
	} {
		wantInTime(t, fmt.Sprintf(request, "Host: x\r\nAuthorization: "+bearer(t, "root", auth.RoleAdmin)+"\r\n"), want, shop)
	}
}

func TestEraseBuyer(t *testing.T) {
	t.Parallel()
	s, b := withBuyers(t)
	const path, good = "/v1/admin/buyers/alice/erase", `{"reason":"letter 7"}`
	b.erase = func(user string, e privacy.Erasure) (privacy.Erased, error) {
		if user != "alice" || e.Actor != "root" || e.Reason != "letter 7" || e.RequestID == "" {
			t.Errorf("erase %s: %+v", user, e)
		}
		return privacy.Erased{Pseudonym: "erased-1", Orders: 3}, nil
	}
	if w := s.post(t, path, "root", auth.RoleAdmin, good); w.Code != 200 || w.Body.String() != `{"pseudonym":"erased-1","orders":3}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	b.erase = func(string, privacy.Erasure) (privacy.Erased, error) { return privacy.Erased{}, nil }
	if w := s.post(t, path, "root", auth.RoleAdmin, good); w.Code != 200 || w.Body.String() != `{"orders":0}` {
		t.Errorf("nothing to erase: %d %s", w.Code, w.Body)
	}
	for err, want := range map[error]struct {
		status int
		code   string
	}{
		privacy.ErrOrdersInFlight: {409, "orders_in_flight"},
		database.ErrUnavailable:   {503, "unavailable"},
		inventory.ErrUnavailable:  {503, "unavailable"},
	} {
		b.erase = func(string, privacy.Erasure) (privacy.Erased, error) {
			return privacy.Erased{}, fmt.Errorf("erase: %w", err)
		}
		wantProblem(t, s.post(t, path, "root", auth.RoleAdmin, good).Result(), want.status, want.code)
	}
}

func TestEraseBuyer_BadRequests(t *testing.T) {
	t.Parallel()
	s, b := withBuyers(t)
	b.erase = func(string, privacy.Erasure) (privacy.Erased, error) {
		t.Error("a bad request was executed")
		return privacy.Erased{}, nil
	}
	const path = "/v1/admin/buyers/alice/erase"
	for body, want := range map[string]struct {
		status      int
		code, param string
	}{
		``:                            {400, "body_missing", ""},
		`{}`:                          {400, "field_missing", "reason"},
		`{"reason":1}`:                {400, "field_type", "reason"},
		`{"reason":"x","user":"y"}`:   {400, "unknown_field", "user"},
		`{"reason":"x"} y`:            {400, "json_trailing", ""},
		`{"reason":""}`:               {422, "field_range", "reason"},
		`{"reason":"a\nb"}`:           {422, "field_range", "reason"},
		`{"reason":"asked by alice"}`: {422, "field_range", "reason"},
		`{"reason":"malice, alice."}`: {422, "field_range", "reason"},
		`{"reason":"` + strings.Repeat("x", maxEraseReason+1) + `"}`: {422, "field_range", "reason"},
	} {
		got := wantProblem(t, s.post(t, path, "root", auth.RoleAdmin, body).Result(), want.status, want.code)
		if param, _ := got["param"].(string); param != want.param {
			t.Errorf("%s: param = %v", body, got["param"])
		}
	}
	wantProblem(t, s.post(t, "/v1/admin/buyers/alice/erase?reason=asked", "root", auth.RoleAdmin, "{}").Result(), 400, "unknown_parameter")
	wantProblem(t, s.post(t, "/v1/admin/buyers/a%20b/erase", "root", auth.RoleAdmin, "{}").Result(), 400, "id_invalid")
	wantProblem(t, s.post(t, path, "alice", auth.RoleBuyer, "{}").Result(), 403, "forbidden")
	// A partial erasure can be repeated without an Idempotency-Key.
	b.erase = func(string, privacy.Erasure) (privacy.Erased, error) {
		return privacy.Erased{}, database.ErrUnavailable
	}
	got := wantProblem(t, s.post(t, path, "root", auth.RoleAdmin, `{"reason":"asked"}`).Result(), 503, "unavailable")
	if detail, _ := got["detail"].(string); !strings.Contains(detail, "continues where it stopped") || strings.Contains(detail, "Key") {
		t.Errorf("detail = %q", detail)
	}
	b.erase = func(string, privacy.Erasure) (privacy.Erased, error) { return privacy.Erased{}, nil }
	if w := s.post(t, path, "root", auth.RoleAdmin, `{"reason":"not malice, alicent"}`); w.Code != 200 {
		t.Errorf("a word that holds the name: %d %s", w.Code, w.Body)
	}
}
