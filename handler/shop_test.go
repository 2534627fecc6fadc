package handler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/pages"
	"flashsale/handler/problem"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
)

// visit sends a request as a browser does. form is the body of a form; "": a GET request.
func (s *shop) visit(t *testing.T, path, form, cookies string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	method := http.MethodGet
	if form != "" {
		method = http.MethodPost
	}
	r := httptest.NewRequest(method, path, strings.NewReader(form))
	r.Host = "localhost" // development mode refuses the names of other hosts
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if cookies != "" {
		r.Header.Set("Cookie", cookies)
	}
	r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return s.do(r)
}

// wantPage checks a page's status and parts of its text.
func wantPage(t *testing.T, w *httptest.ResponseRecorder, status int, has ...string) {
	t.Helper()
	body := w.Body.String()
	if w.Code != status || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || w.Header().Get("Content-Security-Policy") == "" {
		t.Errorf("%d %v, want a page with %d: %s", w.Code, w.Header(), status, body)
	}
	for _, part := range has {
		if !strings.Contains(body, part) {
			t.Errorf("the page does not have %s: %s", part, body)
		}
	}
}

func wantRedirect(t *testing.T, w *httptest.ResponseRecorder, to string) {
	t.Helper()
	if got := w.Header().Get("Location"); w.Code != http.StatusSeeOther || got != to || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d to %q, want 303 to %q: %s", w.Code, got, to, w.Body)
	}
}

func developing(c *Config) {
	c.DevTokens = func(sub, role string, ttl time.Duration) (string, error) {
		return auth.SignToken(testSecret, sub, auth.Role(role), ttl, someTime)
	}
}

var hiddenKey = regexp.MustCompile(`name="key" value="([^"]+)"`)

// keyIn returns the key of the form on a page.
func keyIn(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	m := hiddenKey.FindStringSubmatch(w.Body.String())
	if m == nil {
		t.Fatalf("the page has no form with a key: %s", w.Body)
	}
	return m[1]
}

// Given development mode, when a buyer logs in with a name and out again, then the cookie is set and
// deleted, and the browser is led to a page of this site.
func TestShop_LogInWithName(t *testing.T) {
	t.Parallel()
	s := open(t, developing)
	for next, want := range map[string]string{
		"/items/thing": "/items/thing", "": "/", "https://evil.example/": "/", "//evil.example": "/", `/\evil.example`: "/",
	} {
		w := s.visit(t, "/login", url.Values{"name": {"bob"}, "next": {next}}.Encode(), "")
		wantRedirect(t, w, want)
		c := w.Result().Cookies()
		if len(c) != 1 || c[0].Name != buyerCookie || !c[0].HttpOnly || c[0].SameSite != http.SameSiteLaxMode || c[0].MaxAge > int(buyerSession/time.Second) || c[0].MaxAge < int(buyerSession/time.Second)-1 {
			t.Fatalf("cookies %v", c)
		}
		wantPage(t, s.visit(t, "/", "", c[0].Name+"="+c[0].Value), 200, `title="bob">bob<`)
	}
	for _, name := range []string{"", "a b", "<b>", strings.Repeat("a", 129)} {
		w := s.visit(t, "/login", url.Values{"name": {name}, "next": {"//evil.example"}}.Encode(), "")
		wantPage(t, w, 422, `data-code="field_range"`, `name="next" value="/"`)
		if len(w.Result().Cookies()) != 0 {
			t.Errorf("%q: a session was started", name)
		}
	}
	w := s.visit(t, "/logout", "x=", sessionCookie(t, buyerCookie, auth.RoleBuyer))
	wantRedirect(t, w, "/")
	if c := w.Result().Cookies(); len(c) != 1 || c[0].MaxAge >= 0 || c[0].Value != "" {
		t.Errorf("cookies %v", c)
	}
}

