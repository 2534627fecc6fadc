//go:build unix

package pages_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/browser"
)

// newItem creates an item that is open, costs EUR 129.00 and has ten units, unless the fields say otherwise.
func (s *service) newItem(t *testing.T, id string, fields map[string]any) {
	t.Helper()
	body := map[string]any{"id": id, "name": "The " + id, "price_minor": 12900, "currency": "EUR", "stock": 10, "per_user_limit": 2}
	maps.Copy(body, fields)
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/admin/items", s.token(t, "root", "admin"), body, nil)
}

// control pauses, resumes or closes an item.
func (s *service) control(t *testing.T, id, action string) {
	t.Helper()
	s.call(t, http.StatusOK, http.MethodPost, "/v1/admin/items/"+id+"/"+action, s.token(t, "root", "admin"), nil, nil)
}

// buy buys one unit through the API and returns the order's id.
func (s *service) buy(t *testing.T, item, buyer string) string {
	t.Helper()
	var o shopOrder
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/items/"+item+"/orders", s.token(t, buyer, "buyer"), map[string]int{"quantity": 1}, &o,
		"Idempotency-Key", "key-"+buyer, "Prefer", "wait=10")
	return o.ID
}

// shopOrder is an order as far as these tests read it.
type shopOrder struct {
	ID       string
	Status   string
	Quantity int64
}

// ordersOf returns the buyer's orders.
func (s *service) ordersOf(t *testing.T, buyer string) []shopOrder {
	t.Helper()
	var answer struct{ Orders []shopOrder }
	s.call(t, http.StatusOK, http.MethodGet, "/v1/orders", s.token(t, buyer, "buyer"), nil, &answer)
	return answer.Orders
}

// wantOrders checks how many orders the buyer has.
func (s *service) wantOrders(t *testing.T, buyer string, want int) {
	t.Helper()
	if all := s.ordersOf(t, buyer); len(all) != want {
		t.Errorf("%s has the orders %+v, want %d", buyer, all, want)
	}
}

// enter logs a buyer in and opens a page.
func enter(p *browser.Page, at, buyer, path string) {
	p.Goto(at + "/login?next=" + url.QueryEscape(path))
	p.Fill("input[name=name]", buyer)
	p.Click("main form button")
	p.WaitURL(path)
}

// front is a proxy before the service, in which a test delays or replaces answers.
type front struct {
	URL string

	mu     sync.Mutex
	handle func(w http.ResponseWriter, r *http.Request, forward http.Handler)
	others func(r *http.Request) // before any other request is passed on; nil: nothing
	keys   []string              // the Idempotency-Keys of all purchases
	buyers []string              // the buyers whose pages sent them
}

// inFront starts a proxy that passes everything on.
func inFront(t *testing.T, s *service) *front {
	t.Helper()
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}}
	f := &front{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/orders") {
			f.mu.Lock()
			before := f.others
			f.mu.Unlock()
			if before != nil {
				before(r)
			}
			forward.ServeHTTP(w, r)
			return
		}
		f.mu.Lock()
		f.buyers = append(f.buyers, r.Header.Get("X-Flashsale-Buyer"))
		f.keys = append(f.keys, r.Header.Get("Idempotency-Key"))
		handle := f.handle
		f.mu.Unlock()
		if handle == nil {
			forward.ServeHTTP(w, r)
			return
		}
		handle(w, r, forward)
	}))
	t.Cleanup(server.Close)
	f.URL = server.URL
	return f
}

// purchases replaces what happens to purchases.
func (f *front) purchases(handle func(w http.ResponseWriter, r *http.Request, forward http.Handler)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handle = handle
}

// refuse lets the front refuse as many purchases as given, and pass on those that follow.
func (f *front) refuse(times, status int, code string, retryAfter int) {
	var mu sync.Mutex
	f.purchases(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
		mu.Lock()
		times--
		refused := times >= 0
		mu.Unlock()
		if !refused {
			forward.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		}
		w.WriteHeader(status)
		body := map[string]any{"type": "/docs#" + code, "title": code, "status": status, "code": code, "detail": code, "request_id": "front-1"}
		if err := json.NewEncoder(w).Encode(body); err != nil {
			return // the browser has gone
		}
	})
}

// wantOneKey checks that as many purchases were sent, all with the same key.
func (f *front) wantOneKey(t *testing.T, atLeast int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.keys {
		if k != f.keys[0] || k == "" {
			t.Fatalf("the purchases have the keys %v, want the same", f.keys)
		}
	}
	if len(f.keys) < atLeast {
		t.Errorf("%d purchases were sent, want at least %d", len(f.keys), atLeast)
	}
}

// in returns the time after a duration, as the API reads it.
func in(d time.Duration) string { return time.Now().Add(d).UTC().Format("2006-01-02T15:04:05.000Z") }

// Given a buyer, when they find an item in the list, log in, buy and pay, then each step leads to the next,
// and the order's page shows the payment without a reload.
func TestShop_BuyAndPay(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "0-shoe", map[string]any{"name": "The shoe", "payment_window_seconds": 600})
	p := browser.New(t, browser.Options{})
	p.Goto(s.URL + "/")
	p.Click("main a >> The shoe")
	p.WaitURL("/items/0-shoe")
	p.WaitText("h1", "The shoe")
	p.WaitText(".price", "€129.00")
	p.Click("a >> Log in to buy")
	p.WaitURL("/login")
	p.Fill("input[name=name]", "shop-buyer")
	p.Click("main button >> Log in")
	p.WaitURL("/items/0-shoe")
	p.Fill("input[name=quantity]", "2")
	p.Click("#press")
	p.WaitURL("/orders/")
	p.WaitText("#status", "Confirmed")
	p.WaitText(".facts", "€258.00")
	p.WaitText("#due", "Pay by")
	p.Click("button >> Pay now")
	p.WaitText("#status", "Paid")
	p.WaitText("#explanation", "The order is paid.")
	p.WaitGone("button >> Pay now")
	p.WaitGone("button >> Cancel order")
	p.Click("nav a >> My orders")
	p.WaitURL("/orders")
	p.WaitText("main li", "The shoe")
	s.wantOrders(t, "shop-buyer", 1)
}

