package handler

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/ops"
	"flashsale/handler/request"
	"flashsale/order"
	"flashsale/order/store/database"
)

func TestNew_Err(t *testing.T) {
	t.Parallel()
	good := Config{
		Orders: &fakeOrders{}, Items: fakeItems{}, Sales: fakeItemService{}, Ledgers: &fakeSales{}, Payments: &fakeMoney{}, Buyers: &fakeBuyers{},
		Audit: &fakeAuditLog{}, Verifier: &auth.Verifier{},
	}
	if _, err := New(good); err != nil {
		t.Errorf("the least Config: %v", err)
	}
	for name, spoil := range map[string]func(*Config){
		"no Orders":        func(c *Config) { c.Orders = nil },
		"no Sales":         func(c *Config) { c.Sales = nil },
		"no Ledgers":       func(c *Config) { c.Ledgers = nil },
		"no Payments":      func(c *Config) { c.Payments = nil },
		"no Buyers":        func(c *Config) { c.Buyers = nil },
		"no Audit":         func(c *Config) { c.Audit = nil },
		"no Items":         func(c *Config) { c.Items = nil },
		"no Verifier":      func(c *Config) { c.Verifier = nil },
		"RateAddress":      func(c *Config) { c.Limits.RateAddress = -1 },
		"BurstBuyer":       func(c *Config) { c.Limits.BurstBuyer = -1 },
		"MaxWait":          func(c *Config) { c.Limits.MaxWait = -1 },
		"Heartbeat":        func(c *Config) { c.Streams.Heartbeat = -1 },
		"StreamLife":       func(c *Config) { c.Streams.Life = -1 },
		"StreamStall":      func(c *Config) { c.Streams.Stall = -1 },
		"TrustedProxies":   func(c *Config) { c.Limits.TrustedProxies = []string{"everybody"} },
		"metrics conflict": func(c *Config) { c.Registerer = usedRegistry() },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func usedRegistry() prometheus.Registerer {
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "flashsale_http_problems_total", Help: "x"}))
	return r
}

func TestItems(t *testing.T) {
	t.Parallel()
	const thing = `{"id":"thing","name":"Thing","description":"a \u003cthing\u003e","price_minor":990,"currency":"EUR",` +
		`"stock_total":7,"stock_left":3,"per_user_limit":2,"opens_at":"2030-01-02T02:04:05.678Z","closes_at":null,` +
		`"payment_window_seconds":90,"state":"open","version":4,"server_time":"2030-01-02T03:04:05.678Z"}`
	s := open(t)
	if w := s.get(t, "/v1/items/thing", "", ""); w.Code != 200 || w.Body.String() != thing {
		t.Errorf("item: %d %s", w.Code, w.Body)
	}
	if w := s.get(t, "/v1/items", "", ""); w.Code != 200 || w.Body.String() != `{"items":[`+thing+`],"next_cursor":""}` {
		t.Errorf("items: %d %s", w.Code, w.Body)
	}
	wantProblem(t, s.get(t, "/v1/items/nope", "", "").Result(), 404, "item_not_found")
	wantProblem(t, s.get(t, "/v1/items/NOPE", "", "").Result(), 400, "id_invalid")
	r := httptest.NewRequest(http.MethodHead, "/v1/items/thing", http.NoBody)
	if w := s.do(r); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
	r = httptest.NewRequest(http.MethodPost, "/v1/items/thing", http.NoBody)
	resp := s.do(r).Result()
	wantProblem(t, resp, 405, "method_not_allowed")
	if got := resp.Header.Get("Allow"); got != "GET, HEAD" {
		t.Errorf("Allow = %q", got)
	}
}