// Given a service with real tokens, when a buyer logs in, then only a valid token of a buyer is taken, and
// the page names the shop's own login.
func TestShop_LogInWithToken(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.LoginURL = "https://shop.example/login" })
	wantPage(t, s.visit(t, "/login?next=/orders", "", ""), 200, `name="token"`, `href="https://shop.example/login?next=%2Forders"`)
	token := strings.TrimPrefix(bearer(t, "alice", auth.RoleBuyer), "Bearer ")
	w := s.visit(t, "/login", url.Values{"token": {token}, "next": {"/orders"}}.Encode(), "")
	wantRedirect(t, w, "/orders")
	if c := w.Result().Cookies(); len(c) != 1 || !c[0].Secure || c[0].MaxAge > 3600 || c[0].MaxAge < 3599 {
		t.Errorf("cookies %v", c)
	}
	for refused, code := range map[string]string{
		"":      "token_malformed",
		"a.b.c": "token_malformed",
		strings.TrimPrefix(bearer(t, "root", auth.RoleAdmin), "Bearer "): "forbidden",
		token + "x": "token_signature",
	} {
		wantPage(t, s.visit(t, "/login", url.Values{"token": {refused}}.Encode(), ""), 403, `data-code="`+code+`"`)
	}
}

// Given a compressed form, or another type, when it is sent, then it is refused.
func TestShop_FormsOfOtherTypes(t *testing.T) {
	t.Parallel()
	s := open(t)
	for header, value := range map[string]string{"Content-Encoding": "gzip", "Content-Type": "multipart/form-data; boundary=x"} {
		w := s.visit(t, "/items/thing/buy", "key=k&quantity=1", sessionCookie(t, buyerCookie, auth.RoleBuyer), header, value)
		wantPage(t, w, http.StatusUnsupportedMediaType, `data-code="content_`)
	}
	if n := len(s.orders.purchases()); n != 0 {
		t.Errorf("%d purchases", n)
	}
}

// Given another site's page, when it sends a form, then it is refused and nothing happens.
func TestShop_FormsOfOtherSites(t *testing.T) {
	t.Parallel()
	s := open(t, developing, func(c *Config) { c.Charge = func(context.Context, order.Order) error { return errTest } })
	s.orders.get = func(string) (order.Order, error) { t.Error("an order was read"); return order.Order{}, errTest }
	cookie := sessionCookie(t, buyerCookie, auth.RoleBuyer)
	for path, form := range map[string]string{
		"/items/thing/buy": "key=k&quantity=1", "/orders/" + someOrderID + "/cancel": "x=", "/orders/" + someOrderID + "/pay": "x=",
		"/login": "name=mallory", "/logout": "x=",
	} {
		for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
			w := s.visit(t, path, form, cookie, name, value)
			wantForbidden(t, w)
			if len(w.Result().Cookies()) != 0 {
				t.Errorf("%s: cookies %v", path, w.Result().Cookies())
			}
		}
	}
	if n := len(s.orders.purchases()); n != 0 {
		t.Errorf("%d purchases", n)
	}
}

