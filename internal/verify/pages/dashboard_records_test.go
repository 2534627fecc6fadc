//go:build unix

package pages_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the service's own driver

	"flashsale/internal/testing/browser"
	"flashsale/internal/testing/process"
)

// recordsOf starts a service for tests of records, which may send webhooks to this machine.
func recordsOf(t *testing.T) *service {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: it starts the service and a browser, and -short asks for the quick tests")
	}
	browser.Program(t)
	p := process.Start(t, process.Spec{Binary: process.Build(t), Args: []string{"--webhook-allow", "127.0.0.0/8"}})
	return &service{URL: p.URL(), dir: p.Spec().Dir}
}

// asAdmin returns a page in which an admin has logged in to the dashboard, opened at a path.
func (s *service) asAdmin(t *testing.T, o browser.Options, path string) *browser.Page {
	t.Helper()
	return s.logIn(t, o, s.token(t, "root", "admin"), path)
}

func (s *service) logIn(t *testing.T, o browser.Options, token, path string) *browser.Page {
	t.Helper()
	p := browser.New(t, o)
	p.Goto(s.URL + "/admin/login?next=" + path)
	p.Fill("input[name=token]", token)
	p.Click("main button")
	p.WaitURL(s.URL + path) // the form's address contains the path, too
	return p
}

// newUnpaidItem creates an item with a price of EUR 49.00 and 15 minutes to pay.
func (s *service) newUnpaidItem(t *testing.T, id string, stock int) {
	t.Helper()
	s.newItem(t, id, map[string]any{"name": id, "price_minor": 4900, "stock": stock, "per_user_limit": 10, "payment_window_seconds": 900})
}

// pay reports a payment and wants a status.
func (s *service) pay(t *testing.T, want int, order, reference string, minor int) {
	t.Helper()
	s.call(t, want, http.MethodPost, "/v1/orders/"+order+"/payment", s.token(t, "shop", "service"),
		map[string]any{"reference": reference, "amount_minor": minor, "currency": "EUR"}, nil)
}

// cutTables lists the tables with a cell that is still out of sight, or partly, when a reader has scrolled the region of the
// table to its right end.
const cutTables = `[...document.querySelectorAll("table")].filter((table) => table.checkVisibility()).filter((table) => {
  const region = table.closest(".scroll") || document.body;
  if (/auto|scroll/.test(getComputedStyle(region).overflowX)) region.scrollLeft = region.scrollWidth;
  const right = 1 + Math.min(innerWidth, region.getBoundingClientRect().right);
  const cut = [...table.querySelectorAll("th, td")].some((cell) => cell.checkVisibility() && cell.getBoundingClientRect().right > right);
  region.scrollLeft = 0;
  return cut;
}).map((table) => table.closest("[aria-label]")?.getAttribute("aria-label") || table.innerText)`

// fits fails the test if the page is wider than the window, or if a table is cut off.
func fits(t *testing.T, p *browser.Page) {
	t.Helper()
	p.WaitTrue("document.documentElement.scrollWidth <= innerWidth")
	var cut []string
	if p.Eval(cutTables, &cut); len(cut) > 0 {
		t.Errorf("%s cuts off the tables %q", p.URL(), cut)
	}
}

// confirmName types the name that the open dialog asks for, and presses its button.
func confirmName(p *browser.Page, name, button string) {
	p.Fill("dialog input[name=confirm-name]", name)
	p.Click("dialog button >> " + button)
	p.WaitGone("dialog")
}

// Given orders of several buyers, when an admin searches for a buyer's id, an order's id and an unknown id, then
// the buyer's orders, the order, and an empty list are shown, and the address keeps the search.
func TestDashboardRecords_Search(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	s.newUnpaidItem(t, "boots", 100)
	var last string
	for i := range 60 {
		last = s.buy(t, "boots", fmt.Sprintf("walker-%d", i))
	}
	p := s.asAdmin(t, browser.Options{}, "/admin/orders")
	p.WaitCount("#orders tbody tr", 50)
	if status := p.NewTab().Goto(s.URL + "/admin/login"); status != http.StatusOK {
		t.Errorf("the login form of an admin who is logged in: status %d", status)
	}
	p.Click("#orders button >> Load more")
	p.WaitCount("#orders tbody tr", 60)

	p.Fill("input[name=user_id]", "walker-7")
	p.Press("Enter")
	p.WaitURL("/admin/orders?user_id=walker-7")
	p.WaitCount("#orders tbody tr", 1)
	p.WaitText("#orders tbody", "walker-7")
	p.Reload()
	p.WaitCount("#orders tbody tr", 1)
	if got := p.Value("input[name=user_id]"); got != "walker-7" {
		t.Errorf("the field has %q after a reload", got)
	}
	p.Fill("select[name=status]", "paid")
	p.Click("#search button >> Search")
	p.WaitText("#orders", "No orders match.")
	p.Back()
	p.WaitCount("#orders tbody tr", 1)

	p.Click("a.button >> Clear")
	p.WaitCount("#orders tbody tr", 50)
	p.Fill("input[name=user_id]", " "+strings.ToUpper(last)+" ")
	p.Press("Enter")
	p.WaitURL("/admin/orders/" + last)
	p.WaitVisible(".timeline")

	p.Expect("status of 404")
	p.Goto(s.URL + "/admin/orders")
	p.Fill("input[name=user_id]", "01a20883-61c7-7620-947c-53397bcc0009")
	p.Press("Enter")
	p.WaitText("#orders", "No orders match.")
	p.Goto(s.URL + "/admin/orders/01a20883-61c7-7620-947c-53397bcc0009")
	p.WaitText("#order", "There is no order")
}

