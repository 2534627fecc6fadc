//go:build unix

package pages_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/browser"
)

// Given an order whose page is slow, when the buyer keeps clicking, then one order is made.
func TestShop_ImpatientBuyer(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "impatient", nil)
	f := inFront(t, s)
	release := make(chan struct{})
	f.others = func(r *http.Request) {
		switch {
		case r.URL.RawQuery == "lang=en":
			close(release) // the page has clicked for seconds
		case strings.HasPrefix(r.URL.Path, "/orders/"):
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	}
	p := browser.New(t, browser.Options{})
	enter(p, f.URL, "shop-impatient", "/items/impatient")
	p.WaitText("#press", "Buy")
	p.Eval(`(() => {
		let clicks = 0;
		const timer = setInterval(() => {
			document.getElementById("press").click();
			if (++clicks < 12) return;
			clearInterval(timer);
			fetch("/?lang=en");
		}, 500);
	})()`, nil)
	p.WaitURL("/orders/")
	f.wantOneKey(t, 1)
	s.wantOrders(t, "shop-impatient", 1)
	if !slices.Equal(f.buyers, []string{"shop-impatient"}) {
		t.Errorf("the page sent the buyers %q", f.buyers)
	}
}

// Given a request that is refused until it is too old, then the page stops sending it and says so.
func TestShop_RetriesEnd(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "endless", nil)
	f := inFront(t, s)
	f.refuse(1000, http.StatusServiceUnavailable, "overloaded", 1)
	p := browser.New(t, browser.Options{})
	p.Expect("503")
	enter(p, f.URL, "shop-endless", "/items/endless")
	p.WaitText("#press", "Buy")
	p.Eval(`sessionStorage.setItem("flashsale.pending.endless", JSON.stringify({key: "k-1", quantity: 1, buyer: "shop-endless", at: Date.now() - 595000}))`, nil)
	p.Reload()
	p.WaitText("#notices", "An earlier request was not answered")
	p.WaitTrue(`sessionStorage.getItem("flashsale.pending.endless") === null && !document.getElementById("press").disabled`)
	p.WaitGone("#stop")
	f.wantOneKey(t, 1)
	s.wantOrders(t, "shop-endless", 0)
}

// Given pages of a buyer, when the buyer logs out and goes back, then the pages do not show the session.
func TestShop_BackAfterLogout(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "farewell", nil)
	id := s.buy(t, "farewell", "shop-farewell")
	p := browser.New(t, browser.Options{})
	p.Expect("status of 401") // of the order page that is restored and then left
	enter(p, s.URL, "shop-farewell", "/items/farewell")
	p.WaitText("#press", "Buy")
	p.Click("header button >> Log out")
	p.WaitVisible("header a >> Log in")
	p.Eval("history.back()", nil)
	p.WaitVisible("a >> Log in to buy")
	p.WaitGone("header .buyer")
	s.call(t, http.StatusOK, http.MethodPost, "/v1/orders/"+id+"/cancel", s.token(t, "root", "admin"), nil, nil)
	enter(p, s.URL, "shop-farewell", "/orders/"+id)
	p.WaitText("#status", "Cancelled")
	p.Click("header button >> Log out")
	p.WaitVisible("header a >> Log in")
	p.Eval("history.back()", nil)
	p.WaitURL("/login")
}

// Given the page of an order, when the session ends elsewhere, then the page leads to the login form.
func TestShop_OrderAfterLogout(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "elsewhere", map[string]any{"payment_window_seconds": 600})
	id := s.buy(t, "elsewhere", "shop-elsewhere")
	p := browser.New(t, browser.Options{})
	p.Expect("ERR_BLOCKED_BY_CLIENT", "status of 401")
	p.Block("http://*:*/v1/orders/*/events")
	enter(p, s.URL, "shop-elsewhere", "/orders/"+id)
	p.WaitText("#live", "Live updates are not available.")
	p.ClearCookies()
	p.WaitURL("/login")
}

// Given the list of items, then the cards follow the sales, and a sale opens and closes by the server's
// clock without a request.
func TestShop_ListFollows(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "0-list-paused", nil)
	s.newItem(t, "0-list-window", map[string]any{"opens_at": in(8 * time.Second), "closes_at": in(12 * time.Second)})
	p := browser.New(t, browser.Options{})
	p.Expect("ERR_BLOCKED_BY_CLIENT")
	p.Block("http://*:*/v1/items/0-list-window")
	p.Goto(s.URL + "/")
	const window, paused = "[data-item='0-list-window'] .badge", "[data-item='0-list-paused'] .badge"
	p.WaitText(window, "Opens soon")
	s.control(t, "0-list-paused", "pause")
	p.WaitText(window, "On sale")
	p.WaitText(window, "Ended")
	p.WaitText(paused, "Paused")
}
