package handler

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"flashsale/internal/testing/contract"
	"flashsale/order"
	"flashsale/order/checkout"
)

// stricter are the codes with which the service refuses what the document cannot express: values
// that depend on each other, and fields that it names although they cannot change.
var stricter = map[string]bool{"window_invalid": true, "field_fixed": true, "cursor_invalid": true}

// refundedOrders refunds every order.
type refundedOrders struct{ *fakeOrders }

func (refundedOrders) Refund(_ context.Context, id string, r checkout.Refund) (order.Order, error) {
	o := paidOrder(id, order.Payment{Reference: "psp-1"})
	o.Status, o.Restocked, o.ClosedAt = order.StatusRefunded, r.Restock, someTime
	return o, nil
}

// The service and the document agree about every member of a body at the bounds of its schema.
// The shop checks that the document accepts what the service accepts; this test also checks the
// other direction.
func TestContract_BodiesAtTheirBounds(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) {
		c.Tasks, c.Webhooks = &fakeTasks{}, &fakeWebhooks{}
		c.DevTokens = func(string, string, time.Duration) (string, error) { return "token", nil }
		c.Orders = refundedOrders{&fakeOrders{
			pay: func(id string, p order.Payment) (order.Order, error) { return paidOrder(id, p), nil },
		}}
	})
	inDocument := documentedRoutes(t)
	tried := 0
	for _, r := range apiTable(t) {
		op, there := inDocument[r.Method+" "+r.template()]
		if !there || r.Body != bodyJSON {
			continue
		}
		body := op.RequestBody.Value.Content["application/json"]
		for name, example := range body.Examples {
			base, ok := example.Value.Value.(map[string]any)
			if !ok {
				t.Fatalf("%s: the example %s is no object", op.OperationID, name)
			}
			for _, variant := range variantsOf(base, body.Schema.Value) {
				s.agrees(t, &r, &op, variant)
				tried++
			}
		}
	}
	if tried < 300 {
		t.Errorf("only %d bodies were tried", tried)
	}
}

// agrees sends a body, and compares the answer with the document.
func (s *shop) agrees(t *testing.T, r *route, op *documented, body map[string]any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	path := r.somePath()
	if r.Method == http.MethodPost && strings.HasSuffix(path, "/admin/items") {
		path = "/v1/admin/items"
	}
	req := httptest.NewRequest(r.Method, path, strings.NewReader(string(text)))
	req.Host = "localhost"
	if len(r.Roles) > 0 {
		req.Header.Set("Authorization", bearer(t, "alice", r.Roles[0]))
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "k")
	req.Header.Set("If-Match", "*")
	w := s.do(req)
	refused := apiContract(t).CheckRequest(&contract.Exchange{Method: r.Method, URL: req.URL, Request: req.Header, Sent: text})
	code := ""
	if w.Code >= 400 {
		code, _ = decodeBody(t, w.Body)["code"].(string)
	}
	switch {
	case refused != nil && (w.Code < 400 || w.Code >= 500):
		t.Errorf("%s: %.300s: %d, and the document refuses it: %v", op.OperationID, text, w.Code, refused)
	case refused == nil && (w.Code == 400 || w.Code == 422) && !stricter[code]:
		t.Errorf("%s: %.300s: %d %s, and the document accepts it", op.OperationID, text, w.Code, code)
	}
}

// variantsOf returns an object with each member in turn missing, of another type, or at the
// bounds of its schema.
func variantsOf(base map[string]any, s *openapi3.Schema) []map[string]any {
	all := []map[string]any{base, {}}
	set := func(name string, values ...any) {
		for _, value := range values {
			own := maps.Clone(base)
			own[name] = value
			all = append(all, own)
		}
	}
	set("no_such_member", 1)
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		without := maps.Clone(base)
		delete(without, name)
		all = append(all, without)
		set(name, nil, true, 1.5, []any{}, map[string]any{}, "", "é", 7, -7)
		set(name, valuesOf(s.Properties[name].Value)...)
	}
	return all
}

// valuesOf returns values inside and outside the bounds of a schema.
func valuesOf(s *openapi3.Schema) (all []any) {
	if s.Min != nil && s.Max != nil {
		all = append(all, json.Number(number(*s.Min-1)), json.Number(number(*s.Min)), json.Number(number(*s.Max)), json.Number(number(*s.Max+1)), 0)
	}
	all = append(all, s.Enum...)
	if s.MaxLength != nil {
		n := int(*s.MaxLength)
		all = append(all, strings.Repeat("a", n), strings.Repeat("a", n+1), strings.Repeat("😀", n))
	}
	if strings.Contains(s.Pattern, "(/(") { // a path
		n := int(*s.MaxLength)
		all = append(all, "/", "/a", "/"+strings.Repeat("a", n-1), "/"+strings.Repeat("a", n), "//a", "a/b", "/a//b", "/a b", "/a\tb", "/a\x7f",
			"/a#b", "/a\\b", "/\\b", "/ä%20?a=b&c", "/%2", "/a?%zz", "/?a", "http://h/a")
	}
	if s.Type.Includes("array") {
		all = append(all, []any{"order.paid"}, []any{"order.paid", "order.paid"}, []any{"order.lost"}, []any{7})
	}
	if s.Format == "date-time" {
		all = append(all, "2030-01-31T18:00:00Z", "2030-01-31T18:00:00.123456+02:00", "2030-01-31", "yesterday", "2030-02-31T18:00:00Z")
	}
	return all
}

func number(f float64) string {
	text, err := json.Marshal(int64(f))
	if err != nil {
		panic(err)
	}
	return string(text)
}