// Given a paid order and a webhook, when an admin opens the order, then its timeline shows the request, the
// commit, the payment and the webhooks in order; a recorded refund and the return of the units appear in it.
func TestDashboardRecords_Order(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	r := newReceiver(t)
	s.newWebhook(t, r.URL)
	s.newUnpaidItem(t, "cap", 10)
	order := s.buy(t, "cap", "alice")
	s.pay(t, http.StatusOK, order, "psp-1", 4900)
	s.pay(t, http.StatusConflict, order, "psp-2", 4900)
	r.wait(t, "order.paid")

	p := s.asAdmin(t, browser.Options{}, "/admin/orders/"+order)
	p.WaitText(".timeline [data-kind=webhook] >> order.paid", "delivered")
	var kinds []string
	p.Eval(`[...document.querySelectorAll(".timeline > li")].map((e) => e.dataset.kind).filter((kind) => kind !== "webhook")`, &kinds)
	if got := strings.Join(kinds, " "); !strings.HasPrefix(got, "requested queued committed payment paid") {
		t.Errorf("the timeline has %s", got)
	}
	p.WaitText(".timeline [data-kind=requested]", "start")
	p.WaitText(".timeline [data-kind=webhook] >> order.confirmed", "delivered")
	p.WaitText(".facts", "EUR 49.00")

	p.Click("main button >> Refund order")
	p.Click("dialog button >> Record the refund")
	p.WaitText("dialog .error", "This field is required.")
	p.Fill("dialog select[name=restock]", "yes")
	p.Click("dialog button >> Record the refund")
	p.WaitGone("dialog")
	p.WaitText(".timeline [data-kind=refunded]", "the units return to the stock")
	p.WaitText(".timeline [data-kind=audit] >> order.refund", "by root")
	p.WaitText(".timeline [data-kind=release]", "back in the stock")

	p.Click("main button >> Mark as refunded")
	p.Click("dialog button >> Mark as refunded")
	p.WaitGone("dialog")
	p.WaitText(".timeline [data-kind=payment_refunded]", "psp-2")
	p.WaitText("#status", "EUR 49.00 is marked as refunded.")
}

// Given a confirmed order, when an admin cancels it, then the item's id has to be typed first; if the service does
// not answer, then the dialog says so and stays usable.
func TestDashboardRecords_Cancel(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	s.newUnpaidItem(t, "scarf", 10)
	order := s.buy(t, "scarf", "alice")
	p := s.asAdmin(t, browser.Options{}, "/admin/orders/"+order)
	p.Click("main button >> Cancel order")
	p.Fill("dialog input[name=confirm-name]", "scarves")
	p.WaitTrue(`document.querySelector("dialog .danger").disabled`)
	p.Fill("dialog input[name=confirm-name]", "scarf")
	p.Block("http://*:*/v1/orders/*/cancel")
	p.Click("dialog button >> Cancel the order")
	p.WaitText("dialog [role=alert]", "No answer")
	p.Block()
	p.Click("dialog button >> Cancel the order")
	p.WaitGone("dialog")
	p.WaitText("main .badge", "cancelled")
	p.WaitText(".timeline [data-kind=cancelled]", "by an admin")
	p.WaitGone("main button >> Cancel order")

	// The audit log shows it, with what has changed.
	p.Click(".facts a >> Changes of this order")
	p.WaitURL("/admin/audit?order_id=" + order)
	p.WaitText("#audit tbody", "order.cancel")
	p.WaitText("#audit .changes", "confirmed → after cancelled")
	p.Fill("input[name=order_id]", "")
	p.Fill("input[name=item_id]", "scarf")
	p.Click("#filter button")
	p.WaitCount("#audit tbody tr", 2)
	p.WaitText("#audit tbody", "item.create")
}