func TestGetOrder(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.orders.get = func(id string) (order.Order, error) {
		if id != someOrderID {
			return order.Order{}, fmt.Errorf("get order %s: %w", id, order.ErrNotFound)
		}
		return someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1}), nil
	}
	for _, who := range []struct {
		sub  string
		role auth.Role
	}{{"alice", auth.RoleBuyer}, {"root", auth.RoleAdmin}, {"shop", auth.RoleService}} {
		w := s.get(t, "/v1/orders/"+someOrderID, who.sub, who.role)
		if body := decodeBody(t, w.Body); w.Code != 200 || body["id"] != someOrderID || body["user_id"] != "alice" {
			t.Errorf("%s: %d %v", who.role, w.Code, body)
		}
	}
	another := wantProblem(t, s.get(t, "/v1/orders/"+someOrderID, "bob", auth.RoleBuyer).Result(), 404, "order_not_found")
	random := wantProblem(t, s.get(t, "/v1/orders/4c6ba5f1-0d6c-4b9c-a1f5-6a4d1cf7b0f2", "bob", auth.RoleBuyer).Result(), 404, "order_not_found")
	for name := range another {
		if name != "request_id" && another[name] != random[name] {
			t.Errorf("%s distinguishes another's order from none: %v, %v", name, another[name], random[name])
		}
	}
	for _, id := range []string{"1", "x", strings.ToUpper(someOrderID), someOrderID + "0", "%00", strings.ReplaceAll(someOrderID, "-", "_")} {
		wantProblem(t, s.get(t, "/v1/orders/"+id, "alice", auth.RoleBuyer).Result(), 400, "id_invalid")
	}
	wantProblem(t, s.get(t, "/v1/orders/"+someOrderID, "", "").Result(), 401, "auth_missing")
	s.orders.get = func(string) (order.Order, error) { return order.Order{}, errTest }
	wantProblem(t, s.get(t, "/v1/orders/"+someOrderID, "alice", auth.RoleBuyer).Result(), 500, "internal")
}

func TestListOrders(t *testing.T) {
	t.Parallel()
	s := open(t)
	one := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
	s.orders.list = func(order.Filter) ([]order.Order, string, error) { return []order.Order{one, one}, one.ID, nil }

	body := decodeBody(t, s.get(t, "/v1/orders?limit=2", "alice", auth.RoleBuyer).Body)
	if got := s.orders.lastList(t); got != (order.Filter{UserID: "alice", Limit: 2}) {
		t.Errorf("a buyer's list asks for %+v", got)
	}
	if orders, ok := body["orders"].([]any); !ok || len(orders) != 2 {
		t.Errorf("body = %v", body)
	}
	cursor, ok := body["next_cursor"].(string)
	if !ok || cursor == "" {
		t.Fatalf("next_cursor = %v", body["next_cursor"])
	}
	if w := s.get(t, "/v1/orders?cursor="+cursor, "alice", auth.RoleBuyer); w.Code != 200 {
		t.Errorf("the next page: %d %s", w.Code, w.Body)
	}
	if got := s.orders.lastList(t); got != (order.Filter{UserID: "alice", Limit: request.DefaultPage, Before: someOrderID}) {
		t.Errorf("the next page asks for %+v", got)
	}
	// The last page.
	s.orders.list = nil
	if w := s.get(t, "/v1/orders", "alice", auth.RoleBuyer); w.Body.String() != `{"orders":[],"next_cursor":""}` {
		t.Errorf("an empty list: %s", w.Body)
	}
	// An admin's filters.
	if w := s.get(t, "/v1/orders?user_id=bob&item_id=thing&status=paid&limit=100", "root", auth.RoleAdmin); w.Code != 200 {
		t.Errorf("filters: %d %s", w.Code, w.Body)
	}
	if got := s.orders.lastList(t); got != (order.Filter{UserID: "bob", ItemID: "thing", Status: order.StatusPaid, Limit: 100}) {
		t.Errorf("an admin's list asks for %+v", got)
	}
	if w := s.get(t, "/v1/orders?user_id=bob&status=queued", "root", auth.RoleAdmin); w.Code != 200 {
		t.Errorf("a buyer's queued orders: %d %s", w.Code, w.Body)
	}
	if got := s.orders.lastList(t); got != (order.Filter{UserID: "bob", Status: order.StatusQueued, Limit: request.DefaultPage}) {
		t.Errorf("an admin's list of a buyer's queued orders asks for %+v", got)
	}
	// The number of concurrent lists is bounded.
	s.orders.list = func(order.Filter) ([]order.Order, string, error) { return nil, "", database.ErrTooManyLists }
	full := s.get(t, "/v1/orders", "root", auth.RoleAdmin)
	wantProblem(t, full.Result(), 503, "overloaded")
	if full.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After while too many lists are read")
	}
	// A page may be empty without being the last.
	s.orders.list = func(order.Filter) ([]order.Order, string, error) { return nil, someOrderID, nil }
	if body := decodeBody(t, s.get(t, "/v1/orders", "alice", auth.RoleBuyer).Body); body["next_cursor"] == "" {
		t.Errorf("an empty page before others: %v", body)
	}
	wantProblem(t, s.get(t, "/v1/orders", "shop", auth.RoleService).Result(), 403, "forbidden")
}

