package handler

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/store/database"
)

// fakeChanges records its calls, and answers with the item of the tests.
type fakeChanges struct {
	mu       sync.Mutex
	changes  []items.Change
	controls []items.Control
	restocks []items.Restock
	by       []order.By
	replayed bool
	err      error
}

func (f *fakeChanges) answer(id string, by order.By) (catalog.Item, error) {
	f.by = append(f.by, by)
	if f.err != nil {
		return catalog.Item{}, f.err
	}
	if id != "thing" {
		return catalog.Item{}, catalog.ErrItemNotFound
	}
	item := someItem()
	item.Version++
	return item, nil
}

func (f *fakeChanges) Item(_ context.Context, id string) (catalog.Item, error) {
	if id != "thing" {
		return catalog.Item{}, catalog.ErrItemNotFound
	}
	return someItem(), nil
}

func (f *fakeChanges) ChangeItem(_ context.Context, id string, c items.Change, by order.By) (catalog.Item, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, c)
	return f.answer(id, by)
}

func (f *fakeChanges) ControlItem(_ context.Context, id string, c items.Control, by order.By) (catalog.Item, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.controls = append(f.controls, c)
	return f.answer(id, by)
}

func (f *fakeChanges) Restock(_ context.Context, id string, r items.Restock, by order.By) (catalog.Item, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restocks = append(f.restocks, r)
	item, err := f.answer(id, by)
	return item, f.replayed, err
}

// calls is the number of calls.
func (f *fakeChanges) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.by)
}

// fakeAuditLog is an audit log with given entries.
type fakeAuditLog struct {
	asked   []order.AuditFilter
	entries []order.AuditEntry
	more    bool
}

func (f *fakeAuditLog) Audit(_ context.Context, filter order.AuditFilter) ([]order.AuditEntry, bool, error) {
	f.asked = append(f.asked, filter)
	return f.entries, f.more, nil
}

// send sends a request with a body and headers, each a name and a value.
func (s *shop) send(tb testing.TB, method, path, sub string, role auth.Role, body string, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", bearer(tb, sub, role))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Del(headers[i])
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return s.do(r)
}

const thingPath = "/v1/admin/items/thing"

func ptr[T any](v T) *T { return &v }

func TestChangeItem(t *testing.T) {
	t.Parallel()
	opens, closes := time.Date(2030, 1, 2, 3, 0, 0, 123_000_000, time.UTC), time.Date(2030, 2, 1, 0, 0, 0, 0, time.UTC)
	for body, want := range map[string]items.Change{
		`{"name":"New"}`:               {Name: ptr("New")},
		`{"description":""}`:           {Description: ptr("")},
		`{"image_url":"/a.jpg"}`:       {ImageURL: ptr("/a.jpg")},
		`{"image_url":""}`:             {ImageURL: ptr("")},
		`{"image_url":null}`:           {ImageURL: ptr("")},
		`{"price_minor":0}`:            {PriceMinor: ptr(int64(0))},
		`{"per_user_limit":7}`:         {PerUserLimit: ptr(int64(7))},
		`{"payment_window_seconds":0}`: {PaymentWindow: ptr(time.Duration(0))},
		`{"closes_at":null}`:           {ClosesAt: &time.Time{}},
		`{"opens_at":"2030-01-02T05:00:00.1239+02:00","closes_at":"2030-02-01T00:00:00Z","payment_window_seconds":60}`: {
			OpensAt: &opens, ClosesAt: &closes, PaymentWindow: ptr(time.Minute),
		},
	} {
		s := open(t)
		w := s.send(t, "PATCH", thingPath, "root", auth.RoleAdmin, body, "If-Match", `"4"`)
		want.Match = order.Match{4}
		if w.Code != 200 || w.Header().Get("ETag") != `"5"` || w.Header().Get("Cache-Control") != "no-store" {
			t.Fatalf("%s: %d %v %s", body, w.Code, w.Header(), w.Body)
		}
		if got := s.changes.changes[0]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: changed %+v, want %+v", body, got, want)
		}
		if by := s.changes.by[0]; by != (order.By{Actor: "root", RequestID: w.Header().Get("X-Request-Id")}) {
			t.Errorf("%s: by %+v", body, by)
		}
		if b := decodeBody(t, w.Body); b["id"] != "thing" || b["version"] != 5.0 {
			t.Errorf("%s: %v", body, b)
		}
	}
}

