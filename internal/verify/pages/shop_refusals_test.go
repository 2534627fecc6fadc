//go:build unix

package pages_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/browser"
)

// Given two buyers and one unit, when both press, then one gets the order and the other learns that the
// item is sold out; their pages follow.
func TestShop_TwoBuyersOneUnit(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "last", map[string]any{"stock": 1, "per_user_limit": 1})
	winner, loser := browser.New(t, browser.Options{}), browser.New(t, browser.Options{})
	enter(winner, s.URL, "shop-winner", "/items/last")
	enter(loser, s.URL, "shop-loser", "/items/last")
	loser.WaitText("#press", "Buy")
	loser.Block("http://*:*/v1/items/last") // its page does not learn that the unit is sold
	loser.Expect("ERR_BLOCKED_BY_CLIENT", "status of 409")
	winner.Click("#press")
	winner.WaitURL("/orders/")
	loser.Click("#press")
	loser.WaitText("#notices", "Sold out")
	loser.Block()
	loser.WaitText("#state", "Sold out")
	loser.WaitText("#left", "None left")
	loser.WaitTrue(`document.getElementById("press").disabled`)
	s.wantOrders(t, "shop-loser", 0)
	s.wantOrders(t, "shop-winner", 1)
}

// Given a buyer who has all units that one buyer may have, when they buy again on an open page, then the
// page says so, disables the button, and leads to the orders; and so does the page when it is loaded.
func TestShop_LimitReached(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "limited", map[string]any{"per_user_limit": 1})
	p := browser.New(t, browser.Options{})
	p.Expect("status of 409")
	enter(p, s.URL, "shop-greedy", "/items/limited")
	p.WaitText("#press", "Buy")
	id := s.buy(t, "limited", "shop-greedy")
	p.Click("#press")
	p.WaitText("#notices", "Limit reached")
	for range 2 {
		p.WaitText("#press", "Limit reached")
		p.WaitTrue(`document.getElementById("press").disabled`)
		p.WaitText("#full", "You have bought the maximum of 1.")
		p.Reload()
	}
	p.CheckAxe()
	p.Click("#full a >> My orders")
	p.WaitURL("/orders")
	s.wantOrders(t, "shop-greedy", 1)
	s.call(t, http.StatusOK, http.MethodPost, "/v1/orders/"+id+"/cancel", s.token(t, "root", "admin"), nil, nil)
	enter(p, s.URL, "shop-greedy", "/items/limited")
	p.WaitText("#press", "Buy")
	p.WaitTrue(`!document.getElementById("press").disabled`)
}

// Given a sale that opens soon, then the page counts down, and its button works from the opening on
// without a reload.
func TestShop_Opens(t *testing.T) {
	t.Parallel()
	s := running(t)
	p := browser.New(t, browser.Options{})
	s.newItem(t, "soon", map[string]any{"opens_at": in(8 * time.Second)})
	enter(p, s.URL, "shop-early", "/items/soon")
	p.Eval("(() => { window.same = true; })()", nil)
	p.WaitText("#countdown", "in 0:0")
	p.WaitText("#press", "Buy")
	p.WaitText("#state", "On sale")
	p.Click("#press")
	p.WaitURL("/orders/")
	s.wantOrders(t, "shop-early", 1)
}

// Given a purchase that arrives just before the opening, then the page waits and sends it again.
func TestShop_PressedAtTheOpening(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "sharp", nil)
	f := inFront(t, s)
	f.refuse(1, http.StatusConflict, "sale_not_open", 2)
	p := browser.New(t, browser.Options{})
	p.Expect("status of 409")
	enter(p, f.URL, "shop-sharp", "/items/sharp")
	p.Click("#press")
	p.WaitText("#notices", "Not open yet")
	p.WaitURL("/orders/")
	f.wantOneKey(t, 2)
}

// Given an open page, when an admin pauses, resumes and closes the sale, then the page follows. A buyer without a
// session sees the link to the login form only while the sale is open or scheduled.
func TestShop_PausedAndClosed(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "paused", nil)
	p := browser.New(t, browser.Options{})
	enter(p, s.URL, "shop-patient", "/items/paused")
	p.WaitText("#press", "Buy")
	guest := browser.New(t, browser.Options{})
	guest.Goto(s.URL + "/items/paused")
	guest.WaitVisible("#login")
	guest.WaitGone("#unsold")
	s.control(t, "paused", "pause")
	guest.WaitText("#unsold", "Paused")
	guest.WaitGone("#login")
	p.WaitText("#state", "Paused")
	p.WaitTrue(`document.getElementById("press").disabled`)
	s.control(t, "paused", "resume")
	p.WaitText("#state", "On sale")
	p.WaitText("#press", "Buy")
	p.WaitTrue(`!document.getElementById("press").disabled`)
	s.control(t, "paused", "close")
	p.WaitText("#state", "Ended")
	p.WaitText("#press", "Sale ended")
	guest.Reload()
	guest.WaitText("#unsold", "Sale ended")
	guest.WaitGone("#login")
}

