package browser

import (
	"context"
	_ "embed" // the script that finds elements
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const (
	// lookAfter and lookEvery are the first and the longest pause between two looks at the page, which
	// cost it time; each pause is half as long again as the one before.
	lookAfter, lookEvery = 10 * time.Millisecond, 100 * time.Millisecond
	// margin is the time that a failed wait leaves the test for its message.
	margin = 20 * time.Second
	// shownText and shownLines bound what a failure shows of the page, in bytes and lines.
	shownText, shownLines = 4 << 10, 40
)

// find is a JavaScript function that finds an element and describes it.
//
//go:embed find.js
var find string

// element is what find returns.
type element struct {
	// Count is the number of elements that match.
	Count int
	// Visible is the number of those that are visible.
	Visible int
	// Text is the rendered text of the first visible element, with single spaces.
	Text string
	// Texts are those of all visible elements.
	Texts []string
	// Value is the value of a form field, and Attribute that of the wanted attribute.
	Value, Attribute *string
	// Problem says why the element cannot take the wanted action at the moment; empty: it can.
	Problem string
	// X and Y are the middle of the element in the window.
	X, Y float64
	// Typed means that the value is to be typed.
	Typed bool
}

// deadline is the end of a wait that begins now. It is before the test's own deadline, which would show
// nothing of the page.
func (p *Page) deadline() time.Time {
	end := time.Now().Add(p.limit)
	if t, ok := p.t.(*testing.T); ok {
		if last, ok := t.Deadline(); ok {
			// A test with a short deadline leaves less.
			last = last.Add(-min(margin, time.Until(last)/4))
			if last.Before(end) {
				end = last
			}
		}
	}
	return end
}

// bounded returns the page's context with the limit of a wait.
func (p *Page) bounded() (context.Context, context.CancelFunc) {
	return context.WithDeadline(p.ctx, p.deadline())
}

// look runs find until ok returns true for an element, and returns that element.
func (p *Page) look(what, selector string, args map[string]any, ok func(*element) bool) *element {
	p.t.Helper()
	if args == nil {
		args = map[string]any{}
	}
	args["selector"] = selector
	text, err := json.Marshal(args)
	if err != nil {
		p.t.Fatal(err)
	}
	var e *element
	state := func() string {
		switch {
		case e == nil:
			return "the page did not answer"
		case e.Count == 0:
			return "no element matches"
		case e.Problem != "":
			return e.Problem
		}
		return fmt.Sprintf("%d elements match, %d are visible; text of the first: %q", e.Count, e.Visible, shorten(e.Text, 500))
	}
	p.until(fmt.Sprintf("%s: %s", selector, what), state, func(ctx context.Context) (bool, error) {
		found, err := evaluate[*element](ctx, "("+find+")("+string(text)+")", 0)
		if err != nil {
			return false, err
		}
		e = found
		return ok(e), nil
	})
	return e
}

// until calls ok until it returns true. An error that a navigation explains only means that it is called
// again.
func (p *Page) until(what string, state func() string, ok func(context.Context) (bool, error)) {
	p.t.Helper()
	ctx, cancel := p.bounded()
	defer cancel()
	pause := lookAfter
	next := time.NewTimer(pause)
	defer next.Stop()
	for {
		done, err := ok(ctx)
		switch {
		case done:
			return
		case err != nil && ctx.Err() == nil && !isNavigation(err):
			p.fail("%s: %v", what, err)
		case p.hasCrashed():
			p.fail("%s: the page crashed", what)
		}
		next.Reset(pause)
		pause = min(pause*3/2, lookEvery)
		select {
		case <-next.C:
		case <-ctx.Done():
			p.fail("waited in vain for %s; %s", what, state())
		}
	}
}

// wait waits until events of the page have made ok true. It is called with p.mu held.
func (p *Page) wait(what string, ok func() bool) {
	p.t.Helper()
	ctx, cancel := p.bounded()
	defer cancel()
	for {
		p.mu.Lock()
		done, changed := ok(), p.changed
		p.mu.Unlock()
		switch {
		case done:
			return
		case p.hasCrashed():
			p.fail("%s: the page crashed", what)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			p.fail("waited in vain for %s", what)
		}
	}
}

func (p *Page) hasCrashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed
}

// WaitText waits until a visible element that matches contains the text. Runs of white space count as
// one space.
func (p *Page) WaitText(selector, want string) {
	p.t.Helper()
	p.look(fmt.Sprintf("the text %q", want), selector, nil, func(e *element) bool {
		for _, text := range e.Texts {
			if strings.Contains(text, want) {
				return true
			}
		}
		return false
	})
}

// WaitNoText waits until no visible element that matches contains the text.
func (p *Page) WaitNoText(selector, text string) {
	p.t.Helper()
	p.look(fmt.Sprintf("the end of the text %q", text), selector, nil, func(e *element) bool {
		return !strings.Contains(strings.Join(e.Texts, "\n"), text)
	})
}

// WaitVisible waits until an element that matches is visible.
func (p *Page) WaitVisible(selector string) {
	p.t.Helper()
	p.look("visible", selector, nil, func(e *element) bool { return e.Visible > 0 })
}