func TestListOrders_BadRequests(t *testing.T) {
	t.Parallel()
	s := open(t)
	one := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
	s.orders.list = func(order.Filter) ([]order.Order, string, error) { return []order.Order{one}, one.ID, nil }
	cursor, ok := decodeBody(t, s.get(t, "/v1/orders", "alice", auth.RoleBuyer).Body)["next_cursor"].(string)
	if !ok {
		t.Fatal("no cursor")
	}
	asked := len(s.orders.lists)
	for _, tc := range []struct {
		query string
		role  auth.Role
		code  string
	}{
		{"limit=0", auth.RoleBuyer, "limit_range"},
		{"limit=-1", auth.RoleBuyer, "limit_range"},
		{"limit=101", auth.RoleBuyer, "limit_range"},
		{"limit=1000000000", auth.RoleBuyer, "limit_range"},
		{"limit=99999999999999999999", auth.RoleBuyer, "limit_range"},
		{"limit=ten", auth.RoleBuyer, "limit_range"},
		{"limit=", auth.RoleBuyer, "limit_range"},
		{"limit=1&limit=2", auth.RoleBuyer, "parameter_invalid"},
		{"limit=%zz", auth.RoleBuyer, "parameter_invalid"},
		{"a;b=1", auth.RoleBuyer, "parameter_invalid"},
		{"page=2", auth.RoleBuyer, "unknown_parameter"},
		{"user_id=bob", auth.RoleBuyer, "unknown_parameter"},
		{"page=2", auth.RoleAdmin, "unknown_parameter"},
		{"user_id=b%20b", auth.RoleAdmin, "parameter_invalid"},
		{"user_id=", auth.RoleAdmin, "parameter_invalid"},
		{"status=lost", auth.RoleAdmin, "parameter_invalid"},
		{"status=queued", auth.RoleAdmin, "parameter_invalid"}, // of an unknown buyer
		{"status=queued&item_id=thing", auth.RoleAdmin, "parameter_invalid"},
		{"item_id=X", auth.RoleAdmin, "id_invalid"},
		{"cursor=", auth.RoleBuyer, "cursor_invalid"},
		{"cursor=x", auth.RoleBuyer, "cursor_invalid"},
		{"cursor=" + cursor + "A", auth.RoleBuyer, "cursor_invalid"},
		{"cursor=" + cursor + "%0A", auth.RoleBuyer, "cursor_invalid"},
		{"cursor=" + cursor + "%3D", auth.RoleBuyer, "cursor_invalid"},
		{"cursor=" + cursor[1:], auth.RoleBuyer, "cursor_invalid"},
		{"cursor=" + cursor, auth.RoleAdmin, "cursor_invalid"}, // of another list
	} {
		sub := "alice"
		if tc.role == auth.RoleAdmin {
			sub = "root"
		}
		t.Run(tc.query+" "+string(tc.role), func(t *testing.T) {
			wantProblem(t, s.get(t, "/v1/orders?"+tc.query, sub, tc.role).Result(), 400, tc.code)
		})
	}
	// A change of any bit is detected.
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		raw[i] ^= 1
		tampered := base64.RawURLEncoding.EncodeToString(raw)
		wantProblem(t, s.get(t, "/v1/orders?cursor="+tampered, "alice", auth.RoleBuyer).Result(), 400, "cursor_invalid")
		raw[i] ^= 1
	}
	if got := len(s.orders.lists); got != asked {
		t.Errorf("bad requests caused %d reads", got-asked)
	}
}

