package handler

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order"
)

func TestPurchase(t *testing.T) {
	t.Parallel()
	s := open(t)
	w := s.do(purchaseRequest(t, `{"quantity":2}`))
	if w.Code != http.StatusCreated {
		t.Fatalf("status = %d: %s", w.Code, w.Body)
	}
	want := `{"id":"` + someOrderID + `","item_id":"thing","user_id":"alice","quantity":2,"unit_price_minor":990,` +
		`"currency":"EUR","status":"confirmed","created_at":"2030-01-02T03:04:05.678Z","confirmed_at":"2030-01-02T03:04:05.679Z"}`
	if got := w.Body.String(); got != want {
		t.Errorf("body = %s\nwant   %s", got, want)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Location": "/v1/orders/" + someOrderID,
		"Idempotent-Replayed": "", "Preference-Applied": "", "Access-Control-Allow-Origin": "",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	placed := s.orders.purchases()
	wantPlaced := order.Purchase{ItemID: "thing", Item: someItem(), UserID: "alice", IdempotencyKey: "key-1", Quantity: 2, Wait: 2 * time.Second}
	if len(placed) == 1 {
		if id := w.Header().Get("X-Request-Id"); id == "" || placed[0].RequestID != id || placed[0].SubmittedAt.IsZero() {
			t.Errorf("placed %+v; its request id is not %q, or its time is missing", placed[0], id)
		}
		placed[0].RequestID, placed[0].SubmittedAt = "", time.Time{}
	}
	if len(placed) != 1 || placed[0] != wantPlaced {
		t.Errorf("placed %+v, want %+v once", placed, wantPlaced)
	}
}

func TestPurchase_Answers(t *testing.T) {
	t.Parallel()
	accepted := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
	for name, tc := range map[string]struct {
		placed   order.Placed
		status   int
		replayed string
	}{
		"committed":           {order.Placed{Order: accepted, Committed: true}, 201, ""},
		"queued":              {order.Placed{Order: accepted}, 202, ""},
		"replayed, committed": {order.Placed{Order: accepted, Committed: true, Replayed: true}, 201, "true"},
		"replayed, queued":    {order.Placed{Order: accepted, Replayed: true}, 202, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) { return tc.placed, nil }
			w := s.do(purchaseRequest(t, `{"quantity":1}`))
			if w.Code != tc.status || w.Header().Get("Idempotent-Replayed") != tc.replayed {
				t.Errorf("status %d, replayed %q; want %d, %q", w.Code, w.Header().Get("Idempotent-Replayed"), tc.status, tc.replayed)
			}
			if w.Header().Get("Location") != "/v1/orders/"+someOrderID {
				t.Errorf("Location = %q", w.Header().Get("Location"))
			}
			if got := decodeBody(t, w.Body); got["status"] != string(tc.placed.Order.Status) {
				t.Errorf("order = %v", got)
			}
		})
	}
}

// Each refusal of a dependency has the answer in the table.
func TestPurchase_EachRefusalHasItsAnswer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err    error
		status int
		code   string
		retry  string
	}{
		"sold out":        {inventory.ErrSoldOut, 409, "sold_out", ""},
		"limit":           {inventory.ErrUserLimit, 409, "user_limit", ""},
		"quantity":        {&inventory.QuantityError{Limit: 2}, 422, "quantity_range", ""},
		"closed":          {inventory.ErrClosed, 409, "sale_closed", ""},
		"paused":          {inventory.ErrPaused, 409, "sale_paused", ""},
		"not open":        {&inventory.NotOpenError{In: 1500 * time.Millisecond}, 409, "sale_not_open", "2"},
		"opens now":       {&inventory.NotOpenError{In: 0}, 409, "sale_not_open", "1"},
		"opens in a bit":  {&inventory.NotOpenError{In: time.Hour}, 409, "sale_not_open", "3600"},
		"key reused":      {inventory.ErrKeyReused, 422, "idempotency_key_reused", ""},
		"overloaded":      {inventory.ErrOverloaded, 503, "overloaded", "1"},
		"rebuilding":      {inventory.ErrRebuilding, 503, "rebuilding", "1"},
		"unavailable":     {inventory.ErrUnavailable, 503, "unavailable", "1"},
		"too slow inside": {context.DeadlineExceeded, 503, "unavailable", "1"},
		"item gone":       {catalog.ErrItemNotFound, 404, "item_not_found", ""},
		"unknown":         {errTest, 500, "internal", ""},
	} {
		for how, err := range map[string]error{"as it is": tc.err, "wrapped": fmt.Errorf("place order: %w", tc.err)} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				s := open(t)
				s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) { return order.Placed{}, err }
				resp := s.do(purchaseRequest(t, `{"quantity":1}`)).Result()
				body := wantProblem(t, resp, tc.status, tc.code)
				// Each client gets its own time.
				if got := resp.Header.Get("Retry-After"); got != tc.retry && (tc.status != 503 || got != "2") {
					t.Errorf("Retry-After = %q, want %q", got, tc.retry)
				}
				for _, text := range body {
					if s, ok := text.(string); ok && (strings.Contains(s, "10.0.0.1") || strings.Contains(s, "place order")) {
						t.Errorf("an internal text was sent: %q", s)
					}
				}
			})
		}
	}
}

