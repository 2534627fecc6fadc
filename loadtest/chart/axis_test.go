package chart

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func labels(a Axis) string {
	texts := make([]string, len(a.Ticks))
	for i, t := range a.Ticks {
		texts[i] = t.Label
	}
	return strings.Join(texts, "|")
}

func TestLinear(t *testing.T) {
	t.Parallel()
	tests := []struct {
		top   float64
		whole bool
		label func(float64) string
		want  string
	}{
		{0, false, Count, "0|0.2|0.4|0.6|0.8|1"},
		{0, true, Count, "0|1"},
		{3, true, Count, "0|1|2|3"},
		{1000, false, Milliseconds, "0 ms|200 ms|400 ms|600 ms|800 ms|1 s"},
		{0.7, false, Milliseconds, "0 ms|0.2 ms|0.4 ms|0.6 ms|0.8 ms"},
		{18_790, false, Count, "0|5,000|10,000|15,000|20,000"},
		{2_000_000, false, Count, "0|500,000|1,000,000|1,500,000|2,000,000"},
	}
	for _, tt := range tests {
		if got := labels(linear(tt.top, 5, tt.whole, tt.label)); got != tt.want {
			t.Errorf("0 to %g: %s, want %s", tt.top, got, tt.want)
		}
	}
}

func TestLogarithmic(t *testing.T) {
	t.Parallel()
	tests := []struct {
		low, high float64
		want      string
	}{
		{0.3, 900, "1 ms|10 ms|100 ms|1 s"},
		{40, 1100, "20 ms|50 ms|100 ms|200 ms|500 ms|1 s|2 s"},
		{3, 3, "0.5 ms|1 ms|2 ms|5 ms"},
		{0, 0, "1 ms|2 ms|5 ms|10 ms"},
		{0.001, 100_000, "0.001 ms|0.1 ms|10 ms|1 s|100 s"},
	}
	for _, tt := range tests {
		if got := labels(logarithmic(tt.low, tt.high, 3, Milliseconds)); got != tt.want {
			t.Errorf("%g to %g: %s, want %s", tt.low, tt.high, got, tt.want)
		}
	}
}

func TestTime(t *testing.T) {
	t.Parallel()
	for top, want := range map[float64]string{
		0.01: "0 ms|2 ms|4 ms|6 ms|8 ms|10 ms",
		0.4:  "0.0 s|0.1 s|0.2 s|0.3 s|0.4 s",
		1.13: "0.0 s|0.5 s|1.0 s",
		10.1: "0 s|5 s|10 s",
		240:  "0 s|50 s|100 s|150 s|200 s",
		299:  "0 min|1 min|2 min|3 min|4 min",
		3600: "0 min|20 min|40 min|60 min",
		2e4:  "0 h|2 h|4 h",
	} {
		if got := labels(Time(top, 5)); got != want {
			t.Errorf("%g s: %s, want %s", top, got, want)
		}
	}
}

// Whatever the range: no label has an exponent, no two labels are equal, every tick is
// within the axis, and the axis covers the range.
func TestAxes_Readable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		low := math.Pow(10, rapid.Float64Range(-3, 7).Draw(t, "low"))
		high := low * math.Pow(10, rapid.Float64Range(0, 7).Draw(t, "range"))
		label := rapid.SampledFrom([]func(float64) string{Count, Milliseconds}).Draw(t, "label")
		steps := rapid.IntRange(2, 12).Draw(t, "steps")
		for name, a := range map[string]Axis{
			"linear": linear(high, steps, rapid.Bool().Draw(t, "whole"), label), "logarithmic": logarithmic(low, high, 3, label), "time": Time(min(high, 1e7), steps),
		} {
			seen := map[string]bool{}
			for _, tick := range a.Ticks {
				if strings.ContainsAny(tick.Label, "eE+") || seen[tick.Label] {
					t.Fatalf("%s from %g to %g: %s", name, low, high, labels(a))
				}
				seen[tick.Label] = true
				if at := a.At(tick.Value); !(at >= -0.001 && at <= 1.001) {
					t.Fatalf("%s from %g to %g: tick %s at %g", name, low, high, tick.Label, at)
				}
			}
			if len(a.Ticks) < 2 || name != "time" && a.At(high) > 1.0001 || a.Log && a.At(low) < -0.0001 {
				t.Fatalf("%s from %g to %g: from %g to %g, ticks %s", name, low, high, a.Min, a.Max, labels(a))
			}
		}
	})
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"0": Number(0, 0), "-0.5": Number(-0.5, 1), "0.0": Number(-0.01, 1), "999": Number(999, 0), "1,000": Number(999.9, 0), "12,345.68": Number(12345.678, 2),
		"1,234,567": Number(1_234_567, 0), "0.0123": Significant(0.0123), "1.5": Significant(1.5), "12.3": Significant(12.34), "20,000": Significant(20_000),
		"1 ms": Milliseconds(1), "999 ms": Milliseconds(999.4), "1 s": Milliseconds(999.6), "61.2 s": Milliseconds(61_234), "1,000 s": Milliseconds(1e6),
		"50 %": Percent(50), "99.99 %": Percent(99.99), "0.10 s": Seconds(0.1, 2),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