// Given amounts that paid no order, when an admin opens the payments, then these come first; one is found by its
// reference, and marked as refunded.
func TestDashboardRecords_Payments(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	s.newUnpaidItem(t, "glove", 10)
	first, second := s.buy(t, "glove", "alice"), s.buy(t, "glove", "bob")
	s.pay(t, http.StatusOK, first, "psp-good", 4900)
	s.pay(t, http.StatusConflict, second, "psp-short", 4800)
	s.pay(t, http.StatusConflict, first, "psp-twice", 4900)
	p := s.asAdmin(t, browser.Options{}, "/admin/payments")
	p.WaitCount("#due tbody tr", 2)
	p.WaitCount("#payments tbody tr", 3)
	p.Fill("input[name=reference]", "psp-short")
	p.Press("Enter")
	p.WaitURL("reference=psp-short")
	p.WaitCount("#payments tbody tr", 1)
	p.WaitGone("#due")
	p.WaitText("#payments tbody", "mismatch")
	p.Click("#payments button >> Mark as refunded")
	p.Click("dialog button >> Mark as refunded")
	p.WaitGone("dialog")
	p.WaitText("#payments tbody", "received as mismatch")
	p.Goto(s.URL + "/admin/payments?outcome=duplicate")
	p.WaitCount("#payments tbody tr", 1)
	p.WaitText("#payments tbody", "psp-twice")
	p.Goto(s.URL + "/admin/payments?reference=unknown")
	p.WaitText("#payments", "No amounts match.")
}

// Given items that balance, when an admin compares them, then the report shows each item's equation; a repair asks
// for the item's id.
func TestDashboardRecords_Reconcile(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	s.newUnpaidItem(t, "belt", 10)
	s.pay(t, http.StatusOK, s.buy(t, "belt", "alice"), "psp-1", 4900)
	s.buy(t, "belt", "bob")
	p := s.asAdmin(t, browser.Options{}, "/admin/reconcile")
	p.Click("#compare")
	p.WaitText("#report", "Balanced.")
	p.WaitText("#report tbody tr >> belt", "balanced 10 + 0 = 8 + 1 + 1")
	p.Fill("input[name=item_id]", "belt")
	p.Click("#repair")
	confirmName(p, "belt", "Repair")
	p.WaitText("#report", "1 item examined")
	p.WaitText("#report", "Balanced.")
	p.Expect("status of 404")
	p.Fill("input[name=item_id]", "no-such-item")
	p.Click("#compare")
	p.WaitText("#report [role=alert]", "item_not_found")
}

// Given an item whose stock is divided, when an admin compares, then each bucket has a row with its number, which
// leads to the item.
func TestDashboardRecords_ReconcileBuckets(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	s.call(t, http.StatusCreated, "POST", "/v1/admin/items", s.token(t, "admin", "admin"), map[string]any{
		"id": "cord", "name": "Cord", "price_minor": 100, "currency": "EUR", "stock": 9, "buckets": 3,
	}, nil)
	p := s.asAdmin(t, browser.Options{}, "/admin/reconcile")
	p.Fill("input[name=item_id]", "cord")
	p.Click("#compare")
	p.WaitText("#report", "1 item examined")
	p.WaitCount("#report tbody th", 3)
	if got, want := p.Texts("#report tbody th"), []string{"cord bucket 0", "cord bucket 1", "cord bucket 2"}; !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
	p.WaitCount("#report tbody th a[href$='/cord']", 3)
}

// Given a count in the database that is wrong, when an admin compares and repairs, then the difference is shown,
// and the report of the repair says that it is repaired; the audit log shows the repair.
func TestDashboardRecords_Repair(t *testing.T) {
	t.Parallel()
	s := recordsOf(t)
	s.newUnpaidItem(t, "lace", 10)
	s.buy(t, "lace", "alice")
	db, err := sql.Open("sqlite3", filepath.Join(s.dir, "flashsale-data", "flashsale.db")+"?_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.ExecContext(t.Context(), "UPDATE items SET sold = sold + 3 WHERE id = 'lace'"); err != nil {
		t.Fatal(err)
	}
	for name, o := range viewers {
		p := s.asAdmin(t, o, "/admin/reconcile")
		p.Click("#compare")
		p.WaitText("#report [role=status]", "Differences remain.")
		p.WaitText("#report tbody tr:first-child", "differs")
		p.WaitText("#report .drift", "off by 3")
		p.CheckAxe()
		fits(t, p)
		picture(p, "differs-"+name)
		p.Close()
	}
	p := s.asAdmin(t, browser.Options{}, "/admin/reconcile")
	p.Click("#repair")
	p.WaitText("dialog", "Type repair all to confirm")
	confirmName(p, "repair all", "Repair")
	p.WaitText("#report [role=status]", "Balanced.")
	p.WaitText("#report .drift", "repaired")
	p.Goto(s.URL + "/admin/audit?item_id=lace")
	p.WaitText("#audit tbody", "reconcile.repair")
}
