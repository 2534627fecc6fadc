//go:build unix

package pages_test

import (
	"net/http"
	"strings"
	"testing"

	"flashsale/internal/testing/browser"
)

// viewers are the kinds of browsers that every page is tested with.
var viewers = map[string]browser.Options{
	"desktop, light": {},
	"desktop, dark":  {Dark: true},
	"phone, light":   {Mobile: true},
	"phone, dark":    {Mobile: true, Dark: true},
}

// openDocs opens the API reference and waits until Swagger UI shows the routes.
func openDocs(t *testing.T, o browser.Options, fragment string) *browser.Page {
	t.Helper()
	s := running(t)
	p := browser.New(t, o)
	if status := p.Goto(s.URL + "/docs" + fragment); status != 200 {
		t.Fatalf("/docs: status %d", status)
	}
	p.WaitVisible("#swagger-ui .opblock")
	return p
}

// The reference loads without errors, CSP reports and requests to other hosts (each fails the test), has the
// reader's colours, fits the window, and is accessible.
func TestDocs_Loads(t *testing.T) {
	t.Parallel()
	for name, o := range viewers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := openDocs(t, o, "")
			p.WaitText("h1, h2", "Problems")
			var isDark, isWide bool
			p.Eval("getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'", &isDark)
			if isDark != o.Dark {
				t.Errorf("dark colours: %t", isDark)
			}
			if p.Eval("document.documentElement.scrollWidth > innerWidth", &isWide); isWide {
				t.Error("the page is wider than the window")
			}
			// Swagger UI has findings of its own: colours of its style, links in buttons, and lists without a
			// name.
			p.CheckAxe("#swagger-ui")
		})
	}
}

// The anchor of a problem, which is the type of every response with that problem, leads to its explanation,
// although the routes above it are rendered later.
func TestDocs_Anchor(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"desktop, light", "phone, dark"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := openDocs(t, viewers[name], "#sold_out")
			p.WaitTrue(`(() => { const box = document.querySelector("h3#sold_out:target").getBoundingClientRect();
				return box.top >= document.querySelector("header").getBoundingClientRect().bottom && box.top < innerHeight / 2; })()`)
			p.Click(".codes a >> user_limit")
			p.WaitTrue(`location.hash === "#user_limit" && document.querySelector("h3#user_limit").getBoundingClientRect().top < innerHeight / 2`)
		})
	}
}

func TestDocs_WithoutScript(t *testing.T) {
	t.Parallel()
	s := running(t)
	p := browser.New(t, browser.Options{NoScript: true})
	p.Goto(s.URL + "/docs#sold_out")
	p.WaitText("#swagger-ui", "Showing it here needs JavaScript.")
	if got, ok := p.Attribute("#swagger-ui a", "href"); got != "/openapi.yaml" {
		t.Errorf("link to the document: %q, %t", got, ok)
	}
	if texts := p.Texts("section.problem"); len(texts) < 20 {
		t.Errorf("%d problems are shown", len(texts))
	}
	if text := p.Text("section.problem >> sold_out"); !strings.HasPrefix(text, "sold_out 409") {
		t.Errorf("the problem: %q", text)
	}
	p.WaitTrue(`document.querySelector("h3#sold_out").getBoundingClientRect().top < innerHeight / 2`)
	p.WaitGone("#token")
	p.CheckAxe()
}

// A reader gets a token and sends a request from the page.
func TestDocs_TryIt(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/admin/items", s.token(t, "root", "admin"),
		map[string]any{"id": "0-try-it", "name": "A thing to try", "price_minor": 990, "currency": "EUR", "stock": 3, "per_user_limit": 1}, nil)
	p := openDocs(t, browser.Options{}, "")
	p.Fill("#token input[name=sub]", "reader")
	p.Fill("#token select", "buyer")
	p.Click("#token button >> Get a token")
	p.WaitText("#token output", "Requests are sent as buyer reader")
	const operation = "#operations-Items-listItems"
	p.Click(operation + " .opblock-summary-control")
	p.Click(operation + " button >> Try it out")
	p.Click(operation + " button >> Execute")
	p.WaitText(operation+" .live-responses-table .response-col_status", "200")
	p.WaitText(operation+" .live-responses-table .response-col_description", `"0-try-it"`)
}
