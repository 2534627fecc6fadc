package main

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"os"

	"flashsale/loadtest/chart"
)

//go:embed report.html
var reportPage string

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"ms":    chart.Milliseconds,
	"count": func(n int64) string { return chart.Number(float64(n), 0) },
}).Parse(reportPage))

// The sizes of the drawings: one for windows and paper, one for phones. A single one would
// have labels that cannot be read on a phone.
const (
	wideWidth, wideLeft     = 900, 72
	narrowWidth, narrowLeft = 380, 62
)

// figure is a chart of the report in both sizes.
type figure struct {
	*chart.Chart
	Wide, Narrow *chart.Drawing
}

func newFigure(c *chart.Chart, height float64) figure {
	if c.Blank() {
		return figure{Chart: c}
	}
	return figure{c, c.Draw(wideWidth, height, wideLeft, true), c.Draw(narrowWidth, min(height, 180), narrowLeft, false)}
}

// setting is a row of a table of names and values.
type setting struct{ Name, Value string }

// report is what the page shows.
type report struct {
	*summary
	Figures       []figure
	Checks        []check
	Distributions []distribution
	Facts         []string
	Settings      []setting
	Computer      []setting
	Date          string
	JSON          *summary // the whole result, as --json prints it
}

// writeReport writes the HTML report. It refers to nothing outside the file, and holds the
// summary as JSON.
func (s *summary) writeReport(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := reportTemplate.Execute(f, s.report()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (s *summary) report() *report {
	return &report{
		summary: s, Figures: s.figures(), Checks: s.checks(), Distributions: s.distributions(), Facts: s.facts(),
		Settings: s.settings(), Computer: s.Machine.settings(), Date: s.Started.Format("2006-01-02 15:04:05 UTC"), JSON: s,
	}
}

// settings are the options of the run.
func (s *summary) settings() []setting {
	l := &s.Load
	n := func(v int64) string { return chart.Number(float64(v), 0) }
	out := []setting{
		{"profile", l.Profile}, {"buyers", n(int64(l.Buyers))}, {"stock", n(l.Stock)}, {"limit per buyer", n(l.Limit)},
		{"units of a purchase", n(l.Quantity)},
	}
	if l.Rate > 0 {
		out = append(out, setting{"rate", chart.Count(l.Rate) + " requests/s"})
	}
	if f := l.Flash; f != nil {
		out = append(out,
			setting{"lobby", fmt.Sprintf("%s readers for %s, each about every %s", n(int64(f.Readers)), chart.Milliseconds(f.LobbyMS), chart.Milliseconds(f.ReadEveryMS))},
			setting{"stragglers", fmt.Sprintf("%s of the purchases, within %s after the opening", chart.Percent(100*f.Stragglers), chart.Milliseconds(f.TailMS))})
	}
	out = append(out,
		setting{"duplicates", chart.Percent(100 * l.Duplicates)}, setting{"greedy", chart.Percent(100 * l.Greedy)},
		setting{"connections", n(int64(l.Connections))}, setting{"respond-async", yesNo(l.Async)}, setting{"seed", fmt.Sprint(l.Seed)})
	for _, k := range l.Kill {
		out = append(out, setting{"kill", k + ", down for " + chart.Milliseconds(l.DownMS)})
	}
	out = append(out, setting{"service version", cmp.Or(s.Service, "not stated by the service")})
	return append(out, setting{"target", l.Target}, setting{"item", l.Item}, setting{"orders read from", s.CheckedIn})
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (m *machine) settings() []setting {
	var out []setting
	if m.CPU != "" {
		out = append(out, setting{"CPU", m.CPU})
	}
	out = append(out, setting{"cores", fmt.Sprint(m.Cores)})
	if m.MemoryGB > 0 {
		out = append(out, setting{"memory", chart.Significant(m.MemoryGB) + " GiB"})
	}
	return append(out, setting{"system", m.OS + ", " + m.Arch}, setting{"Go", m.Go})
}

// check is one promise with its result.
type check struct {
	Name, Meaning string
	Count         int64
	Passed        bool
}

// checkMeanings are the checks of every run, in the order of the verdict's line.
var checkMeanings = []setting{
	{"oversold", "units sold beyond the stock"},
	{"lost", "acknowledged orders without a row"},
	{"duplicated", "keys with more than one order"},
	{"over_limit", "buyers with more units than the limit"},
	{"unsold", "units left that buyers wanted"},
	{"invented", "rows of no purchase, or with another quantity or price"},
	{"contradicted", "refused purchases that have an order"},
	{"malformed", "acknowledgements that do not match the purchase"},
	{"unexpected", "answers that no buyer of an open sale should get"},
	{"unanswered", "buyers who gave up without an order or a refusal"},
	{"ledger", "ledgers that do not balance or disagree with the rows"},
}

// checks lists every check with its result, and further failures of the run.
func (s *summary) checks() []check {
	failed := make(map[string]int64, len(s.Verdict.Failures))
	for _, f := range s.Verdict.Failures {
		failed[f.Name] = f.Count
	}
	var out []check
	for _, m := range checkMeanings {
		count, broken := failed[m.Name]
		delete(failed, m.Name)
		out = append(out, check{m.Name, m.Value, count, !broken})
	}
	for _, f := range s.Verdict.Failures {
		if _, further := failed[f.Name]; further {
			out = append(out, check{f.Name, "the run proves nothing, or ended badly: see below", f.Count, false})
		}
	}
	return out
}
