package pages

import (
	"bytes"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"flashsale/catalog"
	"flashsale/order"
)

var testNow = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func testFrame(code, buyer string) Frame {
	return Frame{Language: LanguageNamed(code), Path: "/items/thing", Query: url.Values{}, Buyer: buyer}
}

func testItem(change func(*catalog.Item)) Item {
	i := catalog.Item{
		ID: "thing", Name: `A "thing" <b>`, Description: "first\nsecond", PriceMinor: 12900, Currency: "EUR",
		StockInitial: 10, StockTotal: 10, StockLeft: 4, PerUserLimit: 1, OpensAt: testNow.Add(-time.Hour), Control: catalog.ControlOpen, Version: 1,
	}
	if change != nil {
		change(&i)
	}
	return Item{Item: i, State: i.State(testNow), Image: "/items/thing/image.svg", Now: testNow}
}

// render returns a page as text.
func render(t *testing.T, name string, page any) string {
	t.Helper()
	var b bytes.Buffer
	if err := Render(&b, name, page); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var (
	inline = regexp.MustCompile(`(?i)<[^>]+\s(style|on[a-z]+)\s*=`)
	script = regexp.MustCompile(`<script [^>]*>`)
)

// wantPage checks what a page has and has not, and what is true of all pages.
func wantPage(t *testing.T, html string, has, hasNot []string) {
	t.Helper()
	for _, part := range has {
		if !strings.Contains(html, part) {
			t.Errorf("the page does not have %s", part)
		}
	}
	for _, part := range hasNot {
		if strings.Contains(html, part) {
			t.Errorf("the page has %s", part)
		}
	}
	if m := inline.FindString(html); m != "" {
		t.Errorf("the policy forbids %s", m)
	}
	for _, m := range script.FindAllString(html, -1) {
		if !strings.Contains(m, `src="/assets/`) && !strings.Contains(m, `type="application/json"`) {
			t.Errorf("the policy forbids %s", m)
		}
	}
	if strings.Contains(html, "%!") || strings.Contains(html, "ZgotmplZ") {
		t.Error("a text has the wrong arguments")
	}
	if n := strings.Count(html, "<h1"); n != 1 {
		t.Errorf("%d first headings", n)
	}
}

// Given an item in each state, then its page has the price, the state, and a button that fits.
func TestItemPage_States(t *testing.T) {
	t.Parallel()
	const enabled, disabled = `id="press">`, `id="press" disabled>`
	for state, tc := range map[catalog.State]struct {
		change func(*catalog.Item)
		has    []string
	}{
		catalog.StateOpen:      {nil, []string{enabled + "Buy<", "4 of 10 left", `value="4"`, "No closing time"}},
		catalog.StateScheduled: {func(i *catalog.Item) { i.OpensAt = testNow.Add(time.Minute) }, []string{enabled + "Buy<", "Opens soon", "works from the opening time on"}},
		catalog.StatePaused:    {func(i *catalog.Item) { i.Control = catalog.ControlPaused }, []string{disabled + "Paused<"}},
		catalog.StateSoldOut:   {func(i *catalog.Item) { i.StockLeft = -1 }, []string{disabled + "Sold out<", "None left", `value="0"`}},
		catalog.StateClosed:    {func(i *catalog.Item) { i.ClosesAt = testNow }, []string{disabled + "Sale ended<", `data-closes="2030-01-02T03:04:05.000Z"`}},
	} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			item := testItem(tc.change)
			if item.State != state {
				t.Fatalf("the item is %s", item.State)
			}
			page := ItemPage{Frame: testFrame("en", "alice"), Item: item, Key: "k-1", Quantity: 1}
			wantPage(t, render(t, "shop/item", &page), append(tc.has,
				`data-state="`+string(state)+`"`, `<data class="price big" value="129.00" data-currency="EUR">EUR 129.00</data>`,
				`name="key" value="k-1"`, `A &#34;thing&#34; &lt;b&gt;`, `<html lang="en">`), []string{">Log in to buy<", `role="alert"`})
			page.Frame = testFrame("zh", "alice")
			wantPage(t, render(t, "shop/item", &page), []string{`<html lang="zh">`, LanguageNamed("zh").T("state." + string(state))}, []string{"Opens", "Sold out<"})
			page.Frame = testFrame("en", "")
			login, unsold := `href="/login?next=%2Fitems%2Fthing">Log in to buy<`, `id="unsold" disabled hidden><`
			if !item.Buyable() {
				login, unsold = `href="/login?next=%2Fitems%2Fthing" hidden>`, `id="unsold" disabled>`+LanguageNamed("en").T("buy."+string(state))+"<"
			}
			wantPage(t, render(t, "shop/item", &page), []string{login, unsold}, []string{`id="press"`})
		})
	}
}

