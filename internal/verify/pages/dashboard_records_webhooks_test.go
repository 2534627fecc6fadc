//go:build unix

package pages_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/browser"
)

// receiver is a server of the shop that receives webhooks.
type receiver struct {
	*httptest.Server
	events chan string // the types of the events that it has received
	fails  atomic.Bool // it answers with status 500
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{events: make(chan string, 1000)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var event struct{ Type string }
		body, err := io.ReadAll(req.Body)
		if err == nil {
			err = json.Unmarshal(body, &event)
		}
		if err != nil {
			t.Errorf("the event %q: %v", body, err)
		}
		if r.fails.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		r.events <- event.Type
	}))
	t.Cleanup(r.Close)
	return r
}

// wait waits for an event.
func (r *receiver) wait(t *testing.T, kind string) {
	t.Helper()
	ctx := await.Context(t)
	for {
		select {
		case got := <-r.events:
			if got == kind {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no event %s has arrived", kind)
		}
	}
}

// newWebhook creates a webhook for all events and returns its id.
func (s *service) newWebhook(t *testing.T, address string) string {
	t.Helper()
	var created struct{ ID string }
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/admin/webhooks", s.token(t, "root", "admin"), map[string]string{"url": address}, &created)
	return created.ID
}

// Given a receiver that fails, when an admin creates a webhook and sends a test event, then the secret is shown
// once and the delivery with its error; once the receiver works, the event is delivered again, and the audit log
// has every step.
func TestDashboardRecords_Webhook(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	r := newReceiver(t)
	r.fails.Store(true)
	p := s.asAdmin(t, browser.Options{}, "/admin/webhooks")
	p.WaitVisible("#webhooks tbody") // that of the mock payment service
	p.Click("#create")
	p.Expect("status of 422")
	p.Fill("dialog input[name=url]", "https://10.0.0.1/")
	p.Click("dialog button >> Create")
	p.WaitVisible("dialog .error, dialog [role=alert]")
	p.Fill("dialog input[name=url]", r.URL+"/hooks")
	p.Fill("dialog input[name=description]", "Accounting")
	p.Block("http://*:*/v1/admin/webhooks")
	p.Click("dialog button >> Create")
	p.WaitText("dialog [role=alert]", "Outcome unknown The webhook may have been created.")
	p.Block()
	p.Click("dialog button >> Create")
	p.WaitText("dialog h2", "Signing secret")
	if secret := p.Value(".secret input"); !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("the secret is %q", secret)
	}
	p.Press("Escape")
	p.Click("dialog button >> I have stored it")
	p.WaitGone("dialog")
	p.WaitText("#webhooks tbody", "Accounting")
	p.Click("#webhooks a >> " + r.URL)
	p.WaitText("#deliveries", "No deliveries match.")

	p.Click("main button >> Send test event")
	r.wait(t, "webhook.test")
	await.True(t, "the failed attempt", func() bool {
		p.Click("#filter button")
		p.WaitTrue(`!document.querySelector("#deliveries").hasAttribute("aria-busy")`)
		return strings.Contains(p.Text("#deliveries"), "answered 500")
	})
	p.WaitText("#deliveries tbody .badge", "pending")
	r.fails.Store(false)
	p.Click("#deliveries button >> Deliver again")
	r.wait(t, "webhook.test")
	await.True(t, "the delivery", func() bool {
		p.Click("#filter button")
		p.WaitTrue(`!document.querySelector("#deliveries").hasAttribute("aria-busy")`)
		return p.Text("#deliveries tbody .badge") == "delivered"
	})
	p.Fill("#filter select", "dead")
	p.WaitText("#deliveries", "No deliveries match.")
	p.WaitURL("status=dead")
	changeWebhook(t, p, r)

	p.Goto(s.URL + "/admin/audit")
	for _, action := range []string{"webhook.create", "webhook.test", "webhook.redeliver", "webhook.change", "webhook.rotate", "webhook.delete"} {
		p.WaitText("#audit tbody", action)
	}
}

// changeWebhook changes the webhook of the page, replaces its secret and deletes it.
func changeWebhook(t *testing.T, p *browser.Page, r *receiver) {
	t.Helper()
	p.Fill("#settings input[name=description]", "Accounting and stock")
	p.Click("#settings label >> order.expired")
	p.Click("#settings button >> Save changes")
	p.WaitText("#status", "The changes are saved.")
	p.Click("#settings button >> Disable")
	p.WaitText("#settings .badge", "disabled")
	p.Reload()
	p.WaitText("#settings .badge", "disabled")
	if got := p.Value("#settings input[name=description]"); got != "Accounting and stock" {
		t.Errorf("the description is %q", got)
	}
	p.WaitTrue(`!document.querySelector("#settings input[name='event:order.expired']").checked`)
	p.Block("http://*:*/v1/admin/webhooks/*/rotate")
	p.Click("#settings button >> Replace secret")
	p.Click("dialog button >> Replace the secret")
	p.WaitText("#settings [role=alert]", "Outcome unknown. The secret may have been replaced. Do not repeat this yet")
	p.WaitGone("dialog")
	p.CheckAxe()
	p.Block()
	p.Click("#settings button >> Replace secret")
	p.Click("dialog button >> Replace the secret")
	p.WaitText("dialog h2", "Signing secret")
	p.Click("dialog button >> I have stored it")
	p.WaitGone("#settings [role=alert]") // the settings are shown again
	p.WaitText("#settings .facts", "Old secret until")
	address, err := url.Parse(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	p.Click("#settings button >> Delete")
	confirmName(p, address.Host, "Delete")
	p.WaitTrue("location.pathname === '/admin/webhooks'")
	p.WaitText("#status", "The webhook is deleted.")
	p.WaitVisible("#webhooks tbody")
	p.WaitNoText("#webhooks", "Accounting")
}
