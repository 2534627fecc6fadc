package main

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"flashsale/loadtest/chart"
)

// The styles of lines: colours and patterns of report.html. A quantity has the same style in
// every chart.
const (
	styleDue = iota
	styleSent
	styleGood
	styleRefused
	styleFailed
	styleOther
	styleMore
	styles
)

// Heights of plots.
const (
	tall  = 240
	small = 150
)

// figures draws the charts of the report.
func (s *summary) figures() []figure {
	t := s.Series
	out := []figure{
		newFigure(t.rates(), tall),
		newFigure(t.latencies(), tall),
		newFigure(hdr(s.latency, s.accepted), tall),
		newFigure(t.stock(s.Load.Stock, s.Load.Quantity), small),
		newFigure(t.queue(), small),
		newFigure(t.ages(), small),
		newFigure(t.refusals(), tall),
	}
	if s.Reads != nil {
		out = append(out, newFigure(t.reads(), small))
	}
	return out
}

// overTime is a chart without lines over the time of the run.
func (t *series) overTime(id, title, unit string) *chart.Chart {
	width := t.IntervalMS / 1000
	top := width
	c := &chart.Chart{ID: id, Title: title, Unit: unit, XName: "time since the start", Half: width / 2, Label: chart.Count}
	for i := range t.Points {
		c.X = append(c.X, t.Points[i].At+width/2)
		top = t.Points[i].At + width
	}
	for _, m := range t.Marks {
		c.Marks = append(c.Marks, chart.Mark{At: m.At, Name: m.What})
		top = max(top, m.At)
	}
	for _, o := range t.Outages {
		c.Spans = append(c.Spans, chart.Span{From: o.From, To: o.To, Name: o.What})
		top = max(top, o.To)
		// A kill is marked already, and more names than a few cannot be read.
		if o.What == noAnswer && len(t.Outages) <= 4 {
			c.Marks = append(c.Marks, chart.Mark{At: o.From, Name: "no answer"})
		}
	}
	c.XAxis = func(steps int) chart.Axis { return chart.Time(top, steps) }
	c.XText = func(v float64) string { return chart.Seconds(max(v, 0), chart.Decimals(width)) }
	return c
}

// values reads one value of each point.
func (t *series) values(of func(*point) float64) []float64 {
	out := make([]float64, len(t.Points))
	for i := range t.Points {
		out[i] = of(&t.Points[i])
	}
	return out
}

// perSecond reads one count of each point as a rate.
func (t *series) perSecond(of func(*point) int64) []float64 {
	return t.values(func(p *point) float64 { return float64(of(p)) * 1000 / t.IntervalMS })
}

func rateText(v float64) string { return chart.Count(v) + "/s" }

// answerKind returns the group of answers in the chart of rates.
func answerKind(name string) int {
	switch {
	case strings.HasPrefix(name, "2"):
		return styleGood
	case strings.HasPrefix(name, "4") && !strings.HasPrefix(name, "408") && !strings.HasPrefix(name, "429"):
		return styleRefused
	default:
		return styleFailed
	}
}

// sum adds the answers of a group.
func (t *series) sum(kind int) func(*point) int64 {
	return func(p *point) (n int64) {
		for i, name := range t.Answers {
			if answerKind(name) == kind {
				n += p.Answers[i]
			}
		}
		return n
	}
}

