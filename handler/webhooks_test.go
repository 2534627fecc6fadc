package handler

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/order"
	"flashsale/order/store/database"
	"flashsale/order/webhooks"
	"flashsale/webhook"
)

const (
	someHook  = "we_0197a0f23c4d7abc8def0123456789ab"
	otherHook = "we_0197a0f23c4d7abc8def0123456789ac"
	someEvent = "msg_0197a0f23c4d7abc8def0123456789ac"
	hookPath  = "/v1/admin/webhooks/" + someHook
)

// fakeWebhooks records its calls.
type fakeWebhooks struct {
	calls   []string
	created webhooks.NewEndpoint
	changed webhooks.EndpointChange
	filter  webhooks.DeliveryFilter
	by      order.By
	more    bool
	err     error
}

func hookOf(id string) webhooks.Endpoint {
	return webhooks.Endpoint{
		ID: id, URL: "https://shop.example/<w>", Description: "d", Events: order.EventTypes[:2], Enabled: true,
		CreatedAt: someTime, UpdatedAt: someTime,
	}
}

func (f *fakeWebhooks) call(name string, by order.By) error {
	f.calls, f.by = append(f.calls, name), by
	return f.err
}

var errNoURL = &webhook.URLError{Detail: "url is empty."}

func (f *fakeWebhooks) Endpoints(context.Context) ([]webhooks.Endpoint, error) {
	return []webhooks.Endpoint{hookOf(someHook), hookOf(otherHook)}, f.call("list", order.By{})
}

func (f *fakeWebhooks) Endpoint(_ context.Context, id string) (webhooks.Endpoint, error) {
	return hookOf(id), f.call("get "+id, order.By{})
}

func (f *fakeWebhooks) ChangeEndpoint(_ context.Context, id string, c webhooks.EndpointChange, by order.By) (webhooks.Endpoint, error) {
	f.changed = c
	if c.URL != nil && *c.URL == "" {
		return webhooks.Endpoint{}, errNoURL
	}
	return hookOf(id), f.call("change "+id, by)
}

func (f *fakeWebhooks) DeleteEndpoint(_ context.Context, id string, by order.By) error {
	return f.call("delete "+id, by)
}

func (f *fakeWebhooks) CreateEndpoint(_ context.Context, n webhooks.NewEndpoint, by order.By) (webhooks.Endpoint, string, error) {
	f.created = n
	if n.URL == "" {
		return webhooks.Endpoint{}, "", errNoURL
	}
	return hookOf(someHook), "whsec_new", f.call("create", by)
}

func (f *fakeWebhooks) RotateSecret(_ context.Context, id string, by order.By) (webhooks.Endpoint, string, error) {
	e := hookOf(id)
	e.OldSecretUntil = someTime.Add(24 * time.Hour)
	return e, "whsec_rotated", f.call("rotate "+id, by)
}

func (f *fakeWebhooks) Deliveries(_ context.Context, filter webhooks.DeliveryFilter) ([]webhooks.Delivery, int64, error) {
	f.filter = filter
	next := int64(0)
	if f.more {
		next = 7
	}
	return []webhooks.Delivery{
		{
			Position: 8, EventID: someEvent, Type: order.EventPaid, OrderID: someOrderID, ItemID: "thing", State: webhooks.DeliveryPending,
			Attempts: 2, CreatedAt: someTime, NextAt: someTime, LastAt: someTime, LastStatus: 500, LastError: "answered 500",
		},
		{Position: 7, EventID: someEvent, Type: order.EventTest, State: webhooks.DeliveryDelivered, Attempts: 1, CreatedAt: someTime, DeliveredAt: someTime},
	}, next, f.call("deliveries", order.By{})
}

func (f *fakeWebhooks) TestEndpoint(_ context.Context, id string, by order.By) (string, error) {
	return someEvent, f.call("test "+id, by)
}

func (f *fakeWebhooks) Redeliver(_ context.Context, endpoint, event string, by order.By) error {
	return f.call("redeliver "+endpoint+" "+event, by)
}