func wantForbidden(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `data-code="forbidden"`) {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

// Given the page of an item, when its form is sent, also twice, then the purchase has the form's key, and
// the browser is led to the order.
func TestShop_BuyByForm(t *testing.T) {
	t.Parallel()
	s := open(t)
	cookie := sessionCookie(t, buyerCookie, auth.RoleBuyer)
	page := s.visit(t, "/items/thing", "", cookie)
	wantPage(t, page, 200, `name="quantity" min="1" max="2" value="1"`)
	wantPage(t, page, 200, `name="buyer" value="alice"`)
	key := keyIn(t, page)
	if key == keyIn(t, s.visit(t, "/items/thing", "", cookie)) {
		t.Error("two pages have the same key")
	}
	form := url.Values{"key": {key}, "quantity": {"2"}}.Encode()
	for range 2 {
		wantRedirect(t, s.visit(t, "/items/thing/buy", form, cookie), "/orders/"+someOrderID)
	}
	all := s.orders.purchases()
	if len(all) != 2 || all[0].IdempotencyKey != key || all[1].IdempotencyKey != key || all[0].Quantity != 2 || all[0].UserID != "alice" || all[0].Wait <= 0 {
		t.Errorf("%+v", all)
	}
	wantRedirect(t, s.visit(t, "/items/thing/buy", form, ""), "/login?next=%2Fitems%2Fthing")
	wantRedirect(t, s.visit(t, "/items/thing/buy", form+"&buyer=alice", cookie), "/orders/"+someOrderID)
	// A form that was rendered for bob, who was logged in before alice.
	wantRedirect(t, s.visit(t, "/items/thing/buy", form+"&buyer=bob", cookie), "/login?next=%2Fitems%2Fthing")
	wantPage(t, s.visit(t, "/items/thing/buy", "quantity=1", cookie), 400, `data-code="idempotency_key_invalid"`)
	wantPage(t, s.visit(t, "/items/nothing/buy", form, cookie), 404, `data-code="item_not_found"`)
}

// Given a refusal, when a form is sent, then the page explains it, and has the form with the same key and
// quantity.
func TestShop_RefusedForm(t *testing.T) {
	t.Parallel()
	s := open(t)
	cookie := sessionCookie(t, buyerCookie, auth.RoleBuyer)
	for err, want := range map[error]struct {
		status int
		code   string
		retry  bool
	}{
		inventory.ErrSoldOut:                          {409, "sold_out", false},
		inventory.ErrUserLimit:                        {409, "user_limit", false},
		inventory.ErrPaused:                           {409, "sale_paused", false},
		inventory.ErrClosed:                           {409, "sale_closed", false},
		&inventory.NotOpenError{In: 90 * time.Second}: {409, "sale_not_open", true},
		inventory.ErrOverloaded:                       {503, "overloaded", true},
		inventory.ErrUnavailable:                      {503, "unavailable", true},
		inventory.ErrRebuilding:                       {503, "rebuilding", true},
		inventory.ErrStopped:                          {503, "sale_stopped", true},
		fmt.Errorf("x: %w", inventory.ErrKeyReused):   {422, "idempotency_key_reused", false},
		&inventory.QuantityError{Limit: 1}:            {422, "quantity_range", false},
	} {
		s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) { return order.Placed{}, err }
		w := s.visit(t, "/items/thing/buy", "key=k-7&quantity=2", cookie)
		wantPage(t, w, want.status, `data-code="`+want.code+`"`, `value="2"`)
		if key := keyIn(t, w); (key == "k-7") == (want.code == "idempotency_key_reused") {
			t.Errorf("%s: the form has the key %s", want.code, key)
		}
		if (w.Header().Get("Retry-After") != "") != want.retry || strings.Contains(w.Body.String(), "You can try again in") != want.retry {
			t.Errorf("%s: Retry-After %q", want.code, w.Header().Get("Retry-After"))
		}
		wantHeader(t, w, "Cache-Control", "no-store")
		zh := s.visit(t, "/items/thing/buy", "key=k-7&quantity=2", cookie+"; "+pages.LanguageCookie+"=zh")
		wantPage(t, zh, want.status, pages.LanguageNamed("zh").T("problem."+want.code))
	}
}