// change makes a valid purchase invalid.
type change func(r *http.Request)

func header(name string, values ...string) change {
	return func(r *http.Request) {
		r.Header.Del(name)
		for _, v := range values {
			r.Header.Add(name, v)
		}
	}
}

func path(raw string) change {
	return func(r *http.Request) {
		own := httptest.NewRequest(r.Method, raw, r.Body)
		r.URL, r.RequestURI = own.URL, own.RequestURI
	}
}

func method(m string) change { return func(r *http.Request) { r.Method = m } }

// badPurchase is a purchase that must be refused.
type badPurchase struct {
	body   string
	change change
	status int
	code   string
	param  string
}

func TestPurchase_BadHeaders(t *testing.T) {
	t.Parallel()
	const good = `{"quantity":1}`
	item := func(raw string) change { return path("/v1/items/" + raw + "/orders") }
	wantRefused(t, map[string]badPurchase{
		"no Authorization":    {good, header("Authorization"), 401, "auth_missing", ""},
		"empty Authorization": {good, header("Authorization", ""), 401, "auth_missing", ""},
		"scheme Basic":        {good, header("Authorization", "Basic YWxpY2U6cHc="), 401, "auth_missing", ""},
		"scheme Bearerx":      {good, header("Authorization", "Bearerx y"), 401, "auth_missing", ""},
		"empty bearer":        {good, header("Authorization", "Bearer"), 401, "token_malformed", ""},
		"garbage bearer":      {good, header("Authorization", "Bearer x"), 401, "token_malformed", ""},
		"two-part bearer":     {good, header("Authorization", "Bearer a.b"), 401, "token_malformed", ""},
		"Authorization twice": {good, header("Authorization", "Bearer a", "Bearer b"), 400, "header_duplicate", "Authorization"},
		"admin buys":          {good, header("Authorization", bearer(t, "root", auth.RoleAdmin)), 403, "forbidden", ""},
		"service buys":        {good, header("Authorization", bearer(t, "shop", auth.RoleService)), 403, "forbidden", ""},
		"headers of 17 KB":    {good, header("X-Fill", strings.Repeat("a", 17<<10)), 431, "header_too_large", ""},
		"headers of 64 KB":    {good, header("X-Fill", strings.Repeat("a", 64<<10)), 431, "header_too_large", ""},
		"upper case":          {good, item("Thing"), 400, "id_invalid", "item"},
		"NUL":                 {good, item("th%00ing"), 400, "id_invalid", "item"},
		"CRLF":                {good, item("thing%0d%0aX:1"), 400, "id_invalid", "item"},
		"braces":              {good, item("{a}"), 400, "id_invalid", "item"},
		"encoded braces":      {good, item("%7Ba%7D"), 400, "id_invalid", "item"},
		"star":                {good, item("*"), 400, "id_invalid", "item"},
		"homoglyph":           {good, item("th%D1%96ng"), 400, "id_invalid", "item"},
		"zero-width":          {good, item("th%E2%80%8Bing"), 400, "id_invalid", "item"},
		"65 characters":       {good, item(strings.Repeat("a", 65)), 400, "id_invalid", "item"},
		"SQL":                 {good, item("'%20OR%201=1--"), 400, "id_invalid", "item"},
		"leading dash":        {good, item("-thing"), 400, "id_invalid", "item"},
		"dots":                {good, item(".."), 400, "id_invalid", "item"},
		"encoded slash":       {good, item("thing%2Fx"), 400, "id_invalid", "item"},
		"empty id":            {good, item(""), 400, "id_invalid", "item"},
		"unknown item":        {good, item("nope"), 404, "item_not_found", ""},
		"text/plain":          {good, header("Content-Type", "text/plain"), 415, "content_type", "Content-Type"},
		"form":                {good, header("Content-Type", "application/x-www-form-urlencoded"), 415, "content_type", "Content-Type"},
		"multipart":           {good, header("Content-Type", "multipart/form-data; boundary=x"), 415, "content_type", "Content-Type"},
		"no type":             {good, header("Content-Type"), 415, "content_type", "Content-Type"},
		"utf-16":              {good, header("Content-Type", "application/json; charset=utf-16"), 415, "content_type", "Content-Type"},
		"type twice":          {good, header("Content-Type", "application/json", "text/plain"), 400, "header_duplicate", "Content-Type"},
		"a relative of JSON":  {good, header("Content-Type", "application/merge-patch+json"), 415, "content_type", "Content-Type"},
		"gzip":                {good, header("Content-Encoding", "gzip"), 415, "content_encoding", "Content-Encoding"},
		"Accept image":        {good, header("Accept", "image/png"), 406, "not_acceptable", "Accept"},
		"Accept anything but": {good, header("Accept", "*/*, application/json;q=0"), 406, "not_acceptable", "Accept"},
		"no key":              {good, header("Idempotency-Key"), 400, "idempotency_key_missing", "Idempotency-Key"},
		"empty key":           {good, header("Idempotency-Key", ""), 400, "idempotency_key_invalid", "Idempotency-Key"},
		"key of 256":          {good, header("Idempotency-Key", strings.Repeat("k", 256)), 400, "idempotency_key_invalid", "Idempotency-Key"},
		"key with a tab":      {good, header("Idempotency-Key", "a\tb"), 400, "idempotency_key_invalid", "Idempotency-Key"},
		"key with a space":    {good, header("Idempotency-Key", "a b"), 400, "idempotency_key_invalid", "Idempotency-Key"},
		"key not ASCII":       {good, header("Idempotency-Key", "schlüssel"), 400, "idempotency_key_invalid", "Idempotency-Key"},
		"key twice":           {good, header("Idempotency-Key", "a", "b"), 400, "header_duplicate", "Idempotency-Key"},
	})
}