// Given an item, when the button is clicked twice, then one order is made.
func TestShop_DoubleClick(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "double", nil)
	f := inFront(t, s)
	p := browser.New(t, browser.Options{})
	enter(p, f.URL, "shop-double", "/items/double")
	p.WaitText("#press", "Buy")
	p.Eval(`(() => { const b = document.getElementById("press"); b.click(); b.click(); setTimeout(() => b.click(), 50); })()`, nil)
	p.WaitURL("/orders/")
	f.wantOneKey(t, 1)
	s.wantOrders(t, "shop-double", 1)
}

// Given a purchase whose answer is under way, when the buyer reloads the page, then the same request is
// sent again, and the buyer gets the order that the first one made.
func TestShop_ReloadInTheMiddle(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "reload", nil)
	f := inFront(t, s)
	arrived := make(chan struct{}, 8)
	f.purchases(func(_ http.ResponseWriter, r *http.Request, forward http.Handler) {
		forward.ServeHTTP(httptest.NewRecorder(), r) // the order is made
		arrived <- struct{}{}
		<-r.Context().Done() // and its answer never comes
	})
	p := browser.New(t, browser.Options{})
	enter(p, f.URL, "shop-reload", "/items/reload")
	p.Click("#press")
	p.WaitText("#progress", "Sending your request")
	<-arrived
	f.purchases(nil)
	p.Reload()
	p.WaitURL("/orders/")
	f.wantOneKey(t, 2)
	s.wantOrders(t, "shop-reload", 1)
}

// Given a lost connection, when the buyer presses the button, then the page keeps the request, says so,
// and sends it when the connection is back.
func TestShop_Offline(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "offline", nil)
	p := browser.New(t, browser.Options{})
	enter(p, s.URL, "shop-offline", "/items/offline")
	p.WaitText("#press", "Buy")
	p.Offline(true)
	p.Click("#press")
	p.WaitText("#notices", "Connection lost Your request is kept.")
	p.WaitText("#progress", "Retrying in")
	p.WaitVisible("#stop")
	p.Offline(false)
	p.WaitURL("/orders/")
	s.wantOrders(t, "shop-offline", 1)
}

// Given an order that was made, when the buyer goes back, then the page names that order, and the button
// makes another one.
func TestShop_BackButton(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "back", nil)
	p := browser.New(t, browser.Options{})
	enter(p, s.URL, "shop-back", "/items/back")
	p.Click("#press")
	p.WaitURL("/orders/")
	first := p.URL()
	p.Eval("history.back()", nil)
	p.WaitURL("/items/back")
	p.WaitText("#notices", "You have placed an order")
	if to, _ := p.Attribute("#notices a", "href"); !strings.HasSuffix(first, to) {
		t.Errorf("the notice leads to %s, want %s", to, first)
	}
	s.wantOrders(t, "shop-back", 1)
	p.Click("#press >> Buy again")
	p.WaitURL("/orders/")
	if p.URL() == first {
		t.Error("the second order is the first one")
	}
	s.wantOrders(t, "shop-back", 2)
}

// Given a request in the tab's storage that is another buyer's, or too old, when the page is loaded, then it
// is not sent.
func TestShop_RequestsThatAreNotContinued(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "stale", nil)
	f := inFront(t, s)
	p := browser.New(t, browser.Options{})
	enter(p, f.URL, "shop-stale", "/items/stale")
	for pending, notice := range map[string]string{
		`{"key":"k-1","quantity":1,"buyer":"shop-other","at":Date.now()}`:              ``,
		`{"key":"k-2","quantity":1,"buyer":"shop-stale","at":Date.now() - 11 * 60000}`: `An earlier request was not answered`,
	} {
		p.Eval(`sessionStorage.setItem("flashsale.pending.stale", JSON.stringify(`+strings.ReplaceAll(pending, `"at":`, `at:`)+`))`, nil)
		p.Reload()
		if notice != "" {
			p.WaitText("#notices", notice)
		}
		p.WaitTrue(`sessionStorage.getItem("flashsale.pending.stale") === null && !document.getElementById("press").disabled`)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.keys) != 0 {
		t.Errorf("purchases were sent with the keys %v", f.keys)
	}
}

// Given a request that was stopped after it had arrived, when the buyer chooses another quantity, then the
// page says that the order exists, and the next press makes another one.
func TestShop_OtherQuantityAfterStop(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "regret", map[string]any{"per_user_limit": 5})
	f := inFront(t, s)
	arrived := make(chan struct{}, 8)
	f.purchases(func(_ http.ResponseWriter, r *http.Request, forward http.Handler) {
		forward.ServeHTTP(httptest.NewRecorder(), r)
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	p := browser.New(t, browser.Options{})
	p.Expect("status of 422")
	enter(p, f.URL, "shop-regret", "/items/regret")
	p.Click("#press")
	<-arrived
	p.Click("#stop")
	p.WaitText("#notices", "Stopped")
	f.purchases(nil)
	p.Fill("input[name=quantity]", "2")
	p.Click("#press")
	p.WaitText("#notices", "Already ordered")
	s.wantOrders(t, "shop-regret", 1)
	p.Click("#press")
	p.WaitURL("/orders/")
	s.wantOrders(t, "shop-regret", 2)
}
