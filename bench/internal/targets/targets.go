// Package targets prints figures with their targets, one line each:
//
//	BAR lock_uncontended_1/fastest 1.12 1.00 met
package targets

import (
	"fmt"
	"io"
	"strconv"
)

// AtLeast prints a figure that should not be less than its target.
func AtLeast(out io.Writer, name string, value, target float64) {
	bound(out, name, value, target, value >= target)
}

// AtMost prints a figure that should not be more than its target.
func AtMost(out io.Writer, name string, value, target float64) {
	bound(out, name, value, target, value <= target)
}

// None prints a count that should be zero.
func None(out io.Writer, name string, count int64) {
	fmt.Fprintf(out, "BAR %s %d 0 %s\n", name, count, verdict(count == 0))
}

func bound(out io.Writer, name string, value, target float64, met bool) {
	fmt.Fprintf(out, "BAR %s %s %.2f %s\n", name, decimals(value), target, verdict(met))
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "missed"
}

// decimals shows three decimals of a small value and two of others. It does not round a value
// to its target; the words met and missed show the result.
func decimals(v float64) string {
	if v < 1.1 {
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
