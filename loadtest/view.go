package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"flashsale/loadtest/chart"
)

// redrawEvery is the pause between two frames. A frame costs the recorder about a tenth of
// a millisecond.
const redrawEvery = 200 * time.Millisecond

// screen is the display's model: the quantities of the report, from the start of the run
// until now.
type screen struct {
	c             *counters
	rec           *recorder
	width, height int
}

type redraw struct{}

func nextRedraw() tea.Cmd {
	return tea.Tick(redrawEvery, func(time.Time) tea.Msg { return redraw{} })
}

// Init starts the clock of the display.
func (s screen) Init() tea.Cmd { return nextRedraw() }

// Update records the terminal's size and schedules the next redraw.
func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case redraw:
		return s, nextRedraw()
	}
	return s, nil
}

var (
	barDone = lipgloss.NewStyle().Foreground(lipgloss.Color("2"))
	barRest = lipgloss.NewStyle().Foreground(lipgloss.Color("8"))
	faint   = lipgloss.NewStyle().Faint(true)
	gauge   = lipgloss.NewStyle().Foreground(lipgloss.Color("6"))
)

// View draws the bar, the counters and a line for each quantity. A small terminal shows the
// first lines only, the most important ones.
func (s screen) View() tea.View {
	lines := []string{s.bar(), faint.Render(s.c.figures())}
	lines = append(lines, s.rec.sofar().gauges(s.width)...)
	if s.height > 0 {
		lines = lines[:min(len(lines), max(1, s.height-1))]
	}
	if s.width > 1 {
		// The last column stays free: terminals differ in where the cursor is behind it.
		clip := lipgloss.NewStyle().MaxWidth(s.width - 1)
		for i := range lines {
			lines[i] = clip.Render(lines[i])
		}
	}
	return tea.NewView(strings.Join(lines, "\n") + "\n")
}

func (s screen) bar() string {
	width := max(10, min(40, s.width/2))
	share := s.c.share()
	filled := min(width, int(share*float64(width)))
	return barDone.Render(strings.Repeat("█", filled)) + barRest.Render(strings.Repeat("░", width-filled)) +
		fmt.Sprintf(" %3.0f %%  %s", share*100, s.c.phaseName())
}

// The widths of a gauge's columns. Its curve takes the rest.
const (
	gaugeName  = 9
	gaugeText  = 22
	gaugeCurve = 60 // at most
)

// gauges are the lines of the live view: a name, the present value and the curve of the run.
// The lines that a small terminal leaves out come last.
func (t *series) gauges(width int) []string {
	columns := min(gaugeCurve, width-gaugeName-gaugeText)
	row := func(name, text string, values []float64, log bool) string {
		if name == "stock" || name == "queue" {
			values = held(values)
		}
		line := fmt.Sprintf("%-*s%-*s", gaugeName, name, gaugeText, text)
		if columns >= 5 {
			line += gauge.Render(sparkline(values, columns, log))
		}
		return strings.TrimRight(line, " ")
	}
	now := t.now()
	sent := t.perSecond(func(p *point) int64 { return p.Sent })
	orders := t.perSecond(func(p *point) int64 { return p.Orders })
	latency := func(of func(*pointLatency) float64) []float64 {
		return t.values(func(p *point) float64 {
			if p.Latency == nil {
				return chart.None
			}
			return max(of(p.Latency), 0.001)
		})
	}
	p50 := latency(func(l *pointLatency) float64 { return l.P50 })
	p99 := latency(func(l *pointLatency) float64 { return l.P99 })
	lines := []string{
		row("sent", rateText(now.sent), sent, false),
		row("accepted", rateText(now.orders), orders, false),
		row("p50", orDash(last(p50), chart.Milliseconds), p50, true),
		row("p99", orDash(last(p99), chart.Milliseconds), p99, true),
	}
	stock := t.values(func(p *point) float64 { return stated(p, p.Stock) })
	lines = append(lines, row("stock", orDash(last(stock), chart.Count), stock, false))
	queued := t.values(func(p *point) float64 { return stated(p, p.Queued) })
	age := last(t.values(func(p *point) float64 { return stated(p, p.OldestMS) }))
	text := orDash(last(queued), chart.Count)
	if has(age) && age > 0 {
		text += ", oldest " + chart.Milliseconds(age)
	}
	lines = append(lines, row("queue", text, queued, false))
	refused := t.perSecond(func(p *point) int64 { return t.sum(styleRefused)(p) + t.sum(styleFailed)(p) })
	lines = append(lines, row("refused", rateText(now.refused), refused, false))
	if reads := t.perSecond(func(p *point) int64 { return p.Reads }); slices.Max(append(reads, 0)) > 0 {
		lines = append(lines, row("reads", rateText(now.reads), reads, false))
	}
	if codes := t.codes(); codes != "" {
		lines = append(lines, faint.Render(codes))
	}
	return lines
}

