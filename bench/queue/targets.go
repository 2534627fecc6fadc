package main

import (
	"io"
	"slices"

	"flashsale/bench/internal/stats"
	"flashsale/bench/internal/targets"
)

// bars writes one line for each target whose phases and contenders were run.
func (r *results) bars(out io.Writer) {
	if ratios := r.batchedToSingle(); len(ratios) > 0 {
		targets.AtLeast(out, "queue_enqueue_batched/one_by_one", slices.Min(ratios), 5)
	}
	other := r.fastestOther()
	for _, name := range []string{"batch1", "batch64"} {
		if got := r.of["ours-"+name]; got != nil && other > 0 {
			targets.AtLeast(out, "queue_"+name+"/asynq", got.endToEndSpeed()/other, 20)
		}
	}
	for _, name := range r.names {
		got := r.of[name]
		if !got.ours {
			continue
		}
		if times := pooled(got.latency); len(times) > 0 {
			targets.AtMost(out, "queue_empty_p99_ms", millis(quantile(times, 99)), 5)
		}
		if len(got.recovery) > 0 {
			targets.AtMost(out, "queue_recovery_s", stats.MedianOf(got.recovery, recovery.seconds), recoveryLease.Seconds()+1)
		}
		if few, many := got.depthSpeeds(); few > 0 {
			targets.AtLeast(out, "queue_"+short(got.deep)+"/"+short(shallow)+"_pending", many/few, 0.9)
		}
	}
	if n, ran := r.wrongRuns(); ran {
		targets.None(out, "queue_duplicates", n)
	}
}

// batchedToSingle compares our two ways to add tasks, for each number of producers.
func (r *results) batchedToSingle() []float64 {
	var ratios []float64
	for _, n := range producers {
		single, batched := r.speed(way{ourKind, 1}.String(), n), r.speed(way{ourKind, batchedCall}.String(), n)
		if single > 0 {
			ratios = append(ratios, batched/single)
		}
	}
	return ratios
}

// ourKind is any setting of ours.
var ourKind = contender{ours: true}

// depthSpeeds are the median throughputs with few and with many pending.
func (r *result) depthSpeeds() (few, many float64) {
	return stats.MedianOf(r.depth[0], depth.perSecond), stats.MedianOf(r.depth[1], depth.perSecond)
}
