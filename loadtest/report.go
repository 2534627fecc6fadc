package main

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"math"
	"os"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

//go:embed report.html
var reportPage string

var reportTemplate = template.Must(template.New("report").Parse(reportPage))

// The plot's size and margins in SVG units.
const (
	plotWidth, plotHeight = 860.0, 340.0
	plotLeft, plotRight   = 70.0, 20.0
	plotTop, plotBottom   = 20.0, 40.0
)

// plot is a latency distribution by percentile. The percentiles are spread by
// their nines, so that the tail has as much room as the body.
type plot struct {
	Width, Height            float64
	Left, Right, Top, Bottom float64 // edges of the drawing area
	XTicks, YTicks           []tick
	Curves                   []curve
}

type tick struct {
	At    float64
	Label string
}

type curve struct {
	Name, Points, Color string
	LegendY             float64
}

// newPlot draws the curves of all requests and of the accepted ones.
func newPlot(all, accepted *hdrhistogram.Histogram) plot {
	p := plot{Width: plotWidth, Height: plotHeight, Left: plotLeft, Right: plotWidth - plotRight, Top: plotTop, Bottom: plotHeight - plotBottom}
	// The last percentile shown is the one that still has a request beyond it.
	nines := max(1, math.Log10(float64(max(all.TotalCount(), 1))))
	top := niceCeiling(float64(max(all.Max(), 1)) / 1000)
	x := func(n float64) float64 { return p.Left + (p.Right-p.Left)*n/nines }
	y := func(ms float64) float64 { return p.Bottom - (p.Bottom-p.Top)*ms/top }
	for _, t := range []tick{{0, "0"}, {math.Log10(2), "50"}, {1, "90"}, {2, "99"}, {3, "99.9"}, {4, "99.99"}, {5, "99.999"}} {
		if t.At <= nines {
			p.XTicks = append(p.XTicks, tick{x(t.At), t.Label + " %"})
		}
	}
	for i := range 6 {
		ms := top * float64(i) / 5
		p.YTicks = append(p.YTicks, tick{y(ms), fmt.Sprintf("%.3g ms", ms)})
	}
	for i, c := range []struct {
		name, color string
		h           *hdrhistogram.Histogram
	}{{"all requests", "#2563eb", all}, {"accepted", "#16a34a", accepted}} {
		if c.h.TotalCount() == 0 {
			continue
		}
		var points strings.Builder
		const steps = 200
		for s := range steps + 1 {
			n := nines * float64(s) / steps
			ms := float64(c.h.ValueAtQuantile(100*(1-math.Pow(10, -n)))) / 1000
			fmt.Fprintf(&points, "%.1f,%.1f ", x(n), y(ms))
		}
		p.Curves = append(p.Curves, curve{c.name, points.String(), c.color, p.Top + 16 + 18*float64(i)})
	}
	return p
}

// niceCeiling rounds up to 1, 2 or 5 times a power of ten.
func niceCeiling(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*unit {
			return m * unit
		}
	}
	return 10 * unit
}

// writeReport writes the HTML report. It refers to nothing outside the file.
func (s *summary) writeReport(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	page := struct {
		*summary
		Plot          plot
		Distributions []distribution
		Facts         []string
	}{s, newPlot(s.latency, s.accepted), s.distributions(), s.facts()}
	if err := reportTemplate.Execute(f, page); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