// rates is the chart of requests per second.
func (t *series) rates() *chart.Chart {
	c := t.overTime("rate", "Requests per second", "per second")
	line := func(name string, style int, of func(*point) int64) chart.Line {
		return chart.Line{Name: name, Style: style, Values: t.perSecond(of), Text: rateText}
	}
	due := line("due", styleDue, func(p *point) int64 { return p.Due })
	due.Clip = true
	c.Lines = []chart.Line{
		due,
		line("sent", styleSent, func(p *point) int64 { return p.Sent }),
		line("accepted (orders)", styleGood, func(p *point) int64 { return p.Orders }),
		line("refused", styleRefused, t.sum(styleRefused)),
		line("busy or no answer", styleFailed, t.sum(styleFailed)),
	}
	most := 0.0
	for _, l := range c.Lines[1:] {
		most = max(most, slices.Max(append(l.Values, 0)))
	}
	if peak := slices.Max(append(due.Values, 0)); peak > 2*most {
		c.Note = "The line of the requests that were due peaks at " + rateText(peak) + " and leaves the chart."
	}
	c.Empty = "Nothing was sent."
	c.Keep("due", "sent", "accepted (orders)")
	return c
}

// latencies is the chart of latency over time.
func (t *series) latencies() *chart.Chart {
	c := t.overTime("latency", "Latency over time", "from due to the end of the last answer, logarithmic")
	c.Log, c.Label = true, chart.Milliseconds
	line := func(name string, style int, of func(*pointLatency) float64) chart.Line {
		return chart.Line{Name: name, Style: style, Text: chart.Milliseconds, Values: t.values(func(p *point) float64 {
			if p.Latency == nil {
				return chart.None
			}
			// Nothing is faster than the clock can tell.
			return max(of(p.Latency), 0.001)
		})}
	}
	c.Lines = []chart.Line{
		line("max", styleDue, func(l *pointLatency) float64 { return l.Max }),
		line("p99", styleFailed, func(l *pointLatency) float64 { return l.P99 }),
		line("p90", styleRefused, func(l *pointLatency) float64 { return l.P90 }),
		line("p50", styleSent, func(l *pointLatency) float64 { return l.P50 }),
	}
	c.Note = "Each point shows the requests that got their final answer in the interval. A gap means that none did."
	c.Empty = "No request was answered."
	return c
}

// hdr is the chart of latency by percentile. The percentiles are spread by their nines, so
// that the tail has as much room as the body.
func hdr(all, accepted *hdrhistogram.Histogram) *chart.Chart {
	const steps = 120
	nines := max(1, math.Log10(float64(max(all.TotalCount(), 1))))
	c := &chart.Chart{
		ID: "hdr", Title: "Latency by percentile", Unit: "from due to the end of the last answer, logarithmic",
		XName: "percentile", XText: nineText, Log: true, Label: chart.Milliseconds, Half: nines / steps / 2,
		Empty: "No request was answered.",
	}
	c.XAxis = func(int) chart.Axis {
		a := chart.Axis{Max: nines}
		for _, p := range []float64{0, 50, 90, 99, 99.9, 99.99, 99.999} {
			if n := -math.Log10(1 - p/100); n <= nines+1e-9 {
				a.Ticks = append(a.Ticks, chart.Tick{Value: n, Label: chart.Percent(p)})
			}
		}
		return a
	}
	for i := range steps + 1 {
		c.X = append(c.X, nines*float64(i)/steps)
	}
	for _, l := range []struct {
		name  string
		style int
		h     *hdrhistogram.Histogram
	}{{"all requests", styleSent, all}, {"accepted", styleGood, accepted}} {
		line := chart.Line{Name: l.name, Style: l.style, Text: chart.Milliseconds}
		for _, n := range c.X {
			v := chart.None
			if l.h.TotalCount() > 0 {
				v = float64(l.h.ValueAtQuantile(100*(1-math.Pow(10, -n)))) / 1000
			}
			line.Values = append(line.Values, v)
		}
		c.Lines = append(c.Lines, line)
	}
	return c
}

// nineText is the percentile of a number of nines.
func nineText(n float64) string {
	percent := 100 * (1 - math.Pow(10, -max(n, 0)))
	return chart.Number(percent, int(max(0, math.Ceil(n)))+1) + " %"
}