func (s *shop) post(tb testing.TB, path, sub string, role auth.Role, body string) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Content-Type", "application/json")
	if sub != "" {
		r.Header.Set("Authorization", bearer(tb, sub, role))
	}
	return s.do(r)
}

func TestCreateItem(t *testing.T) {
	t.Parallel()
	s := open(t)
	w := s.post(t, "/v1/admin/items", "root", auth.RoleAdmin, `{"id":"drop-1","name":"Ünïcode 😀","description":"two\nlines",
		"price_minor":990,"currency":"JPY","stock":10,"per_user_limit":3,"opens_at":"2030-01-02T05:00:00.1239+02:00",
		"closes_at":"2030-02-01T00:00:00Z","payment_window_seconds":600,"buckets":8}`)
	if w.Code != 201 || w.Header().Get("Location") != "/v1/items/drop-1" || w.Header().Get("ETag") != `"1"` {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	want := order.NewItem{
		ID: "drop-1", Name: "Ünïcode 😀", Description: "two\nlines", PriceMinor: 990, Currency: "JPY", Stock: 10, PerUserLimit: 3,
		OpensAt: time.Date(2030, 1, 2, 3, 0, 0, 123_000_000, time.UTC), ClosesAt: time.Date(2030, 2, 1, 0, 0, 0, 0, time.UTC),
		PaymentWindow: 10 * time.Minute, Buckets: 8, By: order.By{Actor: "root", RequestID: w.Header().Get("X-Request-Id")},
	}
	if got := s.sales.created[0]; got != want {
		t.Errorf("created %+v, want %+v", got, want)
	}
	if body := decodeBody(t, w.Body); body["stock_total"] != 10.0 || body["closes_at"] != "2030-02-01T00:00:00.000Z" || body["state"] != "open" {
		t.Errorf("body = %v", body)
	}
	// The minimal body.
	w = s.post(t, "/v1/admin/items", "root", auth.RoleAdmin, `{"id":"a","name":"A","price_minor":0,"currency":"EUR","stock":0,"closes_at":null}`)
	if w.Code != 201 || s.sales.created[1] != (order.NewItem{
		ID: "a", Name: "A", Currency: "EUR", PerUserLimit: 1, Buckets: 1, By: order.By{Actor: "root", RequestID: w.Header().Get("X-Request-Id")},
	}) {
		t.Errorf("%d %s: created %+v", w.Code, w.Body, s.sales.created)
	}
	s.sales.err = fmt.Errorf("create: %w", order.ErrItemExists)
	wantProblem(t, s.post(t, "/v1/admin/items", "root", auth.RoleAdmin,
		`{"id":"a","name":"A","price_minor":0,"currency":"EUR","stock":0}`).Result(), 409, "item_exists")
	s.sales.err = fmt.Errorf("create: %w", &order.BucketsError{Buckets: 4})
	p := wantProblem(t, s.post(t, "/v1/admin/items", "root", auth.RoleAdmin,
		`{"id":"a","name":"A","price_minor":0,"currency":"EUR","stock":0}`).Result(), 422, "field_range")
	if p["param"] != "buckets" || !strings.Contains(fmt.Sprint(p["detail"]), "at least 4 buckets") {
		t.Errorf("answer %v", p)
	}
}

func TestCreateItem_BadRequests(t *testing.T) {
	t.Parallel()
	body := func(name, value string) string {
		fields := map[string]string{"id": `"a"`, "name": `"A"`, "price_minor": "1", "currency": `"EUR"`, "stock": "1"}
		fields[name] = value
		var parts []string
		for n, v := range fields {
			if v != "" {
				parts = append(parts, `"`+n+`":`+v)
			}
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	for name, tc := range map[string]struct {
		body   string
		status int
		code   string
		param  any
	}{
		"no id":              {body("id", ""), 400, "field_missing", "id"},
		"no stock":           {body("stock", ""), 400, "field_missing", "stock"},
		"id a number":        {body("id", "1"), 400, "field_type", "id"},
		"id malformed":       {body("id", `"A"`), 400, "id_invalid", "id"},
		"name empty":         {body("name", `""`), 422, "field_range", "name"},
		"name too long":      {body("name", `"`+strings.Repeat("ä", 201)+`"`), 422, "field_range", "name"},
		"name with NUL":      {body("name", `"a\u0000"`), 422, "field_range", "name"},
		"name with a break":  {body("name", `"a\n"`), 422, "field_range", "name"},
		"description null":   {body("description", "null"), 400, "field_type", "description"},
		"description long":   {body("description", `"`+strings.Repeat("a", 4001)+`"`), 422, "field_range", "description"},
		"price negative":     {body("price_minor", "-1"), 422, "field_range", "price_minor"},
		"price 2^64":         {body("price_minor", "18446744073709551616"), 422, "field_range", "price_minor"},
		"price a fraction":   {body("price_minor", "9.90"), 400, "field_type", "price_minor"},
		"price a text":       {body("price_minor", `"990"`), 400, "field_type", "price_minor"},
		"currency unknown":   {body("currency", `"ABC"`), 422, "field_range", "currency"},
		"currency lower":     {body("currency", `"eur"`), 422, "field_range", "currency"},
		"currency two codes": {body("currency", `"R Z"`), 422, "field_range", "currency"},
		"currency gone":      {body("currency", `"DEM"`), 422, "field_range", "currency"},
		"stock negative":     {body("stock", "-1"), 422, "field_range", "stock"},
		"stock huge":         {body("stock", "1000000001"), 422, "field_range", "stock"},
		"limit 0":            {body("per_user_limit", "0"), 422, "field_range", "per_user_limit"},
		"no buckets":         {body("buckets", "0"), 422, "field_range", "buckets"},
		"65 buckets":         {body("buckets", "65"), 422, "field_range", "buckets"},
		"buckets, long id":   {strings.TrimSuffix(body("id", `"`+strings.Repeat("a", 62)+`"`), "}") + `,"buckets":2}`, 400, "id_invalid", "id"},
		"window negative":    {body("payment_window_seconds", "-1"), 422, "field_range", "payment_window_seconds"},
		"opens a number":     {body("opens_at", "1"), 400, "field_type", "opens_at"},
		"opens nonsense":     {body("opens_at", `"soon"`), 422, "window_invalid", "opens_at"},
		"year 9999999":       {body("closes_at", `"9999999-01-01T00:00:00Z"`), 422, "window_invalid", "closes_at"},
		"year 9999":          {body("closes_at", `"9999-01-01T00:00:00Z"`), 422, "window_invalid", "closes_at"},
		"closed already":     {body("closes_at", `"2030-01-02T03:04:05Z"`), 422, "window_invalid", "closes_at"},
		"closes before open": {strings.TrimSuffix(body("opens_at", `"2030-05-01T00:00:00Z"`), "}") + `,"closes_at":"2030-05-01T00:00:00Z"}`, 422, "window_invalid", "closes_at"},
		"unknown":            {body("stock_left", "1"), 400, "unknown_field", "stock_left"},
		"twice":              {strings.TrimSuffix(body("id", `"a"`), "}") + `,"id":"b"}`, 400, "json_duplicate_key", "id"},
		"trailing":           {body("id", `"a"`) + "1", 400, "json_trailing", nil},
		"invalid":            {"{", 400, "json_invalid", nil},
		"empty":              {"", 400, "body_missing", nil},
		"too large":          {body("description", `"`+strings.Repeat("a", maxAdminBody)+`"`), 413, "body_too_large", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			got := wantProblem(t, s.post(t, "/v1/admin/items", "root", auth.RoleAdmin, tc.body).Result(), tc.status, tc.code)
			if got["param"] != tc.param {
				t.Errorf("param = %v, want %v", got["param"], tc.param)
			}
			if len(s.sales.created) != 0 {
				t.Errorf("created %+v", s.sales.created)
			}
		})
	}
}

func TestAdmin_Access(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.sales.ledger = order.Ledger{Initial: 5, Restocked: 2, Left: 3, Held: 1, Sold: 3}
	for _, path := range []string{"/v1/admin/items/thing", "/v1/admin/items/thing/ledger"} {
		wantProblem(t, s.get(t, path, "", "").Result(), 401, "auth_missing")
		wantProblem(t, s.get(t, path, "alice", auth.RoleBuyer).Result(), 403, "forbidden")
		wantProblem(t, s.get(t, path, "shop", auth.RoleService).Result(), 403, "forbidden")
		wantProblem(t, s.get(t, strings.Replace(path, "thing", "nope", 1), "root", auth.RoleAdmin).Result(), 404, "item_not_found")
		wantProblem(t, s.get(t, strings.Replace(path, "thing", "N", 1), "root", auth.RoleAdmin).Result(), 400, "id_invalid")
	}
	wantProblem(t, s.post(t, "/v1/admin/items", "alice", auth.RoleBuyer, "{}").Result(), 403, "forbidden")
	if w := s.get(t, "/v1/admin/items/thing", "root", auth.RoleAdmin); w.Code != 200 || w.Header().Get("ETag") != `"4"` {
		t.Errorf("item: %d %v", w.Code, w.Header())
	}
	const want = `{"initial":5,"restocked":2,"left":3,"held":1,"sold":3,"balanced":true}`
	if w := s.get(t, "/v1/admin/items/thing/ledger", "root", auth.RoleAdmin); w.Code != 200 || w.Body.String() != want {
		t.Errorf("ledger: %d %s", w.Code, w.Body)
	}
	s.sales.ledger.Sold++
	if w := s.get(t, "/v1/admin/items/thing/ledger", "root", auth.RoleAdmin); !strings.Contains(w.Body.String(), `"balanced":false`) {
		t.Errorf("ledger: %s", w.Body)
	}
}

// A web page whose host name points to this machine must not get tokens.
func TestDevToken_OtherHostIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) {
		c.DevTokens = func(string, string, time.Duration) (string, error) { return "token", nil }
	})
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:8080": 200, "localhost:1": 200, "[::1]:8080": 200, "LOCALHOST": 200,
		"rebind.example": 403, "rebind.example:8080": 403, "127.0.0.1.example": 403, "10.0.0.1:8080": 403, "": 403,
	} {
		r := httptest.NewRequest(http.MethodPost, "/dev/tokens", strings.NewReader(`{"sub":"root","role":"admin"}`))
		r.Host = host
		r.Header.Set("Content-Type", "application/json")
		w := s.do(r)
		if w.Code != want {
			t.Errorf("host %q: %d, want %d", host, w.Code, want)
		}
		if w.Code == 403 && decodeBody(t, w.Body)["param"] != "Host" {
			t.Errorf("host %q: the refusal does not name the header", host)
		}
	}
}

