package chart

import (
	"slices"
	"strings"
	"testing"
)

// ten is a chart of ten points, one each second.
func ten(lines ...Line) *Chart {
	c := &Chart{Title: "t", Half: 0.5, Label: Count, XText: func(v float64) string { return Seconds(v, 0) }}
	for i := range 10 {
		c.X = append(c.X, float64(i)+0.5)
	}
	c.XAxis = func(steps int) Axis { return Time(10, steps) }
	for _, l := range lines {
		for len(l.Values) < 10 {
			l.Values = append(l.Values, None)
		}
		l.Text = Count
		c.Lines = append(c.Lines, l)
	}
	return c
}

func TestDraw_Gaps(t *testing.T) {
	t.Parallel()
	values := []float64{1, 2, None, 3, Cut, 4, 5}
	tests := []struct {
		line          Line
		strokes, dots int
	}{
		{Line{Values: values}, 2, 1},
		{Line{Values: values, Sparse: true}, 2, 5},
		{Line{Values: []float64{None, 7}}, 0, 1},
		{Line{Values: []float64{None, 7}, Sparse: true}, 0, 1},
		{Line{}, 0, 0},
	}
	for _, tt := range tests {
		d := ten(tt.line).Draw(900, 300, 70, true)
		if p := d.Paths[0]; len(p.Points) != tt.strokes || len(p.Dots) != tt.dots {
			t.Errorf("%v: %d strokes and %d dots, want %d and %d", tt.line.Values, len(p.Points), len(p.Dots), tt.strokes, tt.dots)
		}
	}
	step := ten(Line{Values: []float64{1, 2, 3}, Step: true}).Draw(900, 300, 70, true)
	if n := len(strings.Fields(step.Paths[0].Points[0])); n != 5 {
		t.Errorf("three steps have %d corners, want 5", n)
	}
}

// A clipped line does not make the others flat, and stays within the plot.
func TestDraw_Clip(t *testing.T) {
	t.Parallel()
	d := ten(Line{Values: []float64{1e6, 0}, Clip: true}, Line{Values: []float64{5, 10}}).Draw(900, 300, 70, true)
	if top := d.YTicks[len(d.YTicks)-1].Label; top != "10" {
		t.Errorf("the axis ends at %s", top)
	}
	if want := "110.8," + Significant(d.Top) + " "; !strings.HasPrefix(d.Paths[0].Points[0], want) {
		t.Errorf("the clipped line is at %s, want %s", d.Paths[0].Points[0], want)
	}
}

// Zero has no place on a logarithmic axis; it is in the table all the same.
func TestDraw_LogarithmOfZero(t *testing.T) {
	t.Parallel()
	c := ten(Line{Name: "a", Values: []float64{0, 10, 100, 0}})
	c.Log = true
	if p := c.Draw(900, 300, 70, true).Paths[0]; len(p.Points) != 1 || len(strings.Fields(p.Points[0])) != 2 {
		t.Errorf("drawn as %v", p)
	}
	rows := c.Rows()
	if len(rows) != 4 || !slices.Equal(rows[0], []string{"0 s", "0"}) || !slices.Equal(rows[2], []string{"2 s", "100"}) {
		t.Errorf("rows %v", rows)
	}
	none := ten(Line{Values: []float64{0, 0}})
	none.Log = true
	if !none.Blank() || c.Blank() || ten(Line{Values: []float64{0}}).Blank() {
		t.Error("a chart is blank if nothing can be drawn")
	}
}

// The names of marks never overlap and stay within the drawing.
func TestDraw_Flags(t *testing.T) {
	t.Parallel()
	for _, width := range []float64{900, 380} {
		c := ten(Line{Values: []float64{1}})
		for _, at := range []float64{0, 0.1, 0.2, 5, 5.2, 9.8, 9.9, 10} {
			c.Marks = append(c.Marks, Mark{at, "all workers ready again"})
		}
		d := c.Draw(width, 300, 60, false)
		long := boldWidth * float64(len("all workers ready again"))
		for i, f := range d.Flags {
			if f.LabelX < 0 || f.LabelX+long > width || f.Y >= d.Top {
				t.Errorf("width %g: flag %+v, the plot begins at %g", width, f, d.Top)
			}
			for _, g := range d.Flags[:i] {
				if f.Y == g.Y && f.LabelX < g.LabelX+long && g.LabelX < f.LabelX+long {
					t.Errorf("width %g: %+v covers %+v", width, f, g)
				}
			}
		}
		if len(d.Hints) > 0 {
			t.Error("hints were not asked for")
		}
	}
}

func TestDraw_Hints(t *testing.T) {
	t.Parallel()
	c := ten(Line{Name: "a", Values: []float64{1, 2}}, Line{Name: "b", Values: []float64{None, 1500}})
	c.Spans = []Span{{From: -1, To: 2, Name: "down"}}
	d := c.Draw(900, 300, 70, true)
	if len(d.Hints) != 10 || d.Hints[1].Text != "1 s\na: 2\nb: 1,500" || d.Hints[0].Text != "0 s\na: 1" {
		t.Errorf("hints %+v", d.Hints)
	}
	if b := d.Bands[0]; b.X != d.Left || b.Width <= 0 || b.X+b.Width > d.Right {
		t.Errorf("band %+v", b)
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	c := ten(Line{Name: "a", Values: []float64{0}}, Line{Name: "b", Values: []float64{0}}, Line{Name: "c", Values: []float64{0, 1}})
	c.Keep("a")
	if len(c.Lines) != 2 || c.Lines[0].Name != "a" || c.Lines[1].Name != "c" {
		t.Errorf("kept %v", c.Lines)
	}
}