// openHooks makes a shop with webhooks, and a function that makes requests as an admin.
func openHooks(t *testing.T) (*fakeWebhooks, func(method, path, body string) *httptest.ResponseRecorder) {
	t.Helper()
	f := &fakeWebhooks{}
	s := open(t, func(c *Config) { c.Webhooks = f })
	return f, func(method, path, body string) *httptest.ResponseRecorder {
		t.Helper()
		f.calls = nil
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", bearer(t, "root", auth.RoleAdmin))
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		return s.do(r)
	}
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	f, call := openHooks(t)
	const hook = `{"id":"` + someHook + `","url":"https://shop.example/\u003cw\u003e","description":"d","events":["order.confirmed","order.paid"],` +
		`"enabled":true,"created_at":"2030-01-02T03:04:05.678Z","updated_at":"2030-01-02T03:04:05.678Z"`
	pending := `{"event":"` + someEvent + `","type":"order.paid","order_id":"` + someOrderID + `","item_id":"thing","status":"pending","attempts":2,` +
		`"created_at":"2030-01-02T03:04:05.678Z","next_attempt_at":"2030-01-02T03:04:05.678Z","last_attempt_at":"2030-01-02T03:04:05.678Z",` +
		`"last_status":500,"last_error":"answered 500"}`
	done := `{"event":"` + someEvent + `","type":"webhook.test","status":"delivered","attempts":1,` +
		`"created_at":"2030-01-02T03:04:05.678Z","delivered_at":"2030-01-02T03:04:05.678Z"}`
	for _, c := range []struct {
		method, path, body string
		status             int
		want, called       string
		audited            bool
	}{
		{"POST", "/v1/admin/webhooks", `{"url":"https://x.example"}`, 201, hook + `,"secret":"whsec_new"}`, "create", true},
		{"GET", "/v1/admin/webhooks", "", 200, `{"webhooks":[` + hook + `},` + strings.Replace(hook, someHook, otherHook, 1) + `}]}`, "list", false},
		{"GET", hookPath, "", 200, hook + `}`, "get " + someHook, false},
		{"PATCH", hookPath, `{"enabled":false}`, 200, hook + `}`, "change " + someHook, true},
		{"DELETE", hookPath, "", 204, "", "delete " + someHook, true},
		{"POST", hookPath + "/rotate", "", 200, hook + `,"old_secret_until":"2030-01-03T03:04:05.678Z","secret":"whsec_rotated"}`, "rotate " + someHook, true},
		{"POST", hookPath + "/test", "{}", 202, `{"event":"` + someEvent + `"}`, "test " + someHook, true},
		{"GET", hookPath + "/deliveries", "", 200, `{"deliveries":[` + pending + `,` + done + `],"next_cursor":""}`, "deliveries", false},
		{"POST", hookPath + "/deliveries/" + someEvent + "/redeliver", "", 202, `{"event":"` + someEvent + `"}`, "redeliver " + someHook + " " + someEvent, true},
	} {
		resp := call(c.method, c.path, c.body)
		body := resp.Body
		if resp.Code != c.status || body.String() != c.want || !slices.Equal(f.calls, []string{c.called}) {
			t.Errorf("%s %s: %d %s\nwant %s; called %q", c.method, c.path, resp.Code, body.String(), c.want, f.calls)
		}
		if strings.Contains(c.want, "secret") && resp.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: a secret that may be stored", c.method, c.path)
		}
		if c.audited && (f.by.Actor != "root" || f.by.RequestID != resp.Header().Get("X-Request-Id")) {
			t.Errorf("%s %s: by %+v", c.method, c.path, f.by)
		}
	}
	if resp := call("POST", "/v1/admin/webhooks", `{"url":"https://x.example"}`); resp.Header().Get("Location") != hookPath {
		t.Errorf("Location %q", resp.Header().Get("Location"))
	}
}

// The fields of a body are passed on.
func TestWebhooks_FieldsArePassedOn(t *testing.T) {
	t.Parallel()
	f, call := openHooks(t)
	call("POST", "/v1/admin/webhooks", `{"url":"https://x.example","description":"a b"}`)
	if f.created.URL != "https://x.example" || f.created.Description != "a b" || !slices.Equal(f.created.Events, order.EventTypes) {
		t.Errorf("created %+v, want all events", f.created)
	}
	call("POST", "/v1/admin/webhooks", `{"url":"u","events":["payment.late","order.paid"]}`)
	if !slices.Equal(f.created.Events, []order.EventType{order.EventLate, order.EventPaid}) {
		t.Errorf("created %+v", f.created)
	}
	call("PATCH", hookPath, `{}`)
	if c := f.changed; len(f.calls) != 1 || c.URL != nil || c.Description != nil || c.Events != nil || c.Enabled != nil {
		t.Errorf("no change: %+v", c)
	}
	call("PATCH", hookPath, `{"url":"v","description":"","events":["item.sold_out"],"enabled":true}`)
	if c := f.changed; *c.URL != "v" || *c.Description != "" || !slices.Equal(c.Events, []order.EventType{order.EventSoldOut}) || !*c.Enabled {
		t.Errorf("change %+v", c)
	}
}