// The versions to which a change applies.
func TestChangeItem_Match(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]order.Match{
		`*`:                      nil,
		" *\t":                   nil,
		`"4"`:                    {4},
		`"4", "5"`:               {4, 5},
		`"4","5" , "6"`:          {4, 5, 6},
		`, "4",,"5",`:            {4, 5},
		`W/"4"`:                  {},
		`W/"4", "5"`:             {5},
		`"04", "+4", "4 ", "x"`:  nil, // a tag contains no space
		`"04","+4","x","","4,5"`: {},
		`"99999999999999999999"`: {},
	} {
		s := open(t)
		w := s.send(t, "PATCH", thingPath, "root", auth.RoleAdmin, `{"name":"New"}`, "If-Match", header)
		if strings.Contains(header, `"4 "`) {
			wantProblem(t, w.Result(), 400, "if_match_invalid")
			continue
		}
		if w.Code != 200 || !reflect.DeepEqual(s.changes.changes[0].Match, want) {
			t.Errorf("If-Match: %s: %d %s, %+v, want %+v", header, w.Code, w.Body, s.changes.changes, want)
		}
	}
	s := open(t)
	if s.send(t, "PATCH", thingPath, "root", auth.RoleAdmin, `{"name":"New"}`, "If-Match", `"4"`, "If-Match", `"5"`); !reflect.DeepEqual(s.changes.changes[0].Match, order.Match{4, 5}) {
		t.Errorf("two headers are one list: %+v", s.changes.changes)
	}
	for _, header := range []string{"", "4", `"4`, `4"`, `"4" "5"`, `"4""5"`, `w/"4"`, `W/4`, `W/`, `*, "4"`, `"4", *`, `,`, "\"\x7f\"", `'4'`} {
		got := wantProblem(t, s.send(t, "PATCH", thingPath, "root", auth.RoleAdmin, `{"name":"New"}`, "If-Match", header).Result(), 400, "if_match_invalid")
		if got["param"] != "If-Match" {
			t.Errorf("If-Match: %s: param %v", header, got["param"])
		}
	}
	if got := s.changes.calls(); got != 1 {
		t.Errorf("malformed conditions let %d changes through", got-1)
	}
}

