package browser

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed" // axe
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// packedAxe is axe-core; see axe/VENDOR.
//
//go:embed axe/axe.min.js.gz
var packedAxe []byte

var axe = sync.OnceValues(func() (string, error) {
	r, err := gzip.NewReader(bytes.NewReader(packedAxe))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r)
	return string(text), err
})

// Violation is a rule of accessibility that the page breaks.
type Violation struct {
	// ID names the rule, for example "color-contrast".
	ID string
	// Impact is "serious" or "critical".
	Impact string
	Help   string
	Nodes  []Node
}

// Node is an element that breaks the rule.
type Node struct {
	// Target is its selector, and HTML its start.
	Target, HTML string
	// Summary says how to fix it.
	Summary string
}

// String formats the violation over several lines.
func (v *Violation) String() string {
	lines := []string{fmt.Sprintf("%s (%s): %s", v.ID, v.Impact, v.Help)}
	for _, n := range v.Nodes {
		lines = append(lines, "  "+n.Target+": "+n.HTML, "    "+strings.ReplaceAll(n.Summary, "\n", "\n    "))
	}
	return strings.Join(lines, "\n")
}

// axeRun evaluates to the violations. It runs in a world of its own: the page does not see it, and the page's
// content security policy stays as it is.
const axeRun = `axe.run({ exclude: %s }, { resultTypes: ["violations"], iframes: false }).then((r) => r.violations
  .filter((v) => ["serious", "critical"].includes(v.impact))
  .map((v) => ({ ID: v.id, Impact: v.impact, Help: v.help, Nodes: v.nodes.map((n) => ({
    Target: n.target.flat().join(" "), HTML: n.html.slice(0, 200), Summary: n.failureSummary })) })))`

// Axe checks the accessibility of what the page shows, except for the elements with the given selectors, and
// returns the violations with a serious or a critical impact.
func (p *Page) Axe(exclude ...string) []Violation {
	p.t.Helper()
	script, err := axe()
	if err != nil {
		p.t.Fatal(err)
	}
	selectors := [][]string{}
	for _, selector := range exclude {
		selectors = append(selectors, []string{selector})
	}
	excluded, err := json.Marshal(selectors)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := p.bounded()
	defer cancel()
	if p.opts.NoScript { // which switches the promises of axe off, too
		defer p.allowScript(ctx)()
	}
	tree, err := chromedp.Call(ctx, page.GetFrameTree, cdp.Empty{})
	if err != nil {
		p.fail("axe: %v", err)
	}
	world, err := chromedp.Call(ctx, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: tree.FrameTree.Frame.ID, WorldName: "axe"})
	if err != nil {
		p.fail("axe: %v", err)
	}
	if _, err := evaluate[any](ctx, script+"\n;0", world.ExecutionContextID); err != nil {
		p.fail("axe: %v", err)
	}
	found, err := evaluate[[]Violation](ctx, fmt.Sprintf(axeRun, excluded), world.ExecutionContextID)
	if err != nil {
		p.fail("axe: %v", err)
	}
	return found
}

// allowScript switches JavaScript on and returns a function that switches it off again. The scripts of
// a document that has been loaded do not run later.
func (p *Page) allowScript(ctx context.Context) func() {
	p.t.Helper()
	disable := func(value bool) {
		p.t.Helper()
		if err := call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: value}); err != nil {
			p.fail("axe: %v", err)
		}
	}
	disable(false)
	return func() {
		p.t.Helper()
		disable(true)
	}
}

// CheckAxe fails the test if [Page.Axe] returns violations. The test continues.
func (p *Page) CheckAxe(exclude ...string) {
	p.t.Helper()
	for _, v := range p.Axe(exclude...) {
		p.t.Errorf("accessibility of %s: %s", p.URL(), &v)
	}
}