func TestWebhooks_BadRequests(t *testing.T) {
	t.Parallel()
	f, call := openHooks(t)
	const all = "/v1/admin/webhooks"
	for _, c := range []struct {
		method, path, body string
		status             int
		code, param        string
	}{
		{"POST", all, ``, 415, "content_type", "Content-Type"},
		{"POST", all, `{`, 400, "json_invalid", ""},
		{"POST", all, `{}`, 400, "field_missing", "url"},
		{"POST", all, `{"url":1}`, 400, "field_type", "url"},
		{"POST", all, `{"url":null}`, 400, "field_type", "url"},
		{"POST", all, `{"url":"u","url":"v"}`, 400, "json_duplicate_key", ""},
		{"POST", all, `{"url":"u","secret":"s"}`, 400, "unknown_field", "secret"},
		{"POST", all, `{"url":"u","events":"order.paid"}`, 400, "field_type", "events"},
		{"POST", all, `{"url":"u","events":[1]}`, 400, "field_type", "events"},
		{"POST", all, `{"url":"u","events":["order.paid",null]}`, 400, "field_type", "events"},
		{"POST", all, `{"url":"u","events":[]}`, 422, "field_range", "events"},
		{"POST", all, `{"url":"u","events":["order.lost"]}`, 422, "field_range", "events"},
		{"POST", all, `{"url":"u","events":["webhook.test"]}`, 422, "field_range", "events"},
		{"POST", all, `{"url":"u","events":["order.paid","order.paid"]}`, 422, "field_range", "events"},
		{"POST", all, `{"url":"u","description":"` + strings.Repeat("x", 201) + `"}`, 422, "field_range", "description"},
		{"POST", all, `{"url":"u","description":"a\nb"}`, 422, "field_range", "description"},
		{"POST", all, `{"url":"` + strings.Repeat("x", 20_000) + `"}`, 413, "body_too_large", ""},
		{"GET", all + "?enabled=true", "", 400, "unknown_parameter", "enabled"},
		{"PATCH", hookPath, `{"enabled":"yes"}`, 400, "field_type", "enabled"},
		{"PATCH", hookPath, `{"enabled":null}`, 400, "field_type", "enabled"},
		{"PATCH", hookPath, `{"id":"x"}`, 400, "unknown_field", "id"},
		{"PATCH", hookPath, `{"events":[]}`, 422, "field_range", "events"},
		{"PATCH", hookPath, `{"description":"\u0000"}`, 422, "field_range", "description"},
		{"PATCH", all + "/we_1", `{}`, 400, "id_invalid", "webhook"},
		{"GET", all + "/" + strings.ToUpper(someHook), "", 400, "id_invalid", "webhook"},
		{"GET", all + "/" + someEvent, "", 400, "id_invalid", "webhook"},
		{"DELETE", all + "/x", "", 400, "id_invalid", "webhook"},
		{"DELETE", hookPath, `{"a":1}`, 400, "unknown_field", "a"},
		{"POST", hookPath + "/rotate", `{"secret":"mine"}`, 400, "unknown_field", "secret"},
		{"POST", hookPath + "/deliveries/1/redeliver", "", 400, "id_invalid", "event"},
		{"POST", hookPath + "/deliveries/" + someHook + "/redeliver", "", 400, "id_invalid", "event"},
		{"GET", hookPath + "/deliveries?status=lost", "", 400, "parameter_invalid", "status"},
		{"GET", hookPath + "/deliveries?state=dead", "", 400, "unknown_parameter", "state"},
		{"GET", hookPath + "/deliveries?limit=0", "", 400, "limit_range", "limit"},
		{"GET", hookPath + "/deliveries?limit=1&limit=2", "", 400, "parameter_invalid", "limit"},
		{"GET", hookPath + "/deliveries?cursor=x", "", 400, "cursor_invalid", "cursor"},
		{"PUT", hookPath, `{}`, 405, "method_not_allowed", ""},
	} {
		body := wantProblem(t, call(c.method, c.path, c.body).Result(), c.status, c.code)
		if c.param != "" && body["param"] != c.param {
			t.Errorf("%s %s %.40s: param %v, want %s", c.method, c.path, c.body, body["param"], c.param)
		}
		if len(f.calls) != 0 {
			t.Errorf("%s %s %.40s: called %q", c.method, c.path, c.body, f.calls)
		}
	}
}

