// Package chart lays out line charts over time for a page of HTML: axes with readable
// labels, lines with gaps, shaded spans and marked moments. It computes positions and texts;
// the page's template writes the SVG, so that every text is escaped there.
package chart

import (
	"math"
	"strconv"
)

// Axis maps values to the range from 0 to 1.
type Axis struct {
	Min, Max float64
	Log      bool
	Ticks    []Tick
}

// Tick is a labelled value of an axis.
type Tick struct {
	Value float64
	Label string
}

// At is the place of a value, from 0 to 1 within the axis.
func (a *Axis) At(v float64) float64 {
	if a.Log {
		return (math.Log(v) - math.Log(a.Min)) / (math.Log(a.Max) - math.Log(a.Min))
	}
	return (v - a.Min) / (a.Max - a.Min)
}

// linear is an axis from 0 to at least top with at most so many steps between ticks, each
// of 1, 2 or 5 times a power of ten. Whole numbers have no tick between them.
func linear(top float64, steps int, whole bool, label func(float64) string) Axis {
	if !(top > 0) {
		top = 1
	}
	step := niceStep(top / float64(steps))
	if whole {
		step = max(1, step)
	}
	n := int(math.Ceil(top/step - 1e-9))
	a := Axis{Max: step * float64(n)}
	for i := range n + 1 {
		v := round(step * float64(i))
		a.Ticks = append(a.Ticks, Tick{v, label(v)})
	}
	return a
}

// logarithmic is an axis over the positive values from low to high. Its ends are 1, 2 or 5
// times a power of ten; it has a tick at every power, and at 2 and 5 times each if it spans
// less than so many powers.
func logarithmic(low, high float64, powers int, label func(float64) string) Axis {
	if !(low > 0) || !(high > 0) {
		low, high = 1, 10
	}
	a := Axis{Log: true, Min: niceFloor(low), Max: niceStep(high)}
	if a.Max/a.Min < 9.999 {
		a.Min = niceFloor(a.Max / 10)
	}
	dense := math.Log10(a.Max/a.Min) < float64(powers)
	every := 1
	if span := math.Log10(a.Max / a.Min); span > 2*float64(powers) {
		every = int(math.Ceil(span / float64(2*powers)))
	}
	first := int(math.Floor(math.Log10(a.Min) + 1e-9))
	for p := first; math.Pow10(p) <= a.Max*1.0001; p++ {
		for _, m := range []float64{1, 2, 5} {
			v := round(m * math.Pow10(p))
			if v < a.Min*0.9999 || v > a.Max*1.0001 || m > 1 && !dense || m == 1 && (p-first)%every != 0 {
				continue
			}
			a.Ticks = append(a.Ticks, Tick{v, label(v)})
		}
	}
	return a
}

// clockSteps are the steps of a time axis from a minute on, in seconds.
var clockSteps = []float64{60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400}

// Time is an axis of seconds from 0 to exactly top, with at most so many steps between
// ticks: of 1, 2 or 5 times a power of ten below a minute, and of whole minutes or hours
// beyond it.
func Time(top float64, steps int) Axis {
	if !(top > 0) {
		top = 1
	}
	step := timeStep(top, top/float64(steps))
	a := Axis{Max: top}
	for i := 0; step*float64(i) <= top*1.0001; i++ {
		v := round(step * float64(i))
		a.Ticks = append(a.Ticks, Tick{v, clock(v, step)})
	}
	return a
}

// timeStep is the smallest step of at least so much that fits into the axis.
func timeStep(top, least float64) float64 {
	if step := niceStep(least); step <= 50 {
		return min(step, niceFloor(top))
	}
	const day = 86400
	if least > day {
		return day * min(niceStep(least/day), niceFloor(top/day))
	}
	step := 50.0
	for _, s := range clockSteps {
		if s <= top {
			step = s
		}
		if s >= least {
			break
		}
	}
	return step
}

// clock labels a time in the unit that the step has.
func clock(v, step float64) string {
	switch {
	case step >= 3600:
		return Significant(v/3600) + " h"
	case step >= 60:
		return Significant(v/60) + " min"
	case step < 0.1:
		return Number(1000*v, Decimals(1000*step)) + " ms"
	default:
		return Seconds(v, Decimals(step))
	}
}

// Decimals is how many decimals a step needs.
func Decimals(step float64) int { return max(0, -int(math.Floor(math.Log10(step)+1e-9))) }

// niceStep rounds up to 1, 2 or 5 times a power of ten.
func niceStep(v float64) float64 {
	unit := math.Pow10(int(math.Floor(math.Log10(v))))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*unit*(1+1e-9) {
			return round(m * unit)
		}
	}
	return round(10 * unit)
}

// niceFloor rounds down to 1, 2 or 5 times a power of ten.
func niceFloor(v float64) float64 {
	unit := math.Pow10(int(math.Floor(math.Log10(v))))
	for _, m := range []float64{5, 2, 1} {
		if v >= m*unit*(1-1e-9) {
			return round(m * unit)
		}
	}
	return round(unit)
}

// round removes the error of multiples such as 3*0.1.
func round(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 12, 64), 64)
	if err != nil {
		return v
	}
	return r
}