func TestPurchase_BadBodies(t *testing.T) {
	t.Parallel()
	const good = `{"quantity":1}`
	wantRefused(t, map[string]badPurchase{
		"quantity 0":             {`{"quantity":0}`, nil, 422, "quantity_range", "quantity"},
		"quantity -0":            {`{"quantity":-0}`, nil, 422, "quantity_range", "quantity"},
		"quantity -1":            {`{"quantity":-1}`, nil, 422, "quantity_range", "quantity"},
		"quantity 1,000,001":     {`{"quantity":1000001}`, nil, 422, "quantity_range", "quantity"},
		"quantity 2^31":          {`{"quantity":2147483648}`, nil, 422, "quantity_range", "quantity"},
		"quantity 2^63":          {`{"quantity":9223372036854775808}`, nil, 422, "quantity_range", "quantity"},
		"quantity 2^64":          {`{"quantity":18446744073709551616}`, nil, 422, "quantity_range", "quantity"},
		"quantity 2^64 + 1":      {`{"quantity":18446744073709551617}`, nil, 422, "quantity_range", "quantity"},
		"quantity -2^64":         {`{"quantity":-18446744073709551616}`, nil, 422, "quantity_range", "quantity"},
		"quantity 10^20 - 1":     {`{"quantity":99999999999999999999}`, nil, 422, "quantity_range", "quantity"},
		"quantity 1.5":           {`{"quantity":1.5}`, nil, 400, "field_type", "quantity"},
		"quantity 1.0":           {`{"quantity":1.0}`, nil, 400, "field_type", "quantity"},
		"quantity 1e0":           {`{"quantity":1e0}`, nil, 400, "field_type", "quantity"},
		"quantity text":          {`{"quantity":"1"}`, nil, 400, "field_type", "quantity"},
		"quantity null":          {`{"quantity":null}`, nil, 400, "field_type", "quantity"},
		"quantity true":          {`{"quantity":true}`, nil, 400, "field_type", "quantity"},
		"quantity []":            {`{"quantity":[]}`, nil, 400, "field_type", "quantity"},
		"quantity {}":            {`{"quantity":{}}`, nil, 400, "field_type", "quantity"},
		"quantity missing":       {`{}`, nil, 400, "field_missing", "quantity"},
		"user_id":                {`{"quantity":1,"user_id":"bob"}`, nil, 400, "unknown_field", "user_id"},
		"price":                  {`{"price":1,"quantity":1}`, nil, 400, "unknown_field", "price"},
		"status":                 {`{"quantity":1,"status":"paid"}`, nil, 400, "unknown_field", "status"},
		"order_id":               {`{"quantity":1,"order_id":"x"}`, nil, 400, "unknown_field", "order_id"},
		"fence":                  {`{"quantity":1,"fence":9}`, nil, 400, "unknown_field", "fence"},
		"Quantity":               {`{"Quantity":1}`, nil, 400, "unknown_field", "Quantity"},
		"quantity and Quantity":  {`{"quantity":1,"Quantity":2}`, nil, 400, "unknown_field", "Quantity"},
		"name to be escaped":     {`{"quantity":1,"a\"\n<b>":2}`, nil, 400, "unknown_field", "a\"\n<b>"},
		"NaN":                    {`{"quantity":NaN}`, nil, 400, "json_invalid", ""},
		"hex":                    {`{"quantity":0x1}`, nil, 400, "json_invalid", ""},
		"leading zero":           {`{"quantity":01}`, nil, 400, "json_invalid", ""},
		"truncated":              {`{"quantity":1`, nil, 400, "json_invalid", ""},
		"invalid UTF-8":          {"{\"quantity\":1,\"\xff\":1}", nil, 400, "json_invalid", ""},
		"lone surrogate":         {`{"quantity":1,"\ud800":1}`, nil, 400, "json_invalid", ""},
		"depth 40":               {`{"quantity":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}", nil, 400, "json_invalid", ""},
		"depth 10,000":           {`{"quantity":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "}", nil, 400, "json_invalid", ""},
		"depth 10,000 at once":   {strings.Repeat("[", 10_000), nil, 400, "json_invalid", ""},
		"array":                  {`[{"quantity":1}]`, nil, 400, "json_invalid", ""},
		"string":                 {`"quantity"`, nil, 400, "json_invalid", ""},
		"byte order mark":        {"\xef\xbb\xbf" + good, nil, 400, "json_invalid", ""},
		"quantity twice":         {`{"quantity":1,"quantity":1}`, nil, 400, "json_duplicate_key", "quantity"},
		"quantity twice, hidden": {`{"quantity":1,"qu\u0061ntity":2}`, nil, 400, "json_duplicate_key", "quantity"},
		"second document":        {good + good, nil, 400, "json_trailing", ""},
		"bytes after":            {good + "x", nil, 400, "json_trailing", ""},
		"NUL after":              {good + "\x00", nil, 400, "json_trailing", ""},
		"empty body":             {"", nil, 400, "body_missing", ""},
		"blank body":             {" \n", nil, 400, "body_missing", ""},
		"4 KiB + 1":              {good + strings.Repeat(" ", maxSmallBody+1-len(good)), nil, 413, "body_too_large", ""},
		"200 KiB":                {good + strings.Repeat(" ", 200<<10), nil, 413, "body_too_large", ""},
	})
}

func TestPurchase_NoSuchRoute(t *testing.T) {
	t.Parallel()
	const good = `{"quantity":1}`
	wantRefused(t, map[string]badPurchase{
		"no such route":      {good, path("/v1/items/thing/order"), 404, "route_not_found", ""},
		"trailing slash":     {good, path(purchasePath + "/"), 404, "route_not_found", ""},
		"metrics":            {good, path("/metrics"), 404, "route_not_found", ""},
		"pprof":              {good, path("/debug/pprof/"), 404, "route_not_found", ""},
		"dev tokens":         {good, path("/dev/tokens"), 404, "route_not_found", ""},
		"GET":                {good, method(http.MethodGet), 405, "method_not_allowed", ""},
		"PUT":                {good, method(http.MethodPut), 405, "method_not_allowed", ""},
		"DELETE":             {good, method(http.MethodDelete), 405, "method_not_allowed", ""},
		"TRACE":              {good, method(http.MethodTrace), 405, "method_not_allowed", ""},
		"OPTIONS":            {good, method(http.MethodOptions), 405, "method_not_allowed", ""},
		"an invented method": {good, method("BUY"), 405, "method_not_allowed", ""},
	})
}

// wantRefused sends each purchase. None may be placed, and no other origin may be allowed.
func wantRefused(t *testing.T, cases map[string]badPurchase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			r := purchaseRequest(t, tc.body)
			r.Header.Set("Origin", "https://stranger.example")
			if tc.change != nil {
				tc.change(r)
			}
			resp := s.do(r).Result()
			body := wantProblem(t, resp, tc.status, tc.code)
			if param, ok := body["param"].(string); param != tc.param || ok != (tc.param != "") {
				t.Errorf("param = %v, want %q", body["param"], tc.param)
			}
			if tc.status == http.StatusMethodNotAllowed && resp.Header.Get("Allow") != http.MethodPost {
				t.Errorf("Allow = %q, want POST", resp.Header.Get("Allow"))
			}
			for name := range resp.Header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("a CORS grant: %s", name)
				}
			}
			if placed := s.orders.purchases(); len(placed) != 0 {
				t.Errorf("something was bought: %+v", placed)
			}
		})
	}
}