func TestWebhooks_Errors(t *testing.T) {
	t.Parallel()
	f, call := openHooks(t)
	const list, deliveries = "/v1/admin/webhooks", hookPath + "/deliveries"
	for _, tt := range []struct {
		err          error
		method, path string
		status       int
		code         string
	}{
		{webhooks.ErrEndpointNotFound, "GET", deliveries, 404, "webhook_not_found"},
		{webhooks.ErrEndpointLimit, "POST", list, 409, "webhook_limit"},
		{webhooks.ErrEndpointDisabled, "POST", hookPath + "/test", 409, "webhook_disabled"},
		{webhooks.ErrDeliveryNotFound, "POST", deliveries + "/" + someEvent + "/redeliver", 404, "delivery_not_found"},
		{database.ErrUnavailable, "GET", deliveries, 503, "unavailable"},
		{database.ErrUnavailable, "POST", list, 503, "unavailable"},
		{&webhook.URLError{Detail: "url is no URL; no."}, "POST", list, 422, "field_range"},
		{errTest, "GET", deliveries, 500, "internal"},
		{errTest, "POST", list, 500, "internal"},
	} {
		f.err = fmt.Errorf("ask: %w", tt.err)
		text := ""
		if tt.path == list {
			text = `{"url":"u"}`
		}
		body := wantProblem(t, call(tt.method, tt.path, text).Result(), tt.status, tt.code)
		if tt.status == 422 && (body["param"] != "url" || body["detail"] != "url is no URL; no.") {
			t.Errorf("a bad URL: %v", body)
		}
	}
}

// Only admins may use webhooks, and without webhooks the routes do not exist.
func TestWebhooks_OnlyForAdmins(t *testing.T) {
	t.Parallel()
	f := &fakeWebhooks{}
	s := open(t, func(c *Config) { c.Webhooks = f })
	for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleService} {
		wantProblem(t, s.get(t, "/v1/admin/webhooks", "alice", role).Result(), 403, "forbidden")
		wantProblem(t, s.get(t, hookPath+"/deliveries", "alice", role).Result(), 403, "forbidden")
	}
	wantProblem(t, s.get(t, hookPath, "", "").Result(), 401, "auth_missing")
	wantProblem(t, open(t).get(t, "/v1/admin/webhooks", "root", auth.RoleAdmin).Result(), 404, "route_not_found")
	if len(f.calls) != 0 {
		t.Errorf("called %q", f.calls)
	}
}

// A cursor is only valid in its own list.
func TestWebhooks_CursorIsBoundToItsList(t *testing.T) {
	t.Parallel()
	f, call := openHooks(t)
	f.more = true
	cursor, ok := decodeBody(t, call("GET", hookPath+"/deliveries?status=dead&limit=2", "").Body)["next_cursor"].(string)
	if want := (webhooks.DeliveryFilter{EndpointID: someHook, State: webhooks.DeliveryDead, Limit: 2}); !ok || cursor == "" || f.filter != want {
		t.Fatalf("cursor %q of %+v", cursor, f.filter)
	}
	if resp := call("GET", hookPath+"/deliveries?status=dead&cursor="+cursor, ""); resp.Code != 200 || f.filter.Before != 7 {
		t.Errorf("the next page: %d, %+v", resp.Code, f.filter)
	}
	for _, path := range []string{
		hookPath + "/deliveries?cursor=" + cursor,
		hookPath + "/deliveries?status=pending&cursor=" + cursor,
		strings.Replace(hookPath, "ab", "ac", 1) + "/deliveries?status=dead&cursor=" + cursor,
		hookPath + "/deliveries?status=dead&cursor=" + cursor + "A",
		hookPath + "/deliveries?status=dead&cursor=B" + cursor[1:],
	} {
		wantProblem(t, call("GET", path, "").Result(), 400, "cursor_invalid")
	}
}