// Given a purchase that is refused because the sale is paused or has ended, then the page says so.
func TestShop_RefusedAsPausedOrClosed(t *testing.T) {
	t.Parallel()
	s := running(t)
	p := browser.New(t, browser.Options{})
	p.Expect("ERR_BLOCKED_BY_CLIENT", "status of 409")
	for action, text := range map[string]string{"pause": "The shop has paused this sale.", "close": "The sale of this item has ended."} {
		item := "sudden-" + action
		s.newItem(t, item, nil)
		enter(p, s.URL, "shop-sudden", "/items/"+item)
		p.WaitText("#press", "Buy")
		p.Block("http://*:*/v1/items/" + item)
		s.control(t, item, action)
		p.Click("#press")
		p.WaitText("#notices", text)
		p.Block()
	}
	s.wantOrders(t, "shop-sudden", 0)
}

// Given a service that cannot accept purchases for a while, then the page says why, counts down, and sends
// the same request until it is accepted.
func TestShop_RetriesAutomatically(t *testing.T) {
	t.Parallel()
	s := running(t)
	for code, tc := range map[string]struct {
		status int
		text   string
	}{
		"overloaded":   {503, "Too many buyers at once"},
		"unavailable":  {503, "Temporarily unavailable"},
		"rebuilding":   {503, "Just a moment"},
		"sale_stopped": {503, "Sale stopped"},
		"rate_limited": {429, "Too many requests"},
	} {
		item := "busy-" + strings.ReplaceAll(code, "_", "-")
		s.newItem(t, item, nil)
		f := inFront(t, s)
		f.refuse(2, tc.status, code, 1)
		p := browser.New(t, browser.Options{})
		p.Expect("status of 503", "status of 429", "503")
		enter(p, f.URL, "shop-"+item, "/items/"+item)
		p.Click("#press")
		p.WaitText("#notices", tc.text+" ")
		p.WaitURL("/orders/")
		f.wantOneKey(t, 3)
		s.wantOrders(t, "shop-"+item, 1)
		p.Close()
	}
}

// Given a request that waits for its repeat, when the buyer stops it, then nothing more is sent, and the
// button works again.
func TestShop_Stop(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "stopped", nil)
	f := inFront(t, s)
	f.refuse(1, http.StatusServiceUnavailable, "overloaded", 60)
	p := browser.New(t, browser.Options{})
	p.Expect("503")
	enter(p, f.URL, "shop-stopper", "/items/stopped")
	p.Click("#press")
	p.WaitText("#progress", "Retrying in")
	p.Click("#stop")
	p.WaitText("#notices", "Stopped")
	p.WaitGone("#stop")
	p.Click("#press")
	p.WaitURL("/orders/")
	f.wantOneKey(t, 2)
	s.wantOrders(t, "shop-stopper", 1)
}

// Given a session that has ended, when the buyer presses, then they log in, and the purchase continues.
func TestShop_SessionEnds(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "session", nil)
	p := browser.New(t, browser.Options{})
	p.Expect("status of 401")
	enter(p, s.URL, "shop-sleeper", "/items/session")
	p.WaitText("#press", "Buy")
	p.ClearCookies()
	p.Click("#press")
	p.WaitURL("/login?next=")
	p.Fill("input[name=name]", "shop-sleeper")
	p.Click("main form button")
	p.WaitURL("/orders/")
	s.wantOrders(t, "shop-sleeper", 1)
}

// Given a browser without JavaScript, then a buyer logs in, buys, sees a refusal with the form to repeat it,
// and cancels.
func TestShop_WithoutScript(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "plain", map[string]any{"per_user_limit": 1, "payment_window_seconds": 600})
	p := browser.New(t, browser.Options{NoScript: true})
	enter(p, s.URL, "shop-plain", "/items/plain")
	p.WaitText(".price", "EUR 129.00")
	p.Click("#press")
	p.WaitURL("/orders/")
	p.WaitText("#status", "Confirmed")
	p.WaitText("time", "UTC")
	p.Goto(s.URL + "/items/plain")
	p.WaitText("#press", "Limit reached")
	p.WaitText("#full", "You have bought the maximum of 1.")
	p.CheckAxe()
	p.Click("nav a >> My orders")
	p.Click("main li a >> The plain")
	p.Click("button >> Cancel order")
	p.WaitText("#status", "Cancelled")
	p.WaitText("#explanation", "You cancelled the order.")
}