func TestChangeItem_BadRequests(t *testing.T) {
	t.Parallel()
	s := open(t)
	for body, want := range map[string]struct {
		status int
		code   string
		param  any
	}{
		``:                                 {400, "body_missing", nil},
		`{`:                                {400, "json_invalid", nil},
		`[]`:                               {400, "json_invalid", nil},
		`{"name":"a"} x`:                   {400, "json_trailing", nil},
		`{"name":"a","name":"b"}`:          {400, "json_duplicate_key", "name"},
		`{}`:                               {400, "field_missing", nil},
		`{"name":"a","state":"open"}`:      {400, "unknown_field", "state"},
		`{"version":4}`:                    {400, "unknown_field", "version"},
		`{"stock_total":4}`:                {400, "unknown_field", "stock_total"},
		`{"stock":4}`:                      {422, "field_fixed", "stock"},
		`{"id":"other"}`:                   {422, "field_fixed", "id"},
		`{"currency":"EUR"}`:               {422, "field_fixed", "currency"},
		`{"name":null}`:                    {400, "field_type", "name"},
		`{"name":1}`:                       {400, "field_type", "name"},
		`{"name":""}`:                      {422, "field_range", "name"},
		`{"name":"a\n"}`:                   {422, "field_range", "name"},
		`{"description":"\u0000"}`:         {422, "field_range", "description"},
		`{"image_url":1}`:                  {400, "field_type", "image_url"},
		`{"image_url":"//b/a.jpg"}`:        {422, "field_range", "image_url"},
		`{"price_minor":"1"}`:              {400, "field_type", "price_minor"},
		`{"price_minor":1.5}`:              {400, "field_type", "price_minor"},
		`{"price_minor":-1}`:               {422, "field_range", "price_minor"},
		`{"price_minor":1000000000001}`:    {422, "field_range", "price_minor"},
		`{"per_user_limit":0}`:             {422, "field_range", "per_user_limit"},
		`{"per_user_limit":null}`:          {400, "field_type", "per_user_limit"},
		`{"per_user_limit":1000001}`:       {422, "field_range", "per_user_limit"},
		`{"payment_window_seconds":-1}`:    {422, "field_range", "payment_window_seconds"},
		`{"opens_at":null}`:                {400, "field_type", "opens_at"},
		`{"opens_at":"soon"}`:              {422, "window_invalid", "opens_at"},
		`{"closes_at":"never"}`:            {422, "window_invalid", "closes_at"},
		`{"closes_at":1}`:                  {400, "field_type", "closes_at"},
		`{"closes_at":"9999-01-01T00:00"}`: {422, "window_invalid", "closes_at"},
	} {
		got := wantProblem(t, s.send(t, "PATCH", thingPath, "root", auth.RoleAdmin, body, "If-Match", "*").Result(), want.status, want.code)
		if got["param"] != want.param {
			t.Errorf("%s: param %v, want %v", body, got["param"], want.param)
		}
	}
	for _, q := range []struct {
		path, sub string
		role      auth.Role
		headers   []string
		status    int
		code      string
	}{
		{thingPath, "root", auth.RoleAdmin, nil, 428, "version_required"},
		{thingPath, "alice", auth.RoleBuyer, []string{"If-Match", "*"}, 403, "forbidden"},
		{thingPath, "psp", auth.RoleService, []string{"If-Match", "*"}, 403, "forbidden"},
		{"/v1/admin/items/THING", "root", auth.RoleAdmin, []string{"If-Match", "*"}, 400, "id_invalid"},
		{thingPath + "?version=3", "root", auth.RoleAdmin, []string{"If-Match", "*"}, 400, "unknown_parameter"},
		{thingPath, "root", auth.RoleAdmin, []string{"If-Match", "*", "Content-Type", "text/plain"}, 415, "content_type"},
		{thingPath, "root", auth.RoleAdmin, []string{"If-Match", "*", "Accept", "text/html"}, 406, "not_acceptable"},
	} {
		wantProblem(t, s.send(t, "PATCH", q.path, q.sub, q.role, `{"name":"a"}`, q.headers...).Result(), q.status, q.code)
	}
	if n := s.changes.calls(); n != 0 {
		t.Errorf("bad requests led to %d changes", n)
	}
	w := s.send(t, "PUT", thingPath, "root", auth.RoleAdmin, `{}`)
	wantProblem(t, w.Result(), 405, "method_not_allowed")
	if got := w.Header().Get("Allow"); got != "GET, HEAD, PATCH" {
		t.Errorf("Allow = %q", got)
	}
	wantProblem(t, s.send(t, "PATCH", "/v1/admin/items/nope", "root", auth.RoleAdmin, `{"name":"a"}`, "If-Match", "*").Result(), 404, "item_not_found")
}

