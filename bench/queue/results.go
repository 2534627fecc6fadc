package main

import (
	"errors"
	"fmt"
	"time"

	"flashsale/bench/internal/stats"
)

// results holds the measurements.
type results struct {
	names    []string // of the contenders, in the order of the tables
	of       map[string]*result
	ways     []string // to enqueue, in the order of the table
	enqueued map[enqueuing][]enqueued
}

// enqueuing names a measurement of enqueue.
type enqueuing struct {
	way       string
	producers int
}

// result holds the measurements of one contender, one entry for each round.
type result struct {
	contender
	endToEnd []endToEnd
	mixed    []mixed
	latency  []latency
	recovery []recovery

	depth        [2][]depth // few pending, many pending
	deep         int        // how many are many
	depthOutcome outcome
	commands     commands
}

func newResults(all []contender) *results {
	r := &results{of: make(map[string]*result), enqueued: make(map[enqueuing][]enqueued)}
	for _, c := range all {
		r.names = append(r.names, c.name)
		r.of[c.name] = &result{contender: c}
	}
	for _, w := range ways(all) {
		r.ways = append(r.ways, w.String())
	}
	return r
}

// outcome adds up the contender's outcomes of all phases.
func (r *result) outcome() outcome {
	o := r.depthOutcome
	for _, e := range r.endToEnd {
		o = o.plus(e.outcome)
	}
	for _, m := range r.mixed {
		o = o.plus(m.outcome)
	}
	return o
}

// wrongRuns counts runs of our tasks that had succeeded already, and reports whether any phase
// counted them.
func (r *results) wrongRuns() (n int64, ran bool) {
	for _, name := range r.names {
		got := r.of[name]
		if !got.ours {
			continue
		}
		n += got.outcome().duplicates
		ran = ran || len(got.endToEnd)+len(got.mixed)+len(got.depth[0]) > 0
	}
	return n, ran
}

// noteEnqueued adds one measurement of enqueue.
func (r *results) noteEnqueued(way string, producers int, e enqueued) {
	key := enqueuing{way, producers}
	r.enqueued[key] = append(r.enqueued[key], e)
}

// faults is an error when a task of ours was lost, ran twice or ran early. Those of the other
// library only appear in the tables.
func (r *results) faults() error {
	var errs []error
	for _, name := range r.names {
		got := r.of[name]
		if !got.ours {
			continue
		}
		if err := got.outcome().err(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		for _, rec := range got.recovery {
			if rec.late {
				errs = append(errs, fmt.Errorf("%s: tasks of a killed worker had not run elsewhere after %s", name, rec.elapsed))
			}
		}
	}
	return errors.Join(errs...)
}

// speed is the median throughput of adding tasks.
func (r *results) speed(way string, producers int) float64 {
	return stats.MedianOf(r.enqueued[enqueuing{way, producers}], enqueued.perSecond)
}

// endToEndSpeed is the median throughput of tasks end to end.
func (r *result) endToEndSpeed() float64 { return stats.MedianOf(r.endToEnd, endToEnd.perSecond) }

// fastestOther is the faster setting of asynq, end to end; 0 when none was measured.
func (r *results) fastestOther() float64 {
	fastest := 0.0
	for _, name := range r.names {
		if got := r.of[name]; !got.ours {
			fastest = max(fastest, got.endToEndSpeed())
		}
	}
	return fastest
}

func (r recovery) seconds() float64 { return r.elapsed.Seconds() }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
