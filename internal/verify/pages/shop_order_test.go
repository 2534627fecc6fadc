//go:build unix

package pages_test

import (
	"net/http"
	"testing"
	"time"

	"flashsale/internal/testing/browser"
)

// Given the page of an order, when an admin cancels it, then the page shows that without a reload.
func TestShop_OrderCancelledByAdmin(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "cancelled", map[string]any{"payment_window_seconds": 600})
	id := s.buy(t, "cancelled", "shop-cancelled")
	p := browser.New(t, browser.Options{})
	enter(p, s.URL, "shop-cancelled", "/orders/"+id)
	p.WaitText("#status", "Confirmed")
	p.WaitText("[aria-current=step]", "Confirmed")
	s.call(t, http.StatusOK, http.MethodPost, "/v1/orders/"+id+"/cancel", s.token(t, "root", "admin"), nil, nil)
	p.WaitText("#status", "Cancelled")
	p.WaitText("#explanation", "The shop cancelled the order.")
	p.WaitText("[aria-current=step]", "Cancelled")
	p.WaitGone("button >> Pay now")
	p.WaitGone("button >> Cancel order")
}

// Given the page of an order, when the shop's backend reports its payment, then the page shows that without
// a reload, also if the event stream is refused.
func TestShop_OrderPaid(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "paid", map[string]any{"payment_window_seconds": 600})
	for _, tc := range []struct{ buyer, blocked, note string }{
		{"shop-payer", "", ""},
		{"shop-poller", "http://*:*/v1/orders/*/events", "Live updates are not available."},
	} {
		id := s.buy(t, "paid", tc.buyer)
		p := browser.New(t, browser.Options{})
		if tc.blocked != "" {
			p.Expect("ERR_BLOCKED_BY_CLIENT")
			p.Block(tc.blocked)
		}
		enter(p, s.URL, tc.buyer, "/orders/"+id)
		p.WaitText("#status", "Confirmed")
		if tc.note != "" {
			p.WaitText("#live", tc.note)
		}
		s.call(t, http.StatusOK, http.MethodPost, "/v1/orders/"+id+"/payment", s.token(t, "psp", "service"),
			map[string]any{"reference": "psp-" + id, "amount_minor": 12900, "currency": "EUR"}, nil)
		p.WaitText("#status", "Paid")
		p.WaitText("[aria-current=step]", "Paid")
		p.Close()
	}
}

// Given the page of an order, when the buyer cancels, then the page asks first; the order is kept unless
// the buyer confirms.
func TestShop_CancelAsks(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "doubt", map[string]any{"payment_window_seconds": 600})
	id := s.buy(t, "doubt", "shop-doubter")
	p := browser.New(t, browser.Options{})
	enter(p, s.URL, "shop-doubter", "/orders/"+id)
	p.Click("#cancel button")
	p.WaitVisible("dialog")
	p.CheckAxe()
	p.Click("dialog button >> Keep order")
	p.WaitGone("dialog")
	p.Click("#cancel button")
	p.Press("Escape")
	p.WaitGone("dialog")
	p.WaitText("#status", "Confirmed")
	p.Click("#cancel button")
	p.Click("dialog button >> Cancel order")
	p.WaitText("#status", "Cancelled")
	p.WaitText("#explanation", "You cancelled the order.")
}

// Given a reader of Chinese, then all texts, prices and times are in Chinese; and the reader can choose
// English, which stays.
func TestShop_Chinese(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "tea", map[string]any{"name": "龙井", "currency": "CNY", "payment_window_seconds": 600})
	p := browser.New(t, browser.Options{Lang: "zh-CN", Timezone: "Asia/Shanghai"})
	enter(p, s.URL, "shop-zh", "/items/tea")
	p.WaitText("#press", "立即抢购")
	p.WaitText(".price", "¥129.00")
	p.WaitText(".facts", "年")
	p.Click("#press")
	p.WaitURL("/orders/")
	p.WaitText("#status", "已确认")
	p.WaitText("#due", "付款截止")
	p.CheckAxe()
	p.Click("header a >> English")
	p.WaitText("#status", "Confirmed")
	p.Goto(s.URL + "/orders")
	p.WaitText("h1", "My orders")
}

// Given every page in light and dark colours, on a desktop and on a phone, then it fits the window and is
// accessible, without errors, reports of the policy, and requests to other hosts.
func TestShop_EveryPage(t *testing.T) {
	t.Parallel()
	s := running(t)
	s.newItem(t, "0-shown", map[string]any{
		"name":        "An item with a long name and an even longer Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen",
		"description": "One line.\nAnother line with aWordThatIsTooLongForEveryPhoneAndEveryCardThatItMayBeShownOnBecauseNobodyBreaksIt.",
		"closes_at":   in(time.Hour), "payment_window_seconds": 600,
	})
	id := s.buy(t, "0-shown", "shop-viewer")
	for name, o := range viewers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := browser.New(t, o)
			p.Expect("status of 404")
			check := func(path, part string) {
				t.Helper()
				p.Goto(s.URL + path)
				p.WaitText("main", part)
				var wide bool
				if p.Eval("document.documentElement.scrollWidth > innerWidth", &wide); wide {
					t.Errorf("%s is wider than the window", path)
				}
				p.CheckAxe()
			}
			check("/", "An item with a long name")
			check("/items/0-shown", "Log in to buy")
			check("/login", "Any name works")
			enter(p, s.URL, "shop-viewer", "/items/0-shown")
			check("/items/0-shown", "Closes in")
			check("/orders", "An item with a long name")
			check("/orders/"+id, "Pay by")
			check("/items/nothing", "There is no such item")
		})
	}
}
