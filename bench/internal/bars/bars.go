// Package bars prints the figures that are held against a bar, one line each:
//
//	BAR lock_uncontended_1/fastest 1.12 1.00 met
package bars

import (
	"fmt"
	"io"
	"strconv"
)

// AtLeast prints a figure that should not be less than its bar.
func AtLeast(out io.Writer, name string, value, bar float64) {
	bound(out, name, value, bar, value >= bar)
}

// AtMost prints a figure that should not be more than its bar.
func AtMost(out io.Writer, name string, value, bar float64) {
	bound(out, name, value, bar, value <= bar)
}

// None prints a count that should be zero.
func None(out io.Writer, name string, count int64) {
	fmt.Fprintf(out, "BAR %s %d 0 %s\n", name, count, verdict(count == 0))
}

func bound(out io.Writer, name string, value, bar float64, met bool) {
	fmt.Fprintf(out, "BAR %s %s %.2f %s\n", name, decimals(value), bar, verdict(met))
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "missed"
}

// decimals shows three decimals of a small value and two of others. It does not
// round a value to its bar, which is what met and missed are for.
func decimals(v float64) string {
	if v < 1.1 {
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