// stock is the chart of the units left.
func (t *series) stock(stock, quantity int64) *chart.Chart {
	c := t.overTime("stock", "Stock left", "units")
	c.Whole = true
	left := stock
	c.Lines = []chart.Line{
		{Name: "not acknowledged to a buyer", Style: styleGood, Text: chart.Count, Values: t.values(func(p *point) float64 {
			left -= p.Orders * quantity
			return float64(left)
		})},
		{Name: "stated by the item's page", Style: styleSent, Sparse: true, Step: true, Text: chart.Count, Values: t.values(func(p *point) float64 {
			return stated(p, p.Stock)
		})},
	}
	c.Note = "The page's stock may be a second old. It also counts orders that are not acknowledged yet."
	return c
}

// stated is a value of the service's; a line has a gap where the service did not answer.
func stated[N int64 | float64](p *point, v *N) float64 {
	switch {
	case v != nil:
		return float64(*v)
	case p.Missed > 0:
		return chart.Cut
	default:
		return chart.None
	}
}

const noQueueStated = "The service did not state its queue."

// queue is the chart of accepted orders that are not committed.
func (t *series) queue() *chart.Chart {
	c := t.overTime("queue", "Orders queued", "accepted orders without a row")
	c.Whole, c.Empty = true, noQueueStated
	c.Lines = []chart.Line{{Name: "orders queued", Style: styleSent, Sparse: true, Text: chart.Count, Values: t.values(func(p *point) float64 {
		return stated(p, p.Queued)
	})}}
	return c
}

// ages is the chart of the oldest queued order.
func (t *series) ages() *chart.Chart {
	c := t.overTime("age", "Oldest queued order", "time in the queue")
	c.Label, c.Empty = chart.Milliseconds, noQueueStated
	c.Lines = []chart.Line{{Name: "oldest", Style: styleRefused, Sparse: true, Text: chart.Milliseconds, Values: t.values(func(p *point) float64 {
		return stated(p, p.OldestMS)
	})}}
	return c
}

// refusals is the chart of the answers that are not orders, by code.
func (t *series) refusals() *chart.Chart {
	c := t.overTime("refusals", "Refusals by code", "per second, logarithmic")
	c.Log, c.Empty = true, "Nothing was refused."
	type class struct {
		index int
		total int64
	}
	var classes []class
	for i, name := range t.Answers {
		if answerKind(name) == styleGood {
			continue
		}
		k := class{index: i}
		for j := range t.Points {
			k.total += t.Points[j].Answers[i]
		}
		classes = append(classes, k)
	}
	slices.SortStableFunc(classes, func(a, b class) int { return cmp.Compare(b.total, a.total) })
	// A style for each of the most frequent, and one for all the rest.
	const separate = styles - 1
	rest := classes[min(len(classes), separate):]
	for i, k := range classes[:min(len(classes), separate)] {
		c.Lines = append(c.Lines, chart.Line{
			Name: t.Answers[k.index], Style: []int{styleRefused, styleFailed, styleOther, styleSent, styleMore, styleGood}[i], Text: rateText,
			Values: t.perSecond(func(p *point) int64 { return p.Answers[k.index] }),
		})
	}
	if len(rest) > 0 {
		c.Lines = append(c.Lines, chart.Line{Name: "others", Style: styleDue, Text: rateText, Values: t.perSecond(func(p *point) (n int64) {
			for _, k := range rest {
				n += p.Answers[k.index]
			}
			return n
		})})
	}
	return c
}

// reads is the chart of the lobby.
func (t *series) reads() *chart.Chart {
	c := t.overTime("reads", "Reads of the item's page", "per second")
	c.Empty = "The page was not read."
	c.Lines = []chart.Line{
		{Name: "answered", Style: styleSent, Text: rateText, Values: t.perSecond(func(p *point) int64 { return p.Reads - p.ReadFailures })},
		{Name: "failed", Style: styleFailed, Text: rateText, Values: t.perSecond(func(p *point) int64 { return p.ReadFailures })},
	}
	c.Keep("answered")
	return c
}
