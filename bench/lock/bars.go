package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// bars writes one line for each bar that can be judged: those that compare need
// another contender, and all need ours.
func (r *results) bars(out io.Writer) {
	got := r.of[oursName]
	if got == nil {
		return
	}
	for _, n := range parallelism {
		if others := r.others(speed(n)); len(others) > 0 {
			atLeast(out, fmt.Sprintf("lock_uncontended_%d/fastest", n), speed(n)(got)/slices.Max(others), 1)
		}
	}
	for _, hold := range holds {
		if others := r.others(handoverP99(hold)); len(others) > 0 {
			name := fmt.Sprintf("lock_handover_p99_hold%d/best_other", hold.Milliseconds())
			atMost(out, name, handoverP99(hold)(got)/slices.Min(others), 0.2)
		}
	}
	fmt.Fprintf(out, "BAR lock_overlaps %d 0 %s\n", got.overlaps, verdict(got.overlaps == 0))
	atMost(out, "lock_longest_wait/mean", medianOf(got.contended[time.Millisecond], contended.longestToMean), 1.5)
	atMost(out, "lock_commands_contended", got.commandsContended.perAcquisition(), 4)
	atMost(out, "lock_commands_waiting/liveness", got.waiting.perWaiterSecond()*liveness.Seconds(), 1)
}

func atLeast(out io.Writer, name string, value, bar float64) {
	bound(out, name, value, bar, value >= bar)
}

func atMost(out io.Writer, name string, value, bar float64) {
	bound(out, name, value, bar, value <= bar)
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