// Unusual but valid requests are accepted.
func TestPurchase_GoodRequests(t *testing.T) {
	t.Parallel()
	const good = `{"quantity":1}`
	for name, tc := range map[string]struct {
		body   string
		change change
	}{
		"spaces":             {" {\r\n\t\"quantity\" : 1 } \n", nil},
		"escaped name":       {`{"qu\u0061ntity":1}`, nil},
		"exactly 4 KiB":      {good + strings.Repeat(" ", maxSmallBody-len(good)), nil},
		"charset":            {good, header("Content-Type", `Application/JSON; charset="UTF-8"`)},
		"identity":           {good, header("Content-Encoding", "identity")},
		"lower-case scheme":  {good, header("Authorization", "bearer "+strings.TrimPrefix(bearer(t, "alice", auth.RoleBuyer), "Bearer "))},
		"key of 255":         {good, header("Idempotency-Key", strings.Repeat("~", 255))},
		"Accept */*":         {good, header("Accept", "*/*")},
		"Accept ranges":      {good, header("Accept", "text/html", "application/*;q=0.2")},
		"Accept problem":     {good, header("Accept", "application/problem+json")},
		"Accept empty":       {good, header("Accept", "")},
		"Accept image first": {good, header("Accept", "image/png, application/json")},
		"encoded letters":    {good, path("/v1/items/%74hing/orders")},
		"query":              {good, path(purchasePath + "?access_token=x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			r := purchaseRequest(t, tc.body)
			if tc.change != nil {
				tc.change(r)
			}
			if w := s.do(r); w.Code != http.StatusCreated {
				t.Errorf("status = %d: %s", w.Code, w.Body)
			}
			if placed := s.orders.purchases(); len(placed) != 1 || placed[0].Quantity != 1 {
				t.Errorf("placed %+v, want one unit once", placed)
			}
		})
	}
}

