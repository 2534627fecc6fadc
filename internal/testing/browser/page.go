// Package browser tests pages in a real Chromium, which is headless and controlled by its debugging
// protocol (program.go).
//
// [New] opens a page in a profile of its own, so that tests can run in parallel. The methods of [Page] act as
// a user does (act.go), wait for what the page shows (wait.go), and change the network (network.go). Each
// wait has a limit and none sleeps; a failure shows the address of the page, its console and its
// visible text. At the end of the test, unexpected errors of the page fail it (findings.go).
//
// Elements are named by a CSS selector, which " >> " and a text may follow: `button >> Buy` is a
// button whose text or accessible name contains "Buy". Where several elements match, the first visible
// one is meant.
//
// The methods of a page fail the test at once when they cannot do their work, so they must be called from
// the test's goroutine.
package browser

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/css"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// Options configure a page. The zero value is a desktop browser in light colours and in English.
type Options struct {
	// Width and Height are the size of the window in CSS pixels; zero: 1280 × 800, and 390 × 844
	// for a phone.
	Width, Height int
	// Scale is the number of device pixels of a CSS pixel; zero: 1.
	Scale float64
	// Mobile makes the browser that of a phone with a touch screen.
	Mobile bool
	// Dark is the preferred colour scheme.
	Dark bool
	// NoScript switches JavaScript off. The methods of the page work nevertheless.
	NoScript bool
	// Lang is the preferred language, for example "zh-CN"; empty: "en-US".
	Lang string
	// Timezone is the user's time zone, for example "Asia/Shanghai"; empty: "UTC".
	Timezone string
	// Hosts are the host:port that the page may send requests to, besides those of the addresses that
	// Goto opens.
	Hosts []string
}

// Page is a page of the browser. It is closed at the end of its test.
type Page struct {
	t    testing.TB
	opts Options
	ctx  context.Context
	stop context.CancelFunc
	// limit is that of each wait.
	limit time.Duration
	*record
}

// closeWithin bounds the end of a page.
const closeWithin = 10 * time.Second

// New opens an empty page in a new profile. Pages of one test count once against the number of tests
// that use the browser concurrently.
func New(t testing.TB, o Options) *Page {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: it uses a browser, and -short asks for the quick tests")
	}
	Program(t)
	acquire(t)
	parent, agent, err := running(t)
	if err != nil {
		t.Fatal(err)
	}
	return open(parent, t, agent, o, chromedp.WithNewBrowserContext())
}

// NewTab opens an empty page in the profile of p: with its cookies, storage and options.
func (p *Page) NewTab() *Page {
	p.t.Helper()
	_, agent, err := running(p.t)
	if err != nil {
		p.t.Fatal(err)
	}
	return open(p.ctx, p.t, agent, p.opts)
}

func open(parent context.Context, t testing.TB, agent string, o Options, opts ...chromedp.ContextOption) *Page {
	t.Helper()
	o.Width = cmp.Or(o.Width, map[bool]int{false: 1280, true: 390}[o.Mobile])
	o.Height = cmp.Or(o.Height, map[bool]int{false: 800, true: 844}[o.Mobile])
	o.Scale = cmp.Or(o.Scale, 1)
	o.Lang, o.Timezone = cmp.Or(o.Lang, "en-US"), cmp.Or(o.Timezone, "UTC")
	p := &Page{t: t, opts: o, limit: *limit, record: newRecord(o.Hosts)}
	p.ctx, p.stop = chromedp.NewContext(parent, opts...)
	t.Cleanup(p.finish)
	// The context of the first call is the page's own, so a timer ends an opening that hangs.
	slow := time.AfterFunc(time.Until(p.deadline()), p.stop)
	err := chromedp.Listen(p.ctx, p.event)
	slow.Stop()
	if err == nil {
		err = p.configure(agent)
	}
	if err != nil {
		t.Fatalf("browser: open a page: %v", err)
	}
	return p
}