func TestDevToken(t *testing.T) {
	t.Parallel()
	var life time.Duration
	s := open(t, func(c *Config) {
		c.DevTokens = func(sub, role string, ttl time.Duration) (string, error) {
			life = ttl
			return auth.SignToken(testSecret, sub, auth.Role(role), ttl, someTime)
		}
	})
	token, ok := decodeBody(t, s.post(t, "/dev/tokens", "", "", `{"sub":"root","role":"admin"}`).Body)["token"].(string)
	if !ok || life != time.Hour {
		t.Fatalf("token %q for %s", token, life)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/admin/items/thing", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	if w := s.do(r); w.Code != 200 {
		t.Errorf("with the token: %d %s", w.Code, w.Body)
	}
	if w := s.post(t, "/dev/tokens", "", "", `{"sub":"a","role":"buyer","ttl":"90s"}`); w.Code != 200 || life != 90*time.Second {
		t.Errorf("ttl: %d, %s", w.Code, life)
	}
	for body, code := range map[string]string{
		`{"role":"buyer"}`:                          "400 field_missing",
		`{"sub":"a"}`:                               "400 field_missing",
		`{"sub":1,"role":"buyer"}`:                  "400 field_type",
		`{"sub":"a b","role":"buyer"}`:              "422 field_range",
		`{"sub":"a","role":"root"}`:                 "422 field_range",
		`{"sub":"a","role":"buyer","ttl":"0s"}`:     "422 field_range",
		`{"sub":"a","role":"buyer","ttl":"9999h"}`:  "422 field_range",
		`{"sub":"a","role":"buyer","ttl":"an age"}`: "422 field_range",
		`{"sub":"a","role":"buyer","aud":"x"}`:      "400 unknown_field",
	} {
		resp := s.post(t, "/dev/tokens", "", "", body).Result()
		status := 0
		name := ""
		if _, err := fmt.Sscanf(code, "%d %s", &status, &name); err != nil {
			t.Fatal(err)
		}
		wantProblem(t, resp, status, name)
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	fails := errors.New("dial tcp 10.0.0.1: refused")
	var redis error
	now := someTime
	s := open(t, func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Ready = []ops.Check{
			{Name: "database", Probe: func(context.Context) error { return nil }},
			{Name: "redis", Probe: func(context.Context) error { return redis }},
		}
	})
	if w := s.get(t, "/healthz", "", ""); w.Code != 200 {
		t.Errorf("healthz: %d", w.Code)
	}
	if w := s.get(t, "/readyz", "", ""); w.Code != 200 || w.Body.String() != `{"status":"ok"}` {
		t.Errorf("readyz: %d %s", w.Code, w.Body)
	}
	redis = fails
	if w := s.get(t, "/readyz", "", ""); w.Code != 200 {
		t.Errorf("within readyFor: %d", w.Code)
	}
	now = now.Add(readyFor)
	w := s.get(t, "/readyz", "", "")
	if strings.Contains(w.Body.String(), "10.0.0.1") {
		t.Errorf("an internal text was sent: %s", w.Body)
	}
	if got := fmt.Sprint(wantProblem(t, w.Result(), 503, "unavailable")["failing"]); got != "[redis]" {
		t.Errorf("failing = %s", got)
	}
}