func TestPurchase_QueryToken(t *testing.T) {
	t.Parallel()
	s := open(t)
	r := purchaseRequest(t, `{"quantity":1}`)
	path(purchasePath + "?access_token=" + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))(r)
	r.Header.Del("Authorization")
	wantProblem(t, s.do(r).Result(), 401, "auth_missing")
}

func TestPurchase_Prefer(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]struct {
		wait      time.Duration
		committed string // Preference-Applied of a 201
		queued    string // Preference-Applied of a 202
	}{
		"":                           {2 * time.Second, "", ""},
		"respond-async":              {0, "", "respond-async"},
		"Respond-Async; x=y":         {0, "", "respond-async"},
		"wait=0":                     {0, "wait=0", "wait=0"},
		"wait=7":                     {7 * time.Second, "wait=7", "wait=7"},
		`wait="7"`:                   {7 * time.Second, "wait=7", "wait=7"},
		"wait=1000000000":            {10 * time.Second, "wait=10", "wait=10"},
		"wait=99999999999999999999":  {10 * time.Second, "wait=10", "wait=10"},
		"respond-async, wait=3":      {3 * time.Second, "wait=3", "respond-async, wait=3"},
		"wait=-1":                    {2 * time.Second, "", ""},
		"wait=1e9":                   {2 * time.Second, "", ""},
		"wait=":                      {2 * time.Second, "", ""},
		"wait":                       {2 * time.Second, "", ""},
		"wait=2, wait=5":             {2 * time.Second, "wait=2", "wait=2"},
		"nonsense":                   {2 * time.Second, "", ""},
		",,;;==":                     {2 * time.Second, "", ""},
		"return=minimal, wait=\x7f1": {2 * time.Second, "", ""},
	} {
		for _, committed := range []bool{true, false} {
			s := open(t)
			s.orders.place = func(_ context.Context, p order.Purchase) (order.Placed, error) {
				return order.Placed{Order: someOrder(p), Committed: committed}, nil
			}
			r := purchaseRequest(t, `{"quantity":1}`)
			if value != "" {
				r.Header.Set("Prefer", value)
			}
			w := s.do(r)
			placed := s.orders.purchases()
			if len(placed) != 1 || placed[0].Wait != want.wait {
				t.Errorf("%q: placed %+v, want a wait of %s", value, placed, want.wait)
			}
			applied := want.queued
			if committed {
				applied = want.committed
			}
			if got := w.Header().Get("Preference-Applied"); got != applied {
				t.Errorf("%q, committed %t: Preference-Applied = %q, want %q", value, committed, got, applied)
			}
		}
	}
}