// Each error of a change has its answer on every route.
func TestChanges_EachErrorHasItsAnswer(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.Handler = s.bare // each error on each route, which the contract excludes
	for err, want := range map[error]struct {
		status int
		code   string
		param  any
	}{
		order.ErrVersion:            {412, "version_conflict", "If-Match"},
		order.ErrWindow:             {422, "window_invalid", "closes_at"},
		order.ErrItemClosed:         {409, "sale_closed", nil},
		items.ErrStockRange:         {422, "field_range", "quantity"},
		items.ErrRestockReused:      {422, "idempotency_key_reused", "Idempotency-Key"},
		inventory.ErrStockBelowSold: {409, "stock_below_sold", "quantity"},
		catalog.ErrItemNotFound:     {404, "item_not_found", nil},
		inventory.ErrUnavailable:    {503, "unavailable", nil},
		inventory.ErrRebuilding:     {503, "unavailable", nil},
		database.ErrUnavailable:     {503, "unavailable", nil},
		context.DeadlineExceeded:    {503, "unavailable", nil},
		errTest:                     {500, "internal", nil},
	} {
		s.changes.err = fmt.Errorf("change item thing: %w: %w", inventory.ErrUnchanged, err)
		for _, w := range []*httptest.ResponseRecorder{
			s.send(t, "PATCH", thingPath, "root", auth.RoleAdmin, `{"name":"a"}`, "If-Match", `"1"`),
			s.send(t, "POST", thingPath+"/pause", "root", auth.RoleAdmin, ""),
			s.send(t, "POST", thingPath+"/restock", "root", auth.RoleAdmin, `{"quantity":1,"reason":"r"}`, "Idempotency-Key", "k"),
		} {
			got := wantProblem(t, w.Result(), want.status, want.code)
			if got["param"] != want.param || strings.Contains(w.Body.String(), "10.0.0.1") {
				t.Errorf("%v: %v", err, got)
			}
			if detail, ok := got["detail"].(string); want.status == 503 && (!ok || strings.Contains(detail, "one order")) {
				t.Errorf("%v speaks of a purchase: %v", err, got)
			}
		}
	}
}

func TestControlItem(t *testing.T) {
	t.Parallel()
	s := open(t)
	for word, to := range map[string]catalog.Control{
		"pause": catalog.ControlPaused, "resume": catalog.ControlOpen, "close": catalog.ControlClosed,
	} {
		path := thingPath + "/" + word
		for body, headers := range map[string][]string{"": nil, "{}": {"If-Match", `"4"`}} {
			n := len(s.changes.controls)
			w := s.send(t, "POST", path, "root", auth.RoleAdmin, body, headers...)
			if w.Code != 200 || w.Header().Get("ETag") != `"5"` {
				t.Fatalf("%s: %d %s", word, w.Code, w.Body)
			}
			want := items.Control{To: to}
			if headers != nil {
				want.Match = order.Match{4}
			}
			if got := s.changes.controls[n]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, want %+v", word, got, want)
			}
		}
		n := s.changes.calls()
		wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, `{"reason":"x"}`).Result(), 400, "unknown_field")
		wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, `[]`).Result(), 400, "json_invalid")
		wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, ``, "If-Match", "4").Result(), 400, "if_match_invalid")
		wantProblem(t, s.send(t, "POST", path, "alice", auth.RoleBuyer, ``).Result(), 403, "forbidden")
		wantProblem(t, s.send(t, "POST", "/v1/admin/items/X/"+word, "root", auth.RoleAdmin, ``).Result(), 400, "id_invalid")
		wantProblem(t, s.send(t, "POST", thingPath+"/"+word+"?until=noon", "root", auth.RoleAdmin, ``).Result(), 400, "unknown_parameter")
		wantProblem(t, s.get(t, path, "root", auth.RoleAdmin).Result(), 405, "method_not_allowed")
		if got := s.changes.calls(); got != n {
			t.Errorf("%s: bad requests led to %d changes", word, got-n)
		}
		wantProblem(t, s.send(t, "POST", "/v1/admin/items/nope/"+word, "root", auth.RoleAdmin, ``).Result(), 404, "item_not_found")
	}
}

