package browser

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Goto opens an address and returns the status of the response once the page is loaded. The page may send
// requests to its host from then on. For an address that differs in the fragment only, the status is
// that of the page. If there is no response and [Page.Expect] allows the error, the result is 0.
func (p *Page) Goto(address string) int {
	p.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.hosts[u.Host] = true
	p.mu.Unlock()
	ctx, cancel := p.bounded()
	defer cancel()
	res, err := chromedp.Call(ctx, page.Navigate, page.NavigateParams{URL: address})
	if err != nil {
		p.fail("open %s: %v", address, err)
	}
	if res.ErrorText != "" {
		p.mu.Lock()
		expected := p.isExpected(res.ErrorText)
		p.mu.Unlock()
		if !expected {
			p.fail("open %s: %s", address, res.ErrorText)
		}
	}
	if res.LoaderID != "" {
		p.wait("the load of "+address, func() bool { return p.document == res.LoaderID && p.loaded[res.LoaderID] })
	}
	return p.status()
}

// status is the status of the response that the current document was loaded from.
func (p *Page) status() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The request of a document has its loader's id.
	if request := p.requests[network.RequestID(p.document)]; request != nil {
		return request.Status
	}
	return 0
}

// Reload loads the page again and returns the status of the response.
func (p *Page) Reload() int {
	p.t.Helper()
	p.mu.Lock()
	before := p.document
	p.mu.Unlock()
	ctx, cancel := p.bounded()
	defer cancel()
	if err := call(ctx, page.Reload, page.ReloadParams{}); err != nil {
		p.fail("reload: %v", err)
	}
	p.wait("the reload of the page", func() bool { return p.document != before && p.loaded[p.document] })
	return p.status()
}

// Back returns to the previous entry of the page's history, and waits until it is loaded.
func (p *Page) Back() {
	p.t.Helper()
	p.travel(-1)
}

// Forward undoes Back.
func (p *Page) Forward() {
	p.t.Helper()
	p.travel(1)
}

func (p *Page) travel(steps int64) {
	p.t.Helper()
	ctx, cancel := p.bounded()
	defer cancel()
	history, err := chromedp.Call(ctx, page.GetNavigationHistory, cdp.Empty{})
	if err != nil {
		p.fail("read the history: %v", err)
	}
	target := history.CurrentIndex + steps
	if target < 0 || target >= int64(len(history.Entries)) {
		p.fail("the history has no such entry")
	}
	if err := call(ctx, page.NavigateToHistoryEntry, page.NavigateToHistoryEntryParams{EntryID: history.Entries[target].ID}); err != nil {
		p.fail("go back or forward: %v", err)
	}
	p.until("the entry of the history", func() string { return "it is not loaded" }, func(ctx context.Context) (bool, error) {
		now, err := chromedp.Call(ctx, page.GetNavigationHistory, cdp.Empty{})
		if err != nil || now.CurrentIndex != target {
			return false, err
		}
		return evaluate[bool](ctx, "document.readyState === 'complete'", 0)
	})
}

// URL is the current address.
func (p *Page) URL() string {
	p.t.Helper()
	var address string
	p.Eval("location.href", &address)
	return address
}

// Click clicks on the middle of an element, once it is visible, enabled, at rest and not covered.
func (p *Page) Click(selector string) {
	p.t.Helper()
	x, y := -1.0, -1.0
	e := p.look("ready for a click", selector, map[string]any{"action": "click"}, func(e *element) bool {
		rests := e.X == x && e.Y == y
		x, y = e.X, e.Y
		return e.Count > 0 && e.Problem == "" && rests
	})
	ctx, cancel := p.bounded()
	defer cancel()
	for _, kind := range []input.DispatchMouseEventType{input.DispatchMouseEventTypeMouseMoved, input.DispatchMouseEventTypeMousePressed, input.DispatchMouseEventTypeMouseReleased} {
		event := input.DispatchMouseEventParams{Type: kind, X: e.X, Y: e.Y}
		if kind != input.DispatchMouseEventTypeMouseMoved {
			event.Button, event.ClickCount = input.MouseButtonLeft, 1
		}
		if err := call(ctx, input.DispatchMouseEvent, event); err != nil {
			p.fail("click on %s: %v", selector, err)
		}
	}
}

// Fill replaces the content of a form field as by typing. Of a list it selects the option with the value or
// the label.
func (p *Page) Fill(selector, value string) {
	p.t.Helper()
	e := p.look("ready to be filled", selector, map[string]any{"action": "fill", "value": value}, func(e *element) bool {
		return e.Count > 0 && e.Problem == ""
	})
	if !e.Typed {
		return
	}
	if value == "" {
		p.Press("Delete")
		return
	}
	p.Type(value)
}

// Type types a text into the element that has the focus, in one piece.
func (p *Page) Type(text string) {
	p.t.Helper()
	ctx, cancel := p.bounded()
	defer cancel()
	if err := call(ctx, input.InsertText, input.InsertTextParams{Text: text}); err != nil {
		p.fail("type: %v", err)
	}
}

// modifiers are the keys that may be held while another one is pressed.
var modifiers = map[string]kb.Modifier{
	"Alt": kb.ModifierAlt, "Control": kb.ModifierCtrl, "Meta": kb.ModifierMeta, "Shift": kb.ModifierShift,
}

// Press presses a key, named as in KeyboardEvent.key: "Enter", "Tab", "ArrowDown", "a". Modifiers precede it:
// "Shift+Tab", "Control+a".
func (p *Page) Press(key string) {
	p.t.Helper()
	names := strings.Split(key, "+")
	var held []kb.Modifier
	for _, name := range names[:len(names)-1] {
		modifier, ok := modifiers[name]
		if !ok {
			p.t.Fatalf("browser: %q is not a modifier", name)
		}
		held = append(held, modifier)
	}
	name := names[len(names)-1]
	code := runeOf(name)
	if code == 0 {
		p.t.Fatalf("browser: there is no key %q", name)
	}
	ctx, cancel := p.bounded()
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.KeyEvent(string(code), chromedp.KeyModifiers(held...))); err != nil {
		p.fail("press %s: %v", key, err)
	}
}

// runeOf returns the rune by which the keyboard's table knows a key, 0 if there is none.
func runeOf(name string) rune {
	if runes := []rune(name); len(runes) == 1 {
		return runes[0]
	}
	var found []rune
	for code, key := range kb.Keys {
		if key.Key == name {
			found = append(found, code)
		}
	}
	if len(found) == 0 {
		return 0
	}
	return slices.Min(found) // the others are on the number pad
}
