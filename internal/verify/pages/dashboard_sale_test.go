//go:build unix

package pages_test

import (
	"net/http"
	"testing"

	"flashsale/internal/testing/browser"
)

// Given an admin, when the admin creates a sale and buyers buy, then the overview shows the purchases live;
// the sale can be restocked, paused, resumed and closed from its page.
func TestDashboard_Sale(t *testing.T) {
	t.Parallel()
	s := running(t)
	admin := s.token(t, "root", "admin")
	p := dashboardPage(t, s, admin, "/admin/items", browser.Options{})
	p.Expect("status of 409", "status of 422", "status of 404")
	createInDialog(p)
	p.WaitURL("/admin/items/sneaker")
	p.WaitText("#status", "Sneaker was created.")
	p.WaitText("#details", "EUR 129.50")
	p.WaitText("#stream", "Live")

	overview := p.NewTab()
	overview.Goto(s.URL + "/admin")
	overview.WaitText("#stream", "Live")
	overview.WaitText("#problem-list", "No problems found")
	overview.WaitText("#checked", "Last check")
	purchases(t, s, "sneaker", 12)
	overview.WaitText("#items", "Sneaker")
	overview.WaitText("#items", "18 of 30")
	overview.WaitTrue(`/[0-9] since [0-9]/.test(document.querySelector("#tiles").innerText)`)
	overview.WaitTrue(`/highest [1-9]/.test(document.querySelector("#chart-orders .chart").getAttribute("aria-label"))`)
	p.WaitText("#tiles", "Stock left 18")
	p.Click("#check-ledger")
	p.WaitText("#ledger", "Sold 12")
	p.WaitText("#ledger", "Balanced.")

	restockInDialog(t, p)
	p.Click("#actions button >> Pause")
	p.WaitText("#notice", "This sale is paused.")
	overview.Click("#check")
	overview.WaitText("#paused-list", "Sneaker")
	p.Click("#actions button >> Resume")
	p.WaitText("#state", "open")
	p.Click("#actions button >> Load before the sale")
	p.WaitText("#status", "The item is loaded in every process.")
	closeInDialog(t, p)
	overview.Click("#check")
	overview.WaitNoText("#paused-list", "Sneaker")

	p.Goto(s.URL + "/admin/items")
	p.Fill("input[name=id]", "no-such-item")
	p.Press("Enter")
	p.WaitVisible("#open-error >> No item")
	p.Fill("input[name=id]", "sneaker")
	p.Press("Enter")
	p.WaitURL("/admin/items/sneaker")
	p.WaitText("#audit", "item.restock")
}

// createInDialog creates the item sneaker, after attempts with invalid fields.
func createInDialog(p *browser.Page) {
	p.Click("#create")
	p.Fill("dialog input[name=id]", "demo")
	p.Click("dialog button >> Create")
	p.WaitText("dialog", "This field is required.")
	p.Fill("dialog input[name=name]", "Sneaker")
	p.Fill("dialog input[name=price_minor]", "129.505")
	p.Fill("dialog input[name=stock]", "30")
	p.Click("dialog button >> Create")
	p.WaitText("dialog", "Enter an amount with up to 2 decimals")
	p.Fill("dialog input[name=price_minor]", "129.50")
	p.Click("dialog button >> Create")
	p.WaitText("dialog", "exists") // the id of the demo sale
	p.Fill("dialog input[name=id]", "sneaker")
	p.Fill("dialog input[name=opens_at]", "2020-01-31T18:00")
	p.WaitText("dialog", "UTC: 2020-01-31 18:00:00")
	p.Click("dialog button >> Create")
}

// restockInDialog adds 10 units, the first time without a connection, and takes back 5.
func restockInDialog(t *testing.T, p *browser.Page) {
	t.Helper()
	p.Click("#actions button >> Restock")
	p.Fill("dialog input[name=quantity]", "10")
	p.Fill("dialog input[name=reason]", "Second delivery")
	p.Offline(true)
	p.Click("dialog button >> Continue")
	p.WaitText("dialog [role=alert]", "The change may have been applied; a repeat is safe.")
	// The key of the request is kept for a repeat by the same admin, for ten minutes.
	key := func() (key string) {
		p.Eval(`Object.entries(sessionStorage).filter(([name]) => name.includes('"root"')).map(([, value]) => JSON.parse(value).key).join()`, &key)
		return key
	}
	first := key()
	again := func() (second string) {
		p.Click("dialog button >> Continue")
		p.WaitVisible("dialog button:enabled >> Continue")
		return key()
	}
	if second := again(); second != first || first == "" {
		t.Errorf("the repeat has the key %q, want %q", second, first)
	}
	p.Eval(`void (Date.now = (now => () => now() + 600_000)(Date.now))`, nil)
	if second := again(); second == first {
		t.Errorf("the key %q is kept for too long", first)
	}
	p.Offline(false)
	p.Click("dialog button >> Continue")
	p.WaitText("#tiles", "Stock total 40")
	p.WaitGone("dialog")

	p.Click("#actions button >> Restock")
	p.Fill("dialog input[name=quantity]", "-5")
	p.Fill("dialog input[name=reason]", "Reserved for the press")
	p.Click("dialog button >> Continue")
	p.WaitText("dialog", "Take back 5 units")
	p.WaitVisible("dialog button:disabled >> Take back")
	p.Fill("dialog input[name=confirm-name]", "Sneaker")
	p.Click("dialog button >> Take back")
	p.WaitText("#tiles", "Stock total 35")
	p.WaitGone("dialog")
}

// closeInDialog closes the sale; the button is disabled until the name is typed.
func closeInDialog(t *testing.T, p *browser.Page) {
	t.Helper()
	p.Click("#actions button >> Close for good")
	p.WaitVisible("dialog button:disabled >> Close for good")
	p.Fill("dialog input[name=confirm-name]", "sneaker") // another case
	p.WaitVisible("dialog button:disabled >> Close for good")
	p.CheckAxe()
	p.Fill("dialog input[name=confirm-name]", "Sneaker")
	p.Click("dialog button:enabled >> Close for good")
	p.WaitText("#state", "closed")
	p.WaitGone("dialog")
	p.WaitGone("#actions button >> Close for good")
}

// Given an item whose stock is divided, then its page shows the number of buckets and which lock it shows.
func TestDashboard_Buckets(t *testing.T) {
	t.Parallel()
	s := running(t)
	admin := s.token(t, "root", "admin")
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/admin/items", admin,
		map[string]any{"id": "divided", "name": "Divided", "price_minor": 4900, "currency": "EUR", "stock": 10, "buckets": 2}, nil)
	p := dashboardPage(t, s, admin, "/admin/items/divided", browser.Options{})
	p.WaitText("#details", "Buckets of the stock")
	p.WaitText("#tiles", "first bucket")
	p.WaitNoText("#audit", "image_url")
}
