package browser

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Request is a request of the page.
type Request struct {
	Method, URL string
	// Status is the status of the response, 0 until it has arrived.
	Status int
}

// record is what the page has done so far. The events arrive on a goroutine of the protocol's client.
type record struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced with every event that a wait may be for
	crashed  bool
	hosts    map[string]bool
	console  []string
	findings []string
	expected []string
	order    []network.RequestID
	requests map[network.RequestID]*Request
	loaded   map[cdp.LoaderID]bool // documents whose load event has fired
	document cdp.LoaderID          // that of the main frame
	accept   bool                  // dialogs
}

func newRecord(hosts []string) *record {
	r := &record{changed: make(chan struct{}), hosts: map[string]bool{}, requests: map[network.RequestID]*Request{}, loaded: map[cdp.LoaderID]bool{}}
	for _, host := range hosts {
		r.hosts[host] = true
	}
	return r
}

// Expect allows the findings of this page that contain one of the texts, as the test of a refusal has to:
// the browser writes `Failed to load resource: the server responded with a status of 409` to the
// console. It may be called before or after the event. These are findings: console errors,
// uncaught exceptions, violations of the content security policy, requests to hosts other than the
// allowed ones, responses with a status of 500 or more, dialogs, and crashes.
func (p *Page) Expect(texts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, texts...)
}

// Requests returns the requests of the page, the oldest first.
func (p *Page) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Request, 0, len(p.order))
	for _, id := range p.order {
		all = append(all, *p.requests[id])
	}
	return all
}

// Console returns what the page and the browser wrote to the console, the oldest line first.
func (p *Page) Console() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.console)
}

// AcceptDialogs makes the page confirm the following alert, confirm and prompt dialogs. Without it they are
// dismissed and are findings.
func (p *Page) AcceptDialogs() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accept = true
}

// take removes the findings that were not expected, and returns them.
func (r *record) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []string
	for _, finding := range r.findings {
		if !r.isExpected(finding) {
			left = append(left, finding)
		}
	}
	r.findings = nil
	return left
}

// isExpected reports whether Expect allows a text; r.mu must be held.
func (r *record) isExpected(text string) bool {
	return slices.ContainsFunc(r.expected, func(part string) bool { return strings.Contains(text, part) })
}

// event records an event. It must not block.
func (p *Page) event(ev any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch ev := ev.(type) {
	case *runtime.EventConsoleAPICalled:
		p.printed(string(ev.Type), joined(ev.Args), ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeAssert)
	case *runtime.EventExceptionThrown:
		p.printed("uncaught", describe(ev.ExceptionDetails), true)
	case *log.EventEntryAdded:
		p.printed(string(ev.Entry.Level), strings.TrimSpace(ev.Entry.Text+" "+ev.Entry.URL), ev.Entry.Level == log.EntryLevelError)
	case *audits.EventIssueAdded:
		if csp := ev.Issue.Details.ContentSecurityPolicyIssueDetails; csp != nil {
			p.findings = append(p.findings, "violation of the content security policy: "+describeViolation(csp))
		}
	case *network.EventRequestWillBeSent:
		p.requested(ev)
	case *network.EventWebSocketCreated:
		p.contacted(ev.URL)
	case *network.EventResponseReceived:
		p.responded(ev)
	case *page.EventFrameNavigated:
		if ev.Frame.ParentID == "" {
			p.document = ev.Frame.LoaderID
		}
	case *page.EventLifecycleEvent:
		if ev.Name == "load" {
			p.loaded[ev.LoaderID] = true
		}
	case *page.EventJavascriptDialogOpening:
		p.dialog(ev)
	case *inspector.EventTargetCrashed:
		p.crashed = true
		p.findings = append(p.findings, "the page crashed")
	default:
		return
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// printed records a line of the console; p.mu must be held, as in the following methods.
func (p *Page) printed(kind, text string, isError bool) {
	line := "[" + kind + "] " + text
	p.console = append(p.console, line)
	if isError {
		p.findings = append(p.findings, "console: "+line)
	}
}

func (p *Page) requested(ev *network.EventRequestWillBeSent) {
	// A redirect keeps the id.
	if p.requests[ev.RequestID] == nil {
		p.order = append(p.order, ev.RequestID)
	}
	p.requests[ev.RequestID] = &Request{Method: ev.Request.Method, URL: ev.Request.URL}
	p.contacted(ev.Request.URL)
}

// contacted checks the host of an address.
func (p *Page) contacted(address string) {
	u, err := url.Parse(address)
	if err != nil {
		p.findings = append(p.findings, fmt.Sprintf("request to %q: %v", address, err))
		return
	}
	switch u.Scheme {
	case "data", "blob", "about":
		return
	}
	if !p.hosts[u.Host] {
		p.findings = append(p.findings, "request to a foreign host: "+address)
	}
}

func (p *Page) responded(ev *network.EventResponseReceived) {
	request := p.requests[ev.RequestID]
	if request == nil {
		return
	}
	request.Status = int(ev.Response.Status)
	if request.Status >= 500 {
		p.findings = append(p.findings, fmt.Sprintf("%s %s was answered with the status of %d", request.Method, request.URL, request.Status))
	}
}

// dialog answers a dialog, without which the page would stand still.
func (p *Page) dialog(ev *page.EventJavascriptDialogOpening) {
	accept := p.accept
	if !accept {
		p.findings = append(p.findings, fmt.Sprintf("dialog (%s): %s", ev.Type, ev.Message))
	}
	go func() {
		ctx, cancel := context.WithTimeout(p.ctx, p.limit)
		defer cancel()
		answer := page.HandleJavaScriptDialogParams{Accept: accept, PromptText: ev.DefaultPrompt}
		if _, err := chromedp.Call(ctx, page.HandleJavaScriptDialog, answer); err != nil && p.ctx.Err() == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.findings = append(p.findings, "the dialog could not be answered: "+err.Error())
		}
	}()
}

// joined formats the arguments of a call of the console.
func joined(args []*runtime.RemoteObject) string {
	var parts []string
	for _, arg := range args {
		part := arg.Description
		if arg.Value != nil {
			part = strings.Trim(string(arg.Value), `"`)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

func describe(e *runtime.ExceptionDetails) string {
	text := e.Text
	if e.Exception != nil {
		text += " " + e.Exception.Description + string(e.Exception.Value)
	}
	return fmt.Sprintf("%s (%s:%d)", text, e.URL, e.LineNumber+1)
}

func describeViolation(v *audits.ContentSecurityPolicyIssueDetails) string {
	text := v.ViolatedDirective + ", " + string(v.ContentSecurityPolicyViolationType)
	if v.BlockedURL != "" {
		text += ", " + v.BlockedURL
	}
	if at := v.SourceCodeLocation; at != nil {
		text += fmt.Sprintf(" (%s:%d)", at.URL, at.LineNumber+1)
	}
	if v.IsReportOnly {
		text += " (report only)"
	}
	return text
}