// plainID matches ids that need no escaping.
var plainID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func TestRequestID(t *testing.T) {
	t.Parallel()
	s := open(t)
	seen := map[string]bool{}
	for own, kept := range map[string]bool{
		"abc-1._Z": true, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false, "": false, "a b": false, "a\"b": false,
		"a\r\nX-Evil: 1": false, "ä": false, "a/b": false,
	} {
		r := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
		r.Header["X-Request-Id"] = []string{own}
		got := s.do(r).Header().Get("X-Request-Id")
		if (got == own) != kept || !plainID.MatchString(got) || seen[got] {
			t.Errorf("%q became %q", own, got)
		}
		seen[got] = true
	}
	r := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
	r.Header["X-Request-Id"] = []string{"a", "b"}
	if got := s.do(r).Header()["X-Request-Id"]; len(got) != 1 || got[0] == "a" {
		t.Errorf("two ids became %q", got)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s := open(t, func(c *Config) { c.Registerer = registry })
	s.do(purchaseRequest(t, `{"quantity":1}`))
	s.do(purchaseRequest(t, `{"quantity":0}`))
	s.get(t, "/nowhere", "", "")
	operators := ops.New(registry, ops.Config{})
	w := httptest.NewRecorder()
	operators.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for _, want := range []string{
		`flashsale_http_requests_total{route="/v1/items/:item/orders",status="2xx"} 1`,
		`flashsale_http_requests_total{route="/v1/items/:item/orders",status="4xx"} 1`,
		`flashsale_http_requests_total{route="none",status="4xx"} 1`,
		`flashsale_http_request_duration_seconds_count{route="/v1/items/:item/orders"} 2`,
		`flashsale_http_problems_total{code="quantity_range"} 1`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(w.Body.String(), "alice") || strings.Contains(w.Body.String(), `"thing"`) {
		t.Error("a buyer or an item became a label")
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/debug/pprof/": 200, "/v1/items": 404} {
		w := httptest.NewRecorder()
		operators.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if w.Code != want {
			t.Errorf("ops %s: %d, want %d", path, w.Code, want)
		}
	}
}

var _ itemCatalog = fakeItems(map[string]catalog.Item{})