// Given a buyer who holds as many units as one buyer may, then the item's page says so and its button is
// disabled; if the units are not known in time, the button stays.
func TestShop_AtLimit(t *testing.T) {
	t.Parallel()
	s := open(t)
	alice := sessionCookie(t, buyerCookie, auth.RoleBuyer)
	const disabled, text = `id="press" disabled>Limit reached<`, `<p id="full">You have bought the maximum of 2. <a href="/orders">My orders</a></p>`
	show := func(held int64, err error) *httptest.ResponseRecorder {
		s.orders.held = func(_ context.Context, item, buyer string) (int64, error) {
			if item != "thing" || buyer != "alice" {
				t.Errorf("asked for %s, %s", item, buyer)
			}
			return held, err
		}
		return s.visit(t, "/items/thing", "", alice)
	}
	for _, held := range []int64{2, 3} { // the limit may have been lowered
		wantPage(t, show(held, nil), 200, disabled, text)
	}
	for _, w := range []*httptest.ResponseRecorder{show(1, nil), show(2, inventory.ErrUnavailable), s.visit(t, "/items/thing", "", "")} {
		if wantPage(t, w, 200); strings.Contains(w.Body.String(), " disabled>") || strings.Contains(w.Body.String(), text) {
			t.Errorf("the page says that the limit is reached: %s", w.Body)
		}
	}
	s.orders.held = func(ctx context.Context, _, _ string) (int64, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	wantPage(t, s.visit(t, "/items/thing", "", alice), 200, `id="press">Buy<`)

	s.orders.held = nil
	s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) {
		return order.Placed{}, inventory.ErrUserLimit
	}
	wantPage(t, s.visit(t, "/items/thing/buy", "key=k-7&quantity=1", alice), 409, disabled, text)
	wantPage(t, s.visit(t, "/items/thing/buy", "key=k-7&quantity=2", alice), 409, `id="press">Try again<`) // one may be left
}

// Given a purchase that is refused before its form is read, then the page has the same form again, except
// for another site's.
func TestShop_RepeatOfAFormThatWasNotRead(t *testing.T) {
	t.Parallel()
	cookie := sessionCookie(t, buyerCookie, auth.RoleBuyer)
	const repeat, form = `action="/items/thing/buy"`, "key=k-7&quantity=2"
	for name, change := range map[string]func(*Config){
		"overloaded":   func(c *Config) { c.Admission = &door{wait: 3 * time.Second, shut: true} },
		"rate_limited": func(c *Config) { c.Limits.RateBuyer, c.Limits.BurstBuyer = 0.001, 1 },
	} {
		s := open(t, change)
		s.visit(t, "/items/thing/buy", form, cookie)
		w := s.visit(t, "/items/thing/buy", form, cookie)
		wantPage(t, w, w.Code, `data-code="`+name+`"`, repeat, `value="k-7"`, `name="quantity" value="2"`, "You can try again in", `href="/items/thing"`)
		if w.Code < 400 || w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		for _, form := range []string{"quantity=2", "key=k", "key=a%0Ab&quantity=1", "%zz"} {
			if w := s.visit(t, "/items/thing/buy", form, cookie); strings.Contains(w.Body.String(), repeat) {
				t.Errorf("%s with %s has a form: %s", name, form, w.Body)
			}
		}
		if w := s.visit(t, "/items/thing/buy", form, cookie, "Sec-Fetch-Site", "cross-site"); strings.Contains(w.Body.String(), repeat) {
			t.Errorf("%s: another site's form is repeated", name)
		}
	}
}

// Given a buyer's orders, then their list has the items' names, pages, and says if it is incomplete; and
// another buyer's order does not exist.
func TestShop_Orders(t *testing.T) {
	t.Parallel()
	s := open(t)
	cookie := sessionCookie(t, buyerCookie, auth.RoleBuyer)
	mine := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 2})
	gone := mine
	gone.ID, gone.ItemID = otherOrderID, "gone"
	s.orders.list = func(f order.Filter) ([]order.Order, string, error) {
		if f.Before != "" {
			return nil, "", nil
		}
		return []order.Order{mine, gone}, otherOrderID, checkout.ErrIncompleteList
	}
	w := s.visit(t, "/orders", "", cookie)
	wantPage(t, w, 200, ">Thing</a>", ">gone</a>", "may be missing", "EUR 9.90")
	if f := s.orders.lastList(t); f.UserID != "alice" {
		t.Errorf("listed with %+v", f)
	}
	next := regexp.MustCompile(`/orders\?cursor=[^"]+`).FindString(w.Body.String())
	wantPage(t, s.visit(t, next, "", cookie), 200, "no older orders")
	if f := s.orders.lastList(t); f.Before != otherOrderID {
		t.Errorf("the next page is listed with %+v", f)
	}
	wantPage(t, s.visit(t, "/orders?cursor=x", "", cookie), 400, `data-code="cursor_invalid"`)

	s.orders.get = func(id string) (order.Order, error) {
		o := someOrder(order.Purchase{ItemID: "thing", UserID: map[string]string{someOrderID: "alice", otherOrderID: "bob"}[id], Quantity: 1})
		return o, nil
	}
	wantPage(t, s.visit(t, "/orders/"+someOrderID, "", cookie), 200, `data-status="confirmed"`, ">Thing</a>")
	for _, form := range []string{"", "x="} {
		path := "/orders/" + otherOrderID
		if form != "" {
			path += "/cancel"
		}
		wantPage(t, s.visit(t, path, form, cookie), 404, `data-code="order_not_found"`)
	}
	wantPage(t, s.visit(t, "/orders/x", "", cookie), 400, `data-code="id_invalid"`)
}