// configure makes the page that of the wanted user.
func (p *Page) configure(agent string) error {
	o := &p.opts
	platform := ""
	if o.Mobile {
		agent, platform = strings.Replace(agent, "X11; Linux x86_64", "Linux; Android 10; K", 1), "Linux armv8l"
		agent = strings.Replace(agent, " Safari/", " Mobile Safari/", 1)
	}
	agent = strings.Replace(agent, "HeadlessChrome", "Chrome", 1)
	scheme := map[bool]string{false: "light", true: "dark"}[o.Dark]
	ctx, cancel := p.bounded()
	defer cancel()
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	note(call(ctx, audits.Enable, cdp.Empty{})) // reports violations of the content security policy
	// The client would follow every change of the document; no method needs that.
	note(call(ctx, css.Disable, cdp.Empty{}))
	note(call(ctx, dom.Disable, cdp.Empty{}))
	note(call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(o.Width), Height: int64(o.Height), DeviceScaleFactor: o.Scale, Mobile: o.Mobile,
	}))
	note(call(ctx, emulation.SetTouchEmulationEnabled, emulation.SetTouchEmulationEnabledParams{Enabled: o.Mobile}))
	note(call(ctx, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: agent, AcceptLanguage: o.Lang, Platform: platform}))
	note(call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme},
		// A test must not depend on the moment of an animation.
		{Name: "prefers-reduced-motion", Value: "reduce"},
	}}))
	note(call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}))
	note(call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: o.NoScript}))
	// A tab may share its process with another tab of the profile, in which both are set already.
	for _, err := range []error{
		call(ctx, emulation.SetLocaleOverride, emulation.SetLocaleOverrideParams{Locale: strings.ReplaceAll(o.Lang, "-", "_")}),
		call(ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: o.Timezone}),
	} {
		if err != nil && !strings.Contains(err.Error(), "already in effect") {
			note(err)
		}
	}
	return first
}

// Close closes the page before the end of the test, and reports its findings.
func (p *Page) Close() {
	p.t.Helper()
	p.finish()
}

// finish reports the findings and closes the page.
func (p *Page) finish() {
	p.t.Helper()
	if p.ctx.Err() == nil {
		p.settle()
		if p.t.Failed() {
			p.picture()
		}
	}
	for _, finding := range p.take() {
		p.t.Errorf("browser: %s\n(p.Expect allows it)", finding)
	}
	p.stop()
}

// settle waits until the events of the past have arrived: the answer of a command follows them.
func (p *Page) settle() {
	ctx, cancel := context.WithTimeout(p.ctx, closeWithin)
	defer cancel()
	if _, err := evaluate[any](ctx, "0", 0); err != nil {
		p.t.Logf("browser: the page did not answer at its end: %v", err)
	}
}

// pictures numbers the screenshots of failed tests.
var pictures atomic.Int64

// picture stores a screenshot of a failed test for `go test -artifacts`.
func (p *Page) picture() {
	if keep := flag.Lookup("test.artifacts"); keep == nil || keep.Value.String() != "true" {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, closeWithin)
	defer cancel()
	path := filepath.Join(p.t.ArtifactDir(), fmt.Sprintf("page-%d.png", pictures.Add(1)))
	if err := capture(ctx, path, false); err != nil {
		p.t.Logf("browser: no screenshot: %v", err)
		return
	}
	p.t.Logf("browser: the page at the end: %s", path)
}

// slots bounds the number of tests that use the browser concurrently.
var slots = struct {
	mu   sync.Mutex
	held map[string]bool // by the names of tests
	free chan struct{}
}{held: map[string]bool{}, free: make(chan struct{}, max(2, runtime.NumCPU()))}

// acquire waits until the test may use the browser. A test that uses it already, or whose parent does,
// does not wait again.
func acquire(t testing.TB) {
	t.Helper()
	if holds(t.Name()) {
		return
	}
	select {
	case slots.free <- struct{}{}:
	case <-t.Context().Done():
		t.Fatal("browser: the test ended while it waited for its turn")
	}
	slots.mu.Lock()
	slots.held[t.Name()] = true
	slots.mu.Unlock()
	t.Cleanup(func() {
		slots.mu.Lock()
		delete(slots.held, t.Name())
		slots.mu.Unlock()
		<-slots.free
	})
}

func holds(test string) bool {
	slots.mu.Lock()
	defer slots.mu.Unlock()
	for name := range slots.held {
		if test == name || strings.HasPrefix(test, name+"/") {
			return true
		}
	}
	return false
}