func TestRestock(t *testing.T) {
	t.Parallel()
	s := open(t)
	path := thingPath + "/restock"
	for _, tt := range []struct {
		body    string
		headers []string
		want    items.Restock
	}{
		{`{"quantity":10,"reason":"näx"}`, nil, items.Restock{Quantity: 10, Reason: "näx", IdempotencyKey: "k"}},
		{`{"reason":"r","quantity":-1000000000}`, nil, items.Restock{Quantity: -1_000_000_000, Reason: "r", IdempotencyKey: "k"}},
		{`{"quantity":1,"reason":"r"}`, []string{"If-Match", `"4"`}, items.Restock{Quantity: 1, Reason: "r", IdempotencyKey: "k", Match: order.Match{4}}},
	} {
		s.changes.replayed = !s.changes.replayed
		n := len(s.changes.restocks)
		w := s.send(t, "POST", path, "root", auth.RoleAdmin, tt.body, append(tt.headers, "Idempotency-Key", "k")...)
		if w.Code != 200 || w.Header().Get("ETag") != `"5"` || (w.Header().Get("Idempotent-Replayed") == "true") != s.changes.replayed {
			t.Fatalf("%s: %d %v %s", tt.body, w.Code, w.Header(), w.Body)
		}
		if got := s.changes.restocks[n]; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.body, got, tt.want)
		}
	}
	n := s.changes.calls()
	for body, want := range map[string]struct {
		status      int
		code, param string
	}{
		`{"reason":"r"}`:                                             {400, "field_missing", "quantity"},
		`{"quantity":1}`:                                             {400, "field_missing", "reason"},
		`{"quantity":"1","reason":"r"}`:                              {400, "field_type", "quantity"},
		`{"quantity":1.5,"reason":"r"}`:                              {400, "field_type", "quantity"},
		`{"quantity":1e3,"reason":"r"}`:                              {400, "field_type", "quantity"},
		`{"quantity":null,"reason":"r"}`:                             {400, "field_type", "quantity"},
		`{"quantity":1,"reason":null}`:                               {400, "field_type", "reason"},
		`{"quantity":1,"reason":"r","by":"me"}`:                      {400, "unknown_field", "by"},
		`{"quantity":0,"reason":"r"}`:                                {422, "field_range", "quantity"},
		`{"quantity":1000000001,"reason":"r"}`:                       {422, "field_range", "quantity"},
		`{"quantity":-1000000001,"reason":"r"}`:                      {422, "field_range", "quantity"},
		`{"quantity":1` + strings.Repeat("0", 40) + `,"reason":"r"}`: {422, "field_range", "quantity"},
		`{"quantity":1,"reason":""}`:                                 {422, "field_range", "reason"},
		`{"quantity":1,"reason":"a\u0007b"}`:                         {422, "field_range", "reason"},
		`{"quantity":1,"reason":"a\nb"}`:                             {422, "field_range", "reason"},
		`{"quantity":1,"reason":"` + strings.Repeat("ä", 201) + `"}`: {422, "field_range", "reason"},
	} {
		got := wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, body, "Idempotency-Key", "k").Result(), want.status, want.code)
		if got["param"] != want.param {
			t.Errorf("%s: param %v, want %s", body, got["param"], want.param)
		}
	}
	const good = `{"quantity":1,"reason":"r"}`
	wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, ``, "Idempotency-Key", "k").Result(), 400, "body_missing")
	wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, good).Result(), 400, "idempotency_key_missing")
	wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, good, "Idempotency-Key", "a b").Result(), 400, "idempotency_key_invalid")
	wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, good, "Idempotency-Key", "a", "Idempotency-Key", "b").Result(), 400, "header_duplicate")
	wantProblem(t, s.send(t, "POST", path, "root", auth.RoleAdmin, good, "Idempotency-Key", "k", "If-Match", "x").Result(), 400, "if_match_invalid")
	wantProblem(t, s.send(t, "POST", path, "alice", auth.RoleBuyer, good, "Idempotency-Key", "k").Result(), 403, "forbidden")
	wantProblem(t, s.send(t, "POST", "/v1/admin/items/X/restock", "root", auth.RoleAdmin, good, "Idempotency-Key", "k").Result(), 400, "id_invalid")
	wantProblem(t, s.send(t, "POST", thingPath+"/restock?quantity=2", "root", auth.RoleAdmin, good, "Idempotency-Key", "k").Result(), 400, "unknown_parameter")
	if got := s.changes.calls(); got != n {
		t.Errorf("bad requests led to %d restocks", got-n)
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	s := open(t)
	if w := s.get(t, "/v1/admin/audit", "root", auth.RoleAdmin); w.Code != 200 || w.Body.String() != `{"entries":[],"next_cursor":""}` {
		t.Errorf("an empty audit: %d %s", w.Code, w.Body)
	}
	s.audit.entries = []order.AuditEntry{
		{ID: 9, At: someTime, Actor: "root", Action: "item.pause", ItemID: "thing", Before: `{"control":"open"}`, After: `{"control":"paused"}`, RequestID: "r-1"},
		{ID: 8, At: someTime, Actor: "root", Action: "order.cancel", OrderID: someOrderID},
	}
	s.audit.more = true
	query := "/v1/admin/audit?limit=2&item_id=thing&order_id=" + someOrderID
	w := s.get(t, query, "root", auth.RoleAdmin)
	const want = `{"entries":[{"id":9,"at":"2030-01-02T03:04:05.678Z","actor":"root","action":"item.pause","item_id":"thing",` +
		`"before":{"control":"open"},"after":{"control":"paused"},"request_id":"r-1"},` +
		`{"id":8,"at":"2030-01-02T03:04:05.678Z","actor":"root","action":"order.cancel","order_id":"` + someOrderID + `"}],"next_cursor":"`
	if !strings.HasPrefix(w.Body.String(), want) {
		t.Errorf("audit: %s, want %s", w.Body, want)
	}
	cursor, ok := decodeBody(t, w.Body)["next_cursor"].(string)
	if !ok || cursor == "" {
		t.Fatal("no cursor")
	}
	if w := s.get(t, query+"&cursor="+cursor, "root", auth.RoleAdmin); w.Code != 200 {
		t.Errorf("the next page: %d %s", w.Code, w.Body)
	}
	if got := s.audit.asked[2]; got != (order.AuditFilter{ItemID: "thing", OrderID: someOrderID, Before: 8, Limit: 2}) {
		t.Errorf("the next page asks for %+v", got)
	}
	asked := len(s.audit.asked)
	for query, code := range map[string]string{
		"limit=0": "limit_range", "limit=101": "limit_range", "limit=x": "limit_range", "item_id=X": "id_invalid", "item_id=": "id_invalid",
		"order_id=1": "id_invalid", "actor=root": "unknown_parameter", "limit=1&limit=2": "parameter_invalid", "limit=%zz": "parameter_invalid",
		"cursor=": "cursor_invalid", "cursor=x": "cursor_invalid", "cursor=" + cursor: "cursor_invalid", // of other filters
		"item_id=thing&order_id=" + someOrderID + "&cursor=" + cursor + "A": "cursor_invalid",
	} {
		wantProblem(t, s.get(t, "/v1/admin/audit?"+query, "root", auth.RoleAdmin).Result(), 400, code)
	}
	wantProblem(t, s.get(t, "/v1/admin/audit", "alice", auth.RoleBuyer).Result(), 403, "forbidden")
	wantProblem(t, s.get(t, "/v1/admin/audit", "psp", auth.RoleService).Result(), 403, "forbidden")
	wantProblem(t, s.get(t, "/v1/admin/audit", "", "").Result(), 401, "auth_missing")
	if got := len(s.audit.asked); got != asked {
		t.Errorf("bad requests caused %d reads", got-asked)
	}
}

// A client that disconnects causes no internal error.
func TestChanges_DisconnectIsNoInternalError(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.changes.err = context.Canceled
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, thingPath+"/pause", http.NoBody)
	r.Header.Set("Authorization", bearer(t, "root", auth.RoleAdmin))
	resp := s.do(r).Result()
	wantProblem(t, resp, 503, "unavailable")
}