// Given an order, when the buyer pays or cancels it by a form, then the browser is led back to the order,
// or its page explains the refusal.
func TestShop_PayAndCancel(t *testing.T) {
	t.Parallel()
	var charged []string
	var refusal error
	s := open(t, func(c *Config) {
		c.Charge = func(_ context.Context, o order.Order) error {
			charged = append(charged, o.ID)
			return refusal
		}
	})
	cookie := sessionCookie(t, buyerCookie, auth.RoleBuyer)
	path := "/orders/" + someOrderID
	o := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})
	o.ExpiresAt = someTime.Add(time.Minute)
	s.orders.get = func(string) (order.Order, error) { return o, nil }
	wantPage(t, s.visit(t, path, "", cookie), 200, `action="`+path+`/pay"><input type="hidden" name="buyer" value="alice">`)
	wantRedirect(t, s.visit(t, path+"/pay", "x=", cookie), path+"?paying=1")
	wantPage(t, s.visit(t, path+"?paying=1", "", cookie), 200, `id="paying"`, `href="`+path+`?lang=zh"`)
	refusal = errTest
	wantPage(t, s.visit(t, path+"/pay", "x=", cookie), 503, `data-code="unavailable"`, `action="`+path+`/pay"`, "You can try again in")
	if len(charged) != 2 || charged[0] != someOrderID {
		t.Errorf("charged %v", charged)
	}
	due := o
	for code, change := range map[string]func(){
		"order_final": func() { o.Status = order.StatusPaid }, "order_expired": func() { o.ExpiresAt = someTime }, "orders_in_flight": func() { o.Status = order.StatusQueued },
	} {
		change()
		w := s.visit(t, path+"/pay", "x=", cookie)
		wantPage(t, w, 409, `data-code="`+code+`"`)
		o = due
	}
	if len(charged) != 2 {
		t.Errorf("orders that are not due were charged: %v", charged)
	}
	s.orders.cancel = func(id string, by order.Canceller) (order.Order, error) {
		if id != someOrderID || by.UserID != "alice" || by.Admin {
			t.Errorf("cancel %s by %+v", id, by)
		}
		return o, refusal
	}
	refusal = nil
	wantRedirect(t, s.visit(t, path+"/cancel", "x=", cookie), path)
	refusal = order.ErrOrderFinal
	wantPage(t, s.visit(t, path+"/cancel", "x=", cookie), 409, `data-code="order_final"`)
	wantPage(t, open(t).visit(t, "/orders/"+someOrderID, "", cookie), 404)
}