// Given a sale that an admin closed, then its page does not promise that it has no closing time.
func TestItemPage_ClosedEarly(t *testing.T) {
	t.Parallel()
	page := ItemPage{Frame: testFrame("en", "alice"), Item: testItem(func(i *catalog.Item) { i.Control = catalog.ControlClosed }), Key: "k-1", Quantity: 1}
	wantPage(t, render(t, "shop/item", &page), []string{"Sale ended<", "Opens<"}, []string{"No closing time", "Closes<"})
}

// Given a limit of more than one unit, then the buyer chooses a quantity; and after a refusal the same
// form is sent again.
func TestItemPage_QuantityAndRefusal(t *testing.T) {
	t.Parallel()
	page := ItemPage{
		Frame: testFrame("en", "alice"), Key: "k-1", Quantity: 2,
		Item:   testItem(func(i *catalog.Item) { i.PerUserLimit, i.PaymentWindow = 3, 10*time.Minute }),
		Notice: &Notice{Code: "overloaded", Title: "Busy", Text: "Wait.", RetryAfter: 5, RequestID: "r-1"},
	}
	wantPage(t, render(t, "shop/item", &page), []string{
		`type="number" name="quantity" min="1" max="3" value="2"`, "Try again<", `class="notice warn" role="alert" data-code="overloaded"`,
		"You can try again in 5 s.", `value="k-1"`, "At most 3 per buyer. Pay within 10 min.",
	}, nil)
}

// Given an order in each state, then its page says what has happened, what comes, and what can be done.
func TestOrderPage_States(t *testing.T) {
	t.Parallel()
	expires := testNow.Add(10 * time.Minute)
	const pay, cancel, noCancel = `action="/orders/o-1/pay"`, `action="/orders/o-1/cancel"><input`, `action="/orders/o-1/cancel" hidden><input`
	for name, tc := range map[string]struct {
		order       order.Order
		has, hasNot []string
	}{
		"queued":          {order.Order{Status: order.StatusQueued}, []string{"Being confirmed", cancel, `<div id="due" hidden>`}, nil},
		"confirmed, due":  {order.Order{Status: order.StatusConfirmed, ExpiresAt: expires}, []string{pay, cancel, `<div id="due">`, "reserved for you"}, nil},
		"confirmed, late": {order.Order{Status: order.StatusConfirmed, ExpiresAt: testNow}, []string{`<div id="due" hidden>`, cancel}, nil},
		"confirmed":       {order.Order{Status: order.StatusConfirmed}, []string{"No payment is required", cancel}, []string{">Paid<"}},
		"paid":            {order.Order{Status: order.StatusPaid, PaidAt: testNow}, []string{"Thank you", noCancel}, nil},
		"refunded":        {order.Order{Status: order.StatusRefunded, PaidAt: testNow}, []string{"was refunded.", noCancel}, nil},
		"restocked":       {order.Order{Status: order.StatusRefunded, Restocked: true}, []string{"back on sale"}, nil},
		"cancelled":       {order.Order{Status: order.StatusCancelled, Reason: order.ReasonBuyer}, []string{"You cancelled the order.", noCancel}, nil},
		"by the shop":     {order.Order{Status: order.StatusCancelled, Reason: order.ReasonAdmin}, []string{"The shop cancelled the order."}, nil},
		"expired":         {order.Order{Status: order.StatusExpired, Reason: order.ReasonUnpaid}, []string{"not paid in time", noCancel}, nil},
		"rejected":        {order.Order{Status: order.StatusRejected, Reason: order.ReasonSoldOut}, []string{"before the order could be confirmed", noCancel}, []string{">Confirmed<"}},
		"other reason":    {order.Order{Status: order.StatusRejected, Reason: "new"}, []string{"could not be placed"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			item := testItem(func(i *catalog.Item) { i.PaymentWindow = time.Minute })
			o := tc.order
			o.ID, o.ItemID, o.UserID, o.Quantity, o.UnitPriceMinor, o.Currency, o.CreatedAt = "o-1", "thing", "alice", 2, 12900, "EUR", testNow
			page := OrderPage{Frame: testFrame("en", "alice"), Order: o, Item: &item, CanPay: true, Now: testNow}
			html := render(t, "shop/order", &page)
			wantPage(t, html, append(tc.has, "EUR 258.00", "2 ×"), tc.hasNot)
			if n := strings.Count(html, `aria-current="step"`); n != 1 {
				t.Errorf("%d steps are current", n)
			}
			page.Item, page.CanPay, page.Frame = nil, false, testFrame("zh", "alice")
			wantPage(t, render(t, "shop/order", &page), []string{"/items/thing/image.svg", ">thing</a>"}, []string{pay, "Confirmed"})
		})
	}
}