func TestPurchase_MaxInFlight(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Limits.InFlight = 1 })
	entered, leave := make(chan struct{}), make(chan struct{})
	s.orders.place = func(_ context.Context, p order.Purchase) (order.Placed, error) {
		close(entered)
		<-leave
		return order.Placed{Order: someOrder(p), Committed: true}, nil
	}
	first := make(chan int)
	r := purchaseRequest(t, `{"quantity":1}`)
	go func() { first <- s.do(r).Code }()
	<-entered
	wantProblem(t, s.do(purchaseRequest(t, `{"quantity":1}`)).Result(), 503, "overloaded")
	close(leave)
	if code := <-first; code != http.StatusCreated {
		t.Errorf("the first: %d", code)
	}
	s.orders.place = nil
	if w := s.do(purchaseRequest(t, `{"quantity":1}`)); w.Code != http.StatusCreated {
		t.Errorf("after the first has left: %d", w.Code)
	}
}

// The context of a client that has disconnected reaches the purchase. A client that has only
// closed its sending side learns that the outcome is unknown.
func TestPurchase_DisconnectCancelsTheWait(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.orders.place = func(ctx context.Context, _ order.Purchase) (order.Placed, error) {
		cancel()
		<-ctx.Done()
		return order.Placed{}, ctx.Err()
	}
	resp := s.do(purchaseRequest(t, `{"quantity":1}`).WithContext(ctx)).Result()
	wantProblem(t, resp, 503, "unavailable")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func TestPurchase_Panic(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) { panic("inner details") }
	w := s.do(purchaseRequest(t, `{"quantity":1}`))
	if strings.Contains(w.Body.String(), "inner details") {
		t.Errorf("the answer contains the panic: %s", w.Body)
	}
	wantProblem(t, w.Result(), 500, "internal")
}

func TestPurchase_BodyCut(t *testing.T) {
	t.Parallel()
	s := open(t)
	r := purchaseRequest(t, "")
	r.Body = http.NoBody
	r = r.Clone(t.Context())
	r.Body = readCloser{iotest.ErrReader(errTest)}
	resp := s.do(r).Result()
	wantProblem(t, resp, 400, "body_incomplete")
	if resp.Header.Get("Connection") != "close" {
		t.Error("the connection of a broken body stays open")
	}
	if len(s.orders.purchases()) != 0 {
		t.Error("something was bought")
	}
}

// A purchase causes four allocations in this package. The race detector empties pools at
// random, so the test allows a few more.
func TestPurchase_Allocs(t *testing.T) {
	s := open(t, func(c *Config) { c.Orders = quickOrders{} })
	r := purchaseRequest(t, "")
	body := strings.NewReader("")
	r.Body = readCloser{body}
	w := &answer{header: make(http.Header)}
	if n := testing.AllocsPerRun(200, func() {
		body.Reset(`{"quantity":1}`)
		clear(w.header)
		s.bare.ServeHTTP(w, r)
	}); n > 8 || w.status != http.StatusCreated {
		t.Errorf("%v allocations with status %d, want at most 8 with 201", n, w.status)
	}
}
