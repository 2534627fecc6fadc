//go:build unix

package pages_test

import (
	"fmt"
	"net/http"
	"testing"

	"flashsale/internal/testing/browser"
)

// dashboardPage opens a page of the dashboard with an admin's session.
func dashboardPage(t *testing.T, s *service, token, path string, o browser.Options) *browser.Page {
	t.Helper()
	p := browser.New(t, o)
	p.Goto(s.URL + "/admin/login?next=" + path)
	p.Fill("input[name=token]", token)
	p.Click("main button >> Log in")
	p.WaitURL(s.URL + path) // the form's address contains the path, too
	return p
}

// createSale creates an item through the API.
func createSale(t *testing.T, s *service, admin, id string, stock int) {
	t.Helper()
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/admin/items", admin,
		map[string]any{"id": id, "name": "Sale of " + id, "price_minor": 4900, "currency": "EUR", "stock": stock}, nil)
}

// purchases buys one unit for each of n buyers through the API.
func purchases(t *testing.T, s *service, item string, n int) {
	t.Helper()
	for i := range n {
		buyer := fmt.Sprintf("%s-buyer-%d", item, i)
		s.call(t, http.StatusCreated, http.MethodPost, "/v1/items/"+item+"/orders", s.token(t, buyer, "buyer"),
			map[string]int{"quantity": 1}, nil, "Idempotency-Key", buyer, "Prefer", "wait=10")
	}
}

// Given the login form, when the token is malformed or a buyer's, then it is refused on the form; an
// admin's token opens the page that the admin asked for, and after logging out no page opens.
func TestDashboard_Login(t *testing.T) {
	t.Parallel()
	s := running(t)
	p := browser.New(t, browser.Options{})
	p.Expect("status of 403", "status of 401")
	p.Goto(s.URL + "/admin/items")
	p.WaitURL("/admin/login?next=")
	for _, token := range []string{"not-a-token", s.token(t, "alice", "buyer")} {
		p.Goto(s.URL + "/admin/login?next=/admin/items")
		p.Fill("input[name=token]", token)
		p.Click("main button >> Log in")
		p.WaitTrue("location.search === '' && document.readyState === 'complete'")
		p.WaitVisible("[role=alert]")
		p.CheckAxe()
	}
	p.Fill("input[name=token]", s.token(t, "root", "admin"))
	p.Click("main button >> Log in")
	p.WaitURL("/admin/items")
	if current := p.Text("nav a[aria-current=page]"); current != "Items" {
		t.Errorf("the current page is %q", current)
	}
	p.WaitVisible("header .badge >> Development mode")
	p.Click("header button >> Log out")
	p.WaitURL("/admin/login")
	p.Goto(s.URL + "/admin")
	p.WaitURL("/admin/login")
}

// Given an item, when another admin changes it while a form is open, then the form's change is not saved;
// both values are shown, and the reader may save over the newer one.
func TestDashboard_Conflict(t *testing.T) {
	t.Parallel()
	s := running(t)
	admin := s.token(t, "root", "admin")
	createSale(t, s, admin, "conflict", 5)
	p := dashboardPage(t, s, admin, "/admin/items/conflict", browser.Options{})
	p.Expect("status of 412", "status of 422")
	p.Click("#actions button >> Change")
	p.Fill("dialog input[name=price_minor]", "39.00")
	s.call(t, http.StatusOK, http.MethodPatch, "/v1/admin/items/conflict", admin, map[string]int{"price_minor": 2900}, nil, "If-Match", `"1"`)
	p.Click("dialog button >> Save")
	p.WaitText("dialog", "The item has changed in the meantime")
	p.WaitText("dialog tbody", "price EUR 29.00 EUR 39.00")
	p.CheckAxe()
	p.Click("dialog button >> Overwrite with my change")
	p.WaitText("#details", "EUR 39.00")
	p.WaitGone("dialog")
	p.WaitText("#audit", "price_minor: 2900")

	// A refusal is shown at the field that it names.
	p.Click("#actions button >> Change")
	p.Fill("dialog input[name=image_url]", "https://elsewhere.example/a.jpg")
	p.Click("dialog button >> Save")
	p.WaitVisible("dialog input[name=image_url][aria-invalid=true]")
	p.WaitText("dialog", "image_url must be a path on the shop's own address")
	p.Press("Escape")
	p.WaitGone("dialog")
}

// Given a service that does not answer in time, then a request ends; only one that is harmless when repeated invites that.
func TestDashboard_Timeout(t *testing.T) {
	t.Parallel()
	s := running(t)
	p := dashboardPage(t, s, s.token(t, "root", "admin"), "/admin/items", browser.Options{})
	p.Expect("status of 404") // an answer that comes after the request has ended
	for request, want := range map[string]string{
		`"GET", "/v1/admin/items", {timeout: 0}`:                       "The service did not answer in time. Check the connection, then retry.",
		`"POST", "/v1/admin/items/none/pause", {timeout: 0}`:           "The service did not answer in time. The change may have been applied: reload the page and check before you repeat it.",
		`"POST", "/v1/admin/items/none/pause", {timeout: 0, key: "k"}`: "The service did not answer in time. The change may have been applied; a repeat is safe.",
	} {
		var got string
		p.Eval(`import(new URL("admin-api.js", document.querySelector("script[src]").src)).then(({ api }) => api(`+request+`)).then(() => "", (error) => error.message)`, &got)
		if got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

// Every page of items and the overview is usable on a phone and in both colour schemes: nothing is wider
// than the screen, and no check of accessibility fails.
func TestDashboard_Views(t *testing.T) {
	t.Parallel()
	s := running(t)
	admin := s.token(t, "root", "admin")
	createSale(t, s, admin, "views", 5)
	s.call(t, http.StatusOK, http.MethodPost, "/v1/admin/items/views/pause", admin, nil, nil)
	for name, o := range map[string]browser.Options{
		"light": {}, "dark": {Dark: true}, "phone": {Width: 360, Height: 740, Mobile: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := dashboardPage(t, s, admin, "/admin", o)
			check := func() {
				t.Helper()
				p.CheckAxe()
				fits(t, p)
			}
			p.WaitText("#stream", "Live")
			p.WaitText("#paused", "Sale of views")
			p.WaitText("#facts", "embedded")
			p.Click("#chart-orders summary")
			check()
			if o.Mobile {
				p.Click("button.menu")
				p.WaitVisible("nav a >> Payments")
				check()
			}
			p.Goto(s.URL + "/admin/items?state=paused")
			p.WaitText("#list", "Sale of views")
			check()
			p.Click("#create")
			p.WaitVisible("dialog input[name=id]")
			check()
			p.Goto(s.URL + "/admin/items/views")
			p.WaitText("#stream", "Live")
			p.WaitText("#ledger", "Balanced.")
			p.WaitText("#audit", "item.pause")
			check()
			p.Eval(`document.querySelector("#item").setAttribute("aria-busy", "true")`, nil)
			check() // a part that loads stays legible
		})
	}
}
