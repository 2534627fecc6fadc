package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"

	"flashsale/loadtest/chart"
)

func TestSparkline(t *testing.T) {
	t.Parallel()
	none := math.NaN()
	tests := []struct {
		values  []float64
		columns int
		log     bool
		want    string
	}{
		{nil, 5, false, ""},
		{[]float64{0, 0}, 5, false, "▁▁"},
		{[]float64{0, 1, 2, 4}, 10, false, "▁▃▅█"},
		{[]float64{none, 1, none}, 10, false, " █ "},
		{[]float64{0, 1, 2, 8, 4, 4}, 3, false, "▂█▅"},
		{[]float64{1, 10, 100}, 3, true, "▂▅█"},
		{[]float64{5, 5}, 3, true, "██"},
		{[]float64{none}, 3, true, " "},
	}
	for _, tt := range tests {
		if got := sparkline(tt.values, tt.columns, tt.log); got != tt.want {
			t.Errorf("%v in %d columns: %q, want %q", tt.values, tt.columns, got, tt.want)
		}
	}
	if got := held([]float64{none, 1, none, chart.Cut, none, 2}); got[2] != 1 || !math.IsInf(got[4], 1) || !math.IsNaN(got[0]) {
		t.Errorf("held: %v", got)
	}
}

// The view fits into every terminal, from the first moment of a run on.
func TestScreen_Fits(t *testing.T) {
	t.Parallel()
	busy, start := recorded(make([]shot, 3)...)
	for i := range 500 {
		at := start.Add(time.Duration(i*i) * time.Millisecond)
		busy.sent(at)
		busy.answered(at, &answer{status: 409, code: strings.Repeat("very_long_code_", 9)})
		busy.settled(at, 0, kindAccepted, time.Duration(i)*time.Millisecond)
		busy.read(at, true)
		busy.saw(at, sighting{stock: new(int64(500 - i)), queued: new(int64(i)), oldest: time.Hour})
	}
	empty, _ := recorded()
	c := new(counters)
	c.total.Store(1_000_000)
	c.enter("buying after the return of all workers")
	for _, rec := range []*recorder{empty, busy} {
		for _, width := range []int{1, 2, 10, 20, 36, 37, 60, 80, 300} {
			for _, height := range []int{1, 2, 5, 24} {
				view := strings.TrimSuffix(screen{c: c, rec: rec, width: width, height: height}.View().Content, "\n")
				lines := strings.Split(view, "\n")
				if len(lines) > height {
					t.Errorf("%d by %d: %d lines", width, height, len(lines))
				}
				for _, line := range lines {
					if w := lipgloss.Width(line); w > width && width > 1 {
						t.Errorf("%d by %d: a line of %d: %q", width, height, w, line)
					}
				}
			}
		}
	}
	view := screen{c: c, rec: busy, width: 100, height: 30}.View().Content
	for _, want := range []string{"0 of 1000000 answered", "after the return of", "sent ", "accepted", "p50", "p99", "stock    1 ", "queue    499, oldest 3,600 s", "refused", "reads", "409 very_long"} {
		if !strings.Contains(view, want) {
			t.Errorf("view lacks %q:\n%s", want, view)
		}
	}
}

func TestSeries_Line(t *testing.T) {
	t.Parallel()
	r, start := recorded(shot{})
	for i := range 100 {
		at := start.Add(time.Duration(i) * 10 * time.Millisecond)
		r.sent(at)
		r.settled(at, 0, kindAccepted, 20*time.Millisecond)
	}
	r.saw(start, sighting{stock: new(int64(1234)), queued: new(int64(5))})
	if got, want := r.sofar().line(), "; 100/s sent, 1/s accepted, p50 20 ms, p99 20 ms, stock 1,234, queue 5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