// rates of the last second, or of the last interval if that is longer.
type rates struct{ sent, orders, refused, reads float64 }

// now returns the present rates. The last interval is not over and would show too little, so
// the time before it counts too.
func (t *series) now() rates {
	n := max(1, min(len(t.Points), int(math.Ceil(1000/t.IntervalMS))))
	var r rates
	for i := max(0, len(t.Points)-n); i < len(t.Points); i++ {
		p := &t.Points[i]
		r.sent += float64(p.Sent)
		r.orders += float64(p.Orders)
		r.refused += float64(t.sum(styleRefused)(p) + t.sum(styleFailed)(p))
		r.reads += float64(p.Reads)
	}
	per := float64(n) * t.IntervalMS / 1000
	return rates{r.sent / per, r.orders / per, r.refused / per, r.reads / per}
}

// codes lists the refusals so far, the most frequent first.
func (t *series) codes() string {
	type class struct {
		name  string
		total int64
	}
	var all []class
	for i, name := range t.Answers {
		if answerKind(name) == styleGood {
			continue
		}
		k := class{name: name}
		for j := range t.Points {
			k.total += t.Points[j].Answers[i]
		}
		all = append(all, k)
	}
	slices.SortStableFunc(all, func(a, b class) int { return int(b.total - a.total) })
	texts := make([]string, len(all))
	for i, k := range all {
		texts[i] = fmt.Sprintf("%s: %s", k.name, chart.Count(float64(k.total)))
	}
	return strings.Join(texts, ", ")
}

// line is the plain form of the gauges, to follow the counters.
func (t *series) line() string {
	if len(t.Points) == 0 {
		return ""
	}
	now := t.now()
	text := fmt.Sprintf("; %s sent, %s accepted", rateText(now.sent), rateText(now.orders))
	if now.reads > 0 {
		text += ", " + rateText(now.reads) + " read"
	}
	for i := len(t.Points) - 1; i >= 0; i-- {
		if l := t.Points[i].Latency; l != nil {
			text += fmt.Sprintf(", p50 %s, p99 %s", chart.Milliseconds(l.P50), chart.Milliseconds(l.P99))
			break
		}
	}
	if v := last(t.values(func(p *point) float64 { return stated(p, p.Stock) })); has(v) {
		text += ", stock " + chart.Count(v)
	}
	if v := last(t.values(func(p *point) float64 { return stated(p, p.Queued) })); has(v) {
		text += ", queue " + chart.Count(v)
	}
	return text
}

// last is the last value that there is, or chart.None.
func last(values []float64) float64 {
	for i := len(values) - 1; i >= 0; i-- {
		if has(values[i]) {
			return values[i]
		}
	}
	return chart.None
}

func has(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func orDash(v float64, text func(float64) string) string {
	if !has(v) {
		return "–"
	}
	return text(v)
}

// held repeats each value until the next, over the points in which nothing was measured.
func held(values []float64) []float64 {
	out := slices.Clone(values)
	for i := 1; i < len(out); i++ {
		if math.IsNaN(out[i]) {
			out[i] = out[i-1]
		}
	}
	return out
}

var blocks = []rune("▁▂▃▄▅▆▇█")

// sparkline draws values in so many columns, each the largest of its share. A column
// without a value is a space.
func sparkline(values []float64, columns int, log bool) string {
	n := min(columns, len(values))
	tops := make([]float64, n)
	low, high := math.Inf(1), 0.0
	for i := range tops {
		tops[i] = chart.None
		for _, v := range values[i*len(values)/n : (i+1)*len(values)/n] {
			if has(v) && !(v <= tops[i]) {
				tops[i] = v
				low, high = min(low, v), max(high, v)
			}
		}
	}
	var b strings.Builder
	for _, v := range tops {
		share := v / high
		if log {
			share = (math.Log(v) - math.Log(low/2)) / (math.Log(high) - math.Log(low/2))
		}
		switch {
		case !has(v):
			b.WriteByte(' ')
		case !(share > 0):
			b.WriteRune(blocks[0])
		default:
			b.WriteRune(blocks[min(len(blocks)-1, int(share*float64(len(blocks))))])
		}
	}
	return b.String()
}
