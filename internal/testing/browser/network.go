package browser

import (
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// Offline makes all requests of the page fail, or undoes that. The errors that the browser then writes to the
// console are expected. A response that has begun goes on, so an event stream stays open: to cut it, stop
// the server or put a proxy before it.
func (p *Page) Offline(offline bool) {
	p.t.Helper()
	p.Expect("ERR_INTERNET_DISCONNECTED")
	ctx, cancel := p.bounded()
	defer cancel()
	const unlimited = -1
	params := network.EmulateNetworkConditionsByRuleParams{MatchedNetworkConditions: []*network.Conditions{}}
	if offline {
		params.MatchedNetworkConditions = []*network.Conditions{{Offline: true, DownloadThroughput: unlimited, UploadThroughput: unlimited}}
	}
	err := call(ctx, network.EmulateNetworkConditionsByRule, params)
	if err == nil { // navigator.onLine and its events
		err = call(ctx, network.OverrideNetworkState, network.OverrideNetworkStateParams{
			Offline: offline, DownloadThroughput: unlimited, UploadThroughput: unlimited,
		})
	}
	if err != nil {
		p.fail("offline: %v", err)
	}
}

// Block makes requests to matching addresses fail, until the next call; without patterns it allows all. A
// pattern is an absolute URLPattern: "http://*:*/v1/events*". The errors that the browser then writes
// to the console are expected.
func (p *Page) Block(patterns ...string) {
	p.t.Helper()
	p.Expect("ERR_BLOCKED_BY_CLIENT")
	blocked := []*network.BlockPattern{}
	for _, pattern := range patterns {
		blocked = append(blocked, &network.BlockPattern{URLPattern: pattern, Block: true})
	}
	ctx, cancel := p.bounded()
	defer cancel()
	if err := call(ctx, network.SetBlockedURLs, network.SetBlockedURLsParams{URLPatterns: blocked}); err != nil {
		p.fail("block %q: %v", patterns, err)
	}
}

// Cookies returns the cookies that the browser sends to the current address.
func (p *Page) Cookies() []*network.Cookie {
	p.t.Helper()
	ctx, cancel := p.bounded()
	defer cancel()
	res, err := chromedp.Call(ctx, network.GetCookies, network.GetCookiesParams{})
	if err != nil {
		p.fail("read the cookies: %v", err)
	}
	return res.Cookies
}

// ClearCookies deletes all cookies of the page's profile.
func (p *Page) ClearCookies() {
	p.t.Helper()
	ctx, cancel := p.bounded()
	defer cancel()
	if err := call(ctx, network.ClearBrowserCookies, cdp.Empty{}); err != nil {
		p.fail("clear the cookies: %v", err)
	}
}