// WaitGone waits until no element that matches is visible.
func (p *Page) WaitGone(selector string) {
	p.t.Helper()
	p.look("gone", selector, nil, func(e *element) bool { return e.Visible == 0 })
}

// WaitCount waits until n visible elements match.
func (p *Page) WaitCount(selector string, n int) {
	p.t.Helper()
	p.look(fmt.Sprintf("%d visible elements", n), selector, nil, func(e *element) bool { return e.Visible == n })
}

// WaitURL waits until the address contains the text and the page at it is loaded.
func (p *Page) WaitURL(part string) {
	p.t.Helper()
	p.WaitTrue(fmt.Sprintf("location.href.includes(%q) && document.readyState === 'complete'", part))
}

// WaitTrue waits until a JavaScript expression is true.
func (p *Page) WaitTrue(expression string) {
	p.t.Helper()
	p.until(expression, func() string { return "it is not true" }, func(ctx context.Context) (bool, error) {
		return evaluate[bool](ctx, "Boolean("+expression+")", 0)
	})
}

// Text returns the rendered text of the first visible element that matches, for which it waits. Runs of
// white space are one space.
func (p *Page) Text(selector string) string {
	p.t.Helper()
	return p.look("visible", selector, nil, func(e *element) bool { return e.Visible > 0 }).Text
}

// Texts returns the texts of all visible elements that match; it does not wait for one.
func (p *Page) Texts(selector string) []string {
	p.t.Helper()
	return p.look("the page", selector, nil, func(*element) bool { return true }).Texts
}

// Count returns the number of elements that match, visible or not; it does not wait for one.
func (p *Page) Count(selector string) int {
	p.t.Helper()
	return p.look("the page", selector, nil, func(*element) bool { return true }).Count
}

// Value returns the value of a form field, for which it waits.
func (p *Page) Value(selector string) string {
	p.t.Helper()
	return *p.look("a form field", selector, nil, func(e *element) bool { return e.Value != nil }).Value
}

// Attribute returns an attribute of the first element that matches, for which it waits. The second result
// reports whether the element has it.
func (p *Page) Attribute(selector, name string) (string, bool) {
	p.t.Helper()
	e := p.look("an element", selector, map[string]any{"attribute": name}, func(e *element) bool { return e.Count > 0 })
	if e.Attribute == nil {
		return "", false
	}
	return *e.Attribute, true
}

// Eval evaluates a JavaScript expression in the page and decodes its value, which may be a promise's, into the
// variable that into points to; nil: the value is ignored. The content security policy does not apply.
func (p *Page) Eval(expression string, into any) {
	p.t.Helper()
	ctx, cancel := p.bounded()
	defer cancel()
	value, err := evaluate[json.RawMessage](ctx, expression, 0)
	if err == nil && into != nil {
		err = json.Unmarshal(value, into)
	}
	if err != nil {
		p.fail("eval %s: %v", shorten(expression, 300), err)
	}
}

// evaluate evaluates an expression in an execution context, 0: that of the page.
func evaluate[T any](ctx context.Context, expression string, in runtime.ExecutionContextID) (T, error) {
	yes := true
	var value T
	res, err := chromedp.Call(ctx, runtime.Evaluate, runtime.EvaluateParams{
		Expression: expression, ContextID: in, ReturnByValue: &yes, AwaitPromise: &yes, UserGesture: &yes,
	})
	if err != nil {
		return value, err
	}
	if res.ExceptionDetails != nil {
		return value, errors.New(describe(res.ExceptionDetails))
	}
	if len(res.Result.Value) == 0 { // undefined
		return value, nil
	}
	err = json.Unmarshal(res.Result.Value, &value)
	return value, err
}

// call runs a command that has no result.
func call[P, R any](ctx context.Context, cmd cdp.Command[P, R], params P) error {
	if _, err := chromedp.Call(ctx, cmd, params); err != nil {
		return fmt.Errorf("%s: %w", cmd.Method, err)
	}
	return nil
}

// isNavigation reports whether an error of an evaluation means that the page was being replaced.
func isNavigation(err error) bool {
	for _, text := range []string{
		"context was destroyed", "Cannot find context", "navigated or closed", "Cannot find default execution context",
		"Promise was collected", "uniqueContextId not found",
	} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// fail ends the test with a message that shows the page.
func (p *Page) fail(format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("browser: %s\n%s", fmt.Sprintf(format, args...), p.state())
}

// state describes the page.
func (p *Page) state() string {
	ctx, cancel := context.WithTimeout(p.ctx, closeWithin)
	defer cancel()
	type view struct{ URL, Text string }
	v, err := evaluate[view](ctx, "({URL: location.href, Text: document.body?.innerText ?? ''})", 0)
	if err != nil {
		v = view{URL: "(unknown)", Text: "(the page does not answer: " + err.Error() + ")"}
	}
	console := p.Console()
	if len(console) > shownLines {
		console = console[len(console)-shownLines:]
	}
	lines := []string{"address: " + v.URL, "console:"}
	for _, line := range console {
		lines = append(lines, "  "+shorten(line, 1000))
	}
	lines = append(lines, "visible text:", "  "+strings.ReplaceAll(shorten(v.Text, shownText), "\n", "\n  "))
	return strings.Join(lines, "\n")
}

func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + fmt.Sprintf(" … (%d bytes more)", len(text)-n)
}