// Given a reader, then the language is the browser's, or the one that the reader has chosen, which the
// browser keeps; refusals use it too.
func TestShop_Language(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, tc := range []struct{ accept, cookie, path, want string }{
		{"", "", "/", "en"},
		{"zh-CN,zh;q=0.9,en;q=0.8", "", "/", "zh"},
		{"fr, en;q=0.5, zh;q=0.7", "", "/", "zh"},
		{"fr;q=x, de", "", "/", "en"},
		{"en", "zh", "/", "zh"},
		{"en", "xx", "/", "en"},
		{"en", "en", "/items/thing?lang=zh", "zh"},
		{"zh", "", "/login?lang=en", "en"},
		{"zh", "", "/?lang=xx", "zh"},
		{"zh", "", "/items/nothing", "zh"},
		{"en", "", "/items/nothing?lang=zh", "zh"},
	} {
		w := s.visit(t, tc.path, "", pages.LanguageCookie+"="+tc.cookie, "Accept-Language", tc.accept)
		wantPage(t, w, w.Code, `<html lang="`+tc.want+`">`)
		stored := ""
		for _, c := range w.Result().Cookies() {
			stored = c.Value
		}
		if chosen := strings.HasSuffix(tc.path, "lang="+tc.want); chosen != (stored == tc.want) {
			t.Errorf("%+v: stored %q", tc, stored)
		}
	}
	wantPage(t, s.visit(t, "/?lang=zh&cursor=", "", ""), 400)
	wantPage(t, s.visit(t, "/?utm_source=mail&utm_source=x", "", ""), 200) // of a newsletter
}

// Given items in all states, then the list has those that have not ended, in pages.
func TestShop_ListOfItems(t *testing.T) {
	t.Parallel()
	var all []catalog.Item
	for i := range 60 {
		item := someItem()
		item.ID = fmt.Sprintf("thing-%02d", i)
		if i%2 == 1 {
			item.Control = catalog.ControlClosed
		}
		all = append(all, item)
	}
	all[2].ImageURL = "/images/two.jpg"
	s := open(t, func(c *Config) { c.Items = &shownItems{list: &catalog.ListView{Items: all}} })
	w := s.visit(t, "/", "", "")
	wantPage(t, w, 200, `src="/images/two.jpg"`, `src="/items/thing-00/image.svg"`)
	card := regexp.MustCompile(`href="/items/thing-\d+"`)
	if n := len(card.FindAllString(w.Body.String(), -1)); n != shopPage {
		t.Errorf("%d items", n)
	}
	next := regexp.MustCompile(`/\?cursor=[^"]+`).FindString(w.Body.String())
	w = s.visit(t, next, "", "")
	wantPage(t, w, 200, `href="/items/thing-58"`)
	if n := len(card.FindAllString(w.Body.String(), -1)); n != 30-shopPage {
		t.Errorf("%d items on the second page", n)
	}
}

// Given the texts of refusals, then each is about a code of the service, and has a title.
func TestShop_TextsOfRefusals(t *testing.T) {
	t.Parallel()
	codes := problem.Statuses()
	encoded, err := pages.LanguageNamed("en").ScriptTexts("problem")
	if err != nil {
		t.Fatal(err)
	}
	var texts map[string]string
	if err := json.Unmarshal([]byte(encoded), &texts); err != nil {
		t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		code, title := strings.CutSuffix(strings.TrimPrefix(key, "problem."), ".title")
		of, _, _ := strings.Cut(code, ".") // a text may be about one parameter
		if _, known := codes[of]; !known {
			t.Errorf("%s: the service has no such code", key)
		}
		if _, has := texts["problem."+code+".title"]; !title && !has {
			t.Errorf("%s has no title", key)
		}
	}
	for _, code := range []string{
		"sold_out", "user_limit", "sale_not_open", "sale_closed", "sale_paused", "overloaded", "unavailable", "rebuilding", "sale_stopped",
		"rate_limited", "quantity_range", "idempotency_key_reused", "item_not_found", "order_not_found", "order_final", "order_expired",
		"token_expired", "forbidden", "internal", "route_not_found", "method_not_allowed",
	} {
		if texts["problem."+code] == "" {
			t.Errorf("buyers meet %s, which has no text", code)
		}
	}
}
