package chart

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Values of points that have none.
var (
	// None makes a gap, except in a sparse line.
	None = math.NaN()
	// Cut makes a gap in every line.
	Cut = math.Inf(1)
)

// Line is one series of a chart.
type Line struct {
	Name string
	// Style is the number of the line's colour and pattern.
	Style  int
	Values []float64 // as Chart.X; None or Cut: no value
	// Text is a value in the table and in hints.
	Text func(float64) string
	// Sparse joins values over points that have none, because nothing was measured there,
	// and shows each value as a dot. Step keeps a value until the next.
	Sparse, Step bool
	// Clip leaves the line out of the axis's range. Where it leaves the chart, it follows
	// the upper edge.
	Clip bool
}

// Span is a shaded range of the X axis.
type Span struct {
	From, To float64
	Name     string
}

// Mark is a labelled moment of the X axis.
type Mark struct {
	At   float64
	Name string
}

// Chart is what is drawn.
type Chart struct {
	ID, Title string
	// Unit names what the Y axis counts.
	Unit string
	// Note explains the chart. Empty replaces it if no line has a value.
	Note, Empty string

	X     []float64 // ascending
	XAxis func(steps int) Axis
	XName string
	XText func(float64) string
	// Half is half the width of a point, for hints.
	Half float64

	// Log draws a logarithmic Y axis, on which zero is no value. Whole keeps the ticks of
	// a linear one to whole numbers.
	Log, Whole bool
	Label      func(float64) string
	Lines      []Line
	Spans      []Span
	Marks      []Mark
}

// Blank reports whether no line has a value.
func (c *Chart) Blank() bool {
	for i := range c.Lines {
		if slices.ContainsFunc(c.Lines[i].Values, func(v float64) bool { return c.drawn(v) }) {
			return false
		}
	}
	return true
}

// Keep leaves out the lines that are zero throughout, except those that the chart is
// about.
func (c *Chart) Keep(about ...string) {
	c.Lines = slices.DeleteFunc(c.Lines, func(l Line) bool {
		return !slices.Contains(about, l.Name) && !slices.ContainsFunc(l.Values, func(v float64) bool { return has(v) && v != 0 })
	})
}

// drawn reports whether a value can be drawn.
func (c *Chart) drawn(v float64) bool { return has(v) && (!c.Log || v > 0) }

