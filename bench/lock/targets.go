package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"flashsale/bench/internal/stats"
	"flashsale/bench/internal/targets"
)

// bars writes one line for each target that can be judged: comparisons need another contender,
// and all need ours.
func (r *results) bars(out io.Writer) {
	got := r.of[oursName]
	if got == nil {
		return
	}
	if r.runs(phaseUncontended) {
		r.uncontendedBars(out, got)
	}
	if r.runs(phaseContended) {
		r.contendedBars(out, got)
	}
	targets.None(out, "lock_overlaps", got.overlaps)
	if r.runs(phaseContended) {
		targets.AtMost(out, "lock_longest_wait/mean", stats.MedianOf(got.contended[time.Millisecond], contended.longestToMean), 1.5)
	}
	if r.runs(phaseCommands) {
		targets.AtMost(out, "lock_commands_contended", got.commandsContended.perAcquisition(), 4)
		targets.AtMost(out, "lock_commands_waiting/liveness", got.waiting.perWaiterSecond()*liveness.Seconds(), 1.1)
	}
}

func (r *results) uncontendedBars(out io.Writer, got *result) {
	for _, n := range parallelism {
		if others := r.others(speed(n)); len(others) > 0 {
			targets.AtLeast(out, fmt.Sprintf("lock_uncontended_%d/fastest", n), speed(n)(got)/slices.Max(others), 0.95)
		}
	}
}

func (r *results) contendedBars(out io.Writer, got *result) {
	for _, hold := range holds {
		if others := r.others(handoverP99(hold)); len(others) > 0 {
			name := fmt.Sprintf("lock_handover_p99_hold%d/best_other", hold.Milliseconds())
			limit := 1.0
			if hold > 0 {
				limit = 0.5
			}
			targets.AtMost(out, name, handoverP99(hold)(got)/slices.Min(others), limit)
		}
	}
	if others := r.others(longestWait); len(others) > 0 {
		targets.AtMost(out, "lock_longest_wait/best_other", longestWait(got)/slices.Min(others), 0.2)
	}
}
