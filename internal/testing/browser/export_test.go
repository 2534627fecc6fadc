package browser

import (
	"slices"
	"strings"
	"time"
)

// AxeScript is the unpacked script.
var AxeScript = axe

// AwaitFinding waits until a finding contains the text.
func (p *Page) AwaitFinding(text string) {
	p.t.Helper()
	p.wait("a finding: "+text, func() bool {
		return slices.ContainsFunc(p.findings, func(finding string) bool { return strings.Contains(finding, text) })
	})
}

// Hurry runs f with short waits.
func (p *Page) Hurry(f func()) {
	before := p.limit
	p.limit = 5 * time.Second
	defer func() { p.limit = before }()
	f()
}