func has(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// yAxis covers the lines that are not clipped, or all if every line is.
func (c *Chart) yAxis(steps int) Axis {
	low, high := math.Inf(1), 0.0
	for _, clipped := range []bool{false, true} {
		for i := range c.Lines {
			if c.Lines[i].Clip != clipped {
				continue
			}
			for _, v := range c.Lines[i].Values {
				if c.drawn(v) {
					low, high = min(low, v), max(high, v)
				}
			}
		}
		if high > 0 {
			break
		}
	}
	if c.Log {
		return logarithmic(low, high, 3, c.Label)
	}
	return linear(high, steps, c.Whole, c.Label)
}

// The sizes of a drawing in SVG units, which are pixels at its natural size.
const (
	fontSize  = 12
	charWidth = 6.7 // of the average character
	boldWidth = 7.4 // of the average character of a mark
	rowHeight = 15  // of a row of marks
	right     = 14
	bottom    = 30
	unitRow   = 20
)

// Drawing is a chart laid out at one size.
type Drawing struct {
	*Chart
	Width, Height            float64
	Left, Right, Top, Bottom float64 // edges of the plot
	XTicks, YTicks           []Place
	Paths                    []Path
	Bands                    []Band
	Flags                    []Flag
	Hints                    []Hint
}

// PlotHeight is the height of the plot.
func (d *Drawing) PlotHeight() float64 { return d.Bottom - d.Top }

// Place is a tick at its position. Without a label only its line is drawn.
type Place struct {
	At    float64
	Label string
}

// Path is a line: its strokes, and the single points between gaps.
type Path struct {
	Style  int
	Points []string
	Dots   []Dot
}

// Dot is a value without neighbours.
type Dot struct{ X, Y float64 }

// Band is a shaded range.
type Band struct {
	X, Width float64
	Name     string
}

// Flag is a marked moment with the place of its label.
type Flag struct {
	X         float64
	LabelX, Y float64 // where the label begins
	Name      string
}

// Hint is the column of a point and the text that a pointer shows there.
type Hint struct {
	X, Width float64
	Text     string
}

// Draw lays the chart out, with a plot of the given height. Left is the room for the labels
// of the Y axis; hints are the texts of the points, which a page without a pointer does not
// need.
func (c *Chart) Draw(width, plot, left float64, hints bool) *Drawing {
	d := &Drawing{Chart: c, Width: width, Left: left, Right: width - right}
	xAxis := c.XAxis(max(2, int((d.Right-d.Left)/75)))
	x := func(v float64) float64 { return tenth(d.Left + (d.Right-d.Left)*xAxis.At(v)) }
	d.placeFlags(x)
	d.Bottom = d.Top + plot
	d.Height = d.Bottom + bottom
	yAxis := c.yAxis(max(2, int(plot/36)))
	y := func(v float64) float64 { return tenth(d.Bottom - (d.Bottom-d.Top)*min(1, yAxis.At(v))) }
	for _, t := range yAxis.Ticks {
		d.YTicks = append(d.YTicks, Place{y(t.Value), t.Label})
	}
	d.placeXTicks(xAxis.Ticks, x)
	for _, s := range c.Spans {
		from, to := max(d.Left, x(s.From)), min(d.Right, x(s.To))
		d.Bands = append(d.Bands, Band{from, max(1, tenth(to-from)), s.Name})
	}
	for i := range c.Lines {
		d.Paths = append(d.Paths, c.path(&c.Lines[i], x, y))
	}
	if hints {
		d.placeHints(x)
	}
	return d
}

// path draws a line with its gaps.
func (c *Chart) path(l *Line, x, y func(float64) float64) Path {
	p := Path{Style: l.Style}
	var stroke []string
	var last Dot
	end := func() {
		switch len(stroke) {
		case 0:
		case 1:
			if !l.Sparse {
				p.Dots = append(p.Dots, last)
			}
		default:
			p.Points = append(p.Points, strings.Join(stroke, " "))
		}
		stroke = nil
	}
	for i, v := range l.Values {
		if !c.drawn(v) {
			if !l.Sparse || math.IsInf(v, 0) {
				end()
			}
			continue
		}
		next := Dot{x(c.X[i]), y(v)}
		if l.Step && len(stroke) > 0 {
			stroke = append(stroke, fmt.Sprintf("%g,%g", next.X, last.Y))
		}
		last = next
		stroke = append(stroke, fmt.Sprintf("%g,%g", last.X, last.Y))
		if l.Sparse {
			p.Dots = append(p.Dots, last)
		}
	}
	end()
	return p
}

// placeXTicks drops the labels that would touch the one before.
func (d *Drawing) placeXTicks(ticks []Tick, x func(float64) float64) {
	free := math.Inf(-1)
	for _, t := range ticks {
		p := Place{x(t.Value), t.Label}
		half := charWidth * float64(len([]rune(t.Label))) / 2
		if p.At-half < free || p.At+half > d.Width {
			p.Label = ""
		} else {
			free = p.At + half + 8
		}
		d.XTicks = append(d.XTicks, p)
	}
}

// placeFlags puts the labels of the marks into as many rows as they need, above the plot.
func (d *Drawing) placeFlags(x func(float64) float64) {
	var rows []float64 // the right end of each row's last label
	for _, m := range d.Marks {
		f := Flag{X: x(m.At), Name: m.Name}
		width := boldWidth * float64(len([]rune(m.Name)))
		f.LabelX = max(2, min(f.X+3, d.Width-2-width))
		row := slices.IndexFunc(rows, func(end float64) bool { return end+8 <= f.LabelX })
		if row < 0 {
			rows = append(rows, 0)
			row = len(rows) - 1
		}
		rows[row] = f.LabelX + width
		f.Y = float64(unitRow + rowHeight*row + fontSize)
		d.Flags = append(d.Flags, f)
	}
	d.Top = float64(unitRow + rowHeight*len(rows) + 4)
}

// placeHints makes a column for each point.
func (d *Drawing) placeHints(x func(float64) float64) {
	for i, at := range d.X {
		from, to := max(d.Left, x(at-d.Half)), min(d.Right, x(at+d.Half))
		if to-from <= 0 {
			continue
		}
		var b strings.Builder
		b.WriteString(d.XText(at - d.Half))
		for j := range d.Lines {
			l := &d.Lines[j]
			if v := l.Values[i]; has(v) {
				fmt.Fprintf(&b, "\n%s: %s", l.Name, l.Text(v))
			}
		}
		d.Hints = append(d.Hints, Hint{from, tenth(to - from), b.String()})
	}
}

// Rows are the chart's data as a table without its head.
func (c *Chart) Rows() [][]string {
	rows := make([][]string, 0, len(c.X))
	for i, at := range c.X {
		row := []string{c.XText(at - c.Half)}
		some := false
		for j := range c.Lines {
			text := "–"
			if v := c.Lines[j].Values[i]; has(v) {
				text, some = c.Lines[j].Text(v), true
			}
			row = append(row, text)
		}
		if some {
			rows = append(rows, row)
		}
	}
	return rows
}

func tenth(v float64) float64 { return math.Round(v*10) / 10 }