// Given an order that waits for its payment, when the buyer has asked to pay or was refused, then the page
// says so.
func TestOrderPage_Notices(t *testing.T) {
	t.Parallel()
	page := OrderPage{Frame: testFrame("en", "alice"), Now: testNow, CanPay: true, Paying: true,
		Order: order.Order{ID: "o-1", ItemID: "thing", Status: order.StatusConfirmed, Currency: "EUR", ExpiresAt: testNow.Add(time.Minute)}}
	wantPage(t, render(t, "shop/order", &page), []string{`id="paying"`}, nil)
	page.Notice = &Notice{Code: "order_final", Title: "Closed", Text: "It is closed."}
	wantPage(t, render(t, "shop/order", &page), []string{`class="notice bad"`, "It is closed."}, []string{`id="paying"`})
}

// Given lists, empty or not, then they have their entries, the way to the next page, and a text if they are
// empty.
func TestLists(t *testing.T) {
	t.Parallel()
	f := testFrame("en", "alice")
	open, soon := testItem(nil), testItem(func(i *catalog.Item) { i.ID, i.OpensAt = "soon", testNow.Add(time.Hour) })
	wantPage(t, render(t, "shop/items", &Items{Frame: f, Items: []Item{open, soon}, Next: "c-1", Now: testNow}), []string{
		`href="/items/thing"`, `href="/?cursor=c-1" rel="next"`, `datetime="2030-01-02T04:04:05.000Z"`, "4 of 10 left",
	}, []string{"First page"})
	wantPage(t, render(t, "shop/items", &Items{Frame: f, Later: true}), []string{"Nothing is on sale", "First page"}, nil)
	listed := ListedOrder{Order: order.Order{ID: "o-1", ItemID: "thing", Quantity: 3, UnitPriceMinor: 500, Currency: "JPY", Status: order.StatusPaid, CreatedAt: testNow},
		Name: "Thing", Image: "/images/thing.jpg"}
	wantPage(t, render(t, "shop/orders", &Orders{Frame: f, Orders: []ListedOrder{listed}, Next: "c-2", Incomplete: true}), []string{
		`href="/orders/o-1"`, "JPY 500", `src="/images/thing.jpg"`, `href="/orders?cursor=c-2"`, "may be missing", `data-state="paid">Paid<`,
	}, nil)
	wantPage(t, render(t, "shop/orders", &Orders{Frame: f}), []string{"no orders yet"}, []string{"may be missing", "Newest"})
	wantPage(t, render(t, "shop/orders", &Orders{Frame: f, Later: true}), []string{"no older orders", "Newest"}, nil)
}

// Given a login page in each mode, then it has the form of that mode and leads back.
func TestLoginPage(t *testing.T) {
	t.Parallel()
	f := testFrame("en", "")
	f.Path, f.Query = "/login", url.Values{"next": {"/items/a?b=c"}}
	page := Login{Frame: f, Next: "/items/a?b=c"}
	wantPage(t, render(t, "shop/login", &page), []string{`name="token" type="password"`, `name="next" value="/items/a?b=c"`,
		`href="/login?lang=zh&amp;next=%2Fitems%2Fa%3Fb%3Dc"`}, []string{`name="name"`, "login at the shop"})
	page.LoginURL = "https://shop.example/login?next=%2F"
	wantPage(t, render(t, "shop/login", &page), []string{`href="https://shop.example/login?next=%2F"`, `name="token"`}, nil)
	page.Development = true
	page.Notice = &Notice{Code: "field_range", Title: "Wrong", Text: "Not a name."}
	wantPage(t, render(t, "shop/login", &page), []string{`name="name" value="alice"`, "Not a name."}, []string{`name="token"`, "shop.example"})
}

// Given a refusal, then its page has the explanation, the request's number, the way back, and if it is
// useful the same form again.
func TestErrorPage(t *testing.T) {
	t.Parallel()
	page := ErrorPage{Frame: testFrame("en", ""), Status: 503, Title: "Busy", Back: "/items/thing",
		Notice: &Notice{Code: "overloaded", Text: "Wait.", RetryAfter: 300, RequestID: "r-1"},
		Repeat: &Repeat{Action: "/items/thing/buy", Fields: []Field{{"key", `k"1`}, {"quantity", "2"}}}}
	wantPage(t, render(t, "shop/error", &page), []string{
		"<h1>Busy</h1>", "Wait.", "You can try again in 5 min.", "<code>r-1</code>", `href="/items/thing"`, `action="/items/thing/buy"`,
		`name="key" value="k&#34;1"`, `name="quantity" value="2"`,
	}, nil)
	page.Repeat, page.Notice.RetryAfter = nil, 0
	wantPage(t, render(t, "shop/error", &page), []string{"Back"}, []string{"<form method", "Try again", "again in"})
}

func TestMoney(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		minor    int64
		currency string
		want     string
	}{
		{12900, "EUR", "EUR 129.00"},
		{5, "EUR", "EUR 0.05"},
		{0, "USD", "USD 0.00"},
		{500, "JPY", "JPY 500"},
		{1234, "BHD", "BHD 1.234"},
	} {
		if got := money(tc.minor, tc.currency); got != tc.want {
			t.Errorf("%d: %q, want %q", tc.minor, got, tc.want)
		}
	}
}
