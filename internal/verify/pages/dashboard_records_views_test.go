//go:build unix

package pages_test

import (
	"flag"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"flashsale/internal/testing/browser"
)

// pictureDir is where the tests of the pages about records write what they see.
var pictureDir = flag.String("pictures", "", "write a screenshot of each view of the dashboard's records to this folder, which must exist")

// recordPages are the pages about records, each with what is visible once it is loaded.
func recordPages(order, webhook string) map[string]string {
	return map[string]string{
		"/admin/orders":                "#orders tbody tr",
		"/admin/orders?user_id=none":   "#orders .muted >> No orders match.",
		"/admin/orders/" + order:       ".timeline [data-kind=payment]",
		"/admin/payments":              "#due tbody tr",
		"/admin/dead":                  "#overview .empty",
		"/admin/reconcile":             "#compare:enabled",
		"/admin/webhooks":              "#webhooks tbody tr",
		"/admin/webhooks/" + webhook:   "#deliveries tbody tr",
		"/admin/audit":                 "#audit tbody tr",
		"/admin/audit?item_id=unknown": "#audit .muted >> No entries match.",
	}
}

// Given records with short and with very long names, when an admin opens each page in a window or on a phone, in
// light or in dark colours, then nothing is wider than the window and accessibility has no serious finding.
func TestDashboardRecords_Views(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	order, webhook := s.fill(t)
	for name, o := range viewers {
		t.Run(name, func(t *testing.T) {
			p := s.asAdmin(t, o, "/admin/orders")
			for path, visible := range recordPages(order, webhook) {
				p.Goto(s.URL + path)
				p.WaitVisible(visible)
				p.CheckAxe()
				fits(t, p)
				picture(p, name+path)
			}
			views(t, p, s.URL, name, order)
		})
	}
}

// views checks what appears only after a click: a dialog, and a report.
func views(t *testing.T, p *browser.Page, address, name, order string) {
	t.Helper()
	p.Goto(address + "/admin/orders/" + order)
	p.Click("main button >> Mark as refunded")
	p.WaitVisible("dialog")
	p.CheckAxe()
	picture(p, name+"/dialog")
	p.Press("Escape")
	p.WaitGone("dialog")
	p.Goto(address + "/admin/reconcile")
	p.Click("#compare")
	p.WaitVisible("#report tbody tr")
	p.CheckAxe()
	fits(t, p)
	picture(p, name+"/report")
}

// fill makes records, and returns the ids of an order and of a webhook.
func (s *service) fill(t *testing.T) (order, webhook string) {
	t.Helper()
	item := "long-" + strings.Repeat("name-", 11) + "x"
	webhook = s.newWebhook(t, "http://127.0.0.1:1/"+strings.Repeat("long-path/", 20))
	s.newUnpaidItem(t, item, 10)
	s.buy(t, item, "short")
	order = s.buy(t, item, strings.Repeat("long.buyer", 12))
	s.pay(t, http.StatusOK, order, "psp-"+strings.Repeat("0", 200), 4900)
	s.pay(t, http.StatusConflict, order, "psp-2", 4900)
	return order, webhook
}

// picture writes a screenshot to the folder of -pictures.
func picture(p *browser.Page, name string) {
	if *pictureDir != "" {
		p.Screenshot(filepath.Join(*pictureDir, strings.NewReplacer("/", "_", " ", "", "?", "_", ",", "-").Replace(name)+".png"))
	}
}
