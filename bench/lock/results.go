package main

import (
	"time"

	"flashsale/bench/internal/stats"
)

// results holds the measurements of each contender.
type results struct {
	names []string // in the order of the tables
	of    map[string]*result
	runs  func(phase string) bool // whether a phase was measured
}

type result struct {
	waitsOnly         bool
	uncontended       map[int][]uncontended // by goroutines, one for each round
	contended         map[time.Duration][]contended
	commandsAlone     commands
	commandsContended commands
	waiting           waiting
	overlaps          int64 // over all phases
	stalled           int64 // goroutines, over all uncontended phases
}

func newResults(all []contender, runs func(phase string) bool) *results {
	r := &results{runs: runs, of: make(map[string]*result)}
	for _, c := range all {
		r.names = append(r.names, c.name())
		r.of[c.name()] = &result{
			waitsOnly:   c.waitsOnly(),
			uncontended: make(map[int][]uncontended),
			contended:   make(map[time.Duration][]contended),
		}
	}
	return r
}

// others returns a figure of all other contenders that have it.
func (r *results) others(figure func(*result) float64) []float64 {
	var v []float64
	for _, name := range r.names {
		if f := figure(r.of[name]); name != oursName && f > 0 {
			v = append(v, f)
		}
	}
	return v
}

func speed(n int) func(*result) float64 {
	return func(r *result) float64 { return stats.MedianOf(r.uncontended[n], uncontended.perSecond) }
}

func handoverP99(hold time.Duration) func(*result) float64 {
	return func(r *result) float64 {
		return stats.MedianOf(r.contended[hold], func(c contended) float64 { return float64(c.p99) })
	}
}

// longestWait uses the longer hold. A goroutine that was never served waited for the whole
// window.
func longestWait(r *result) float64 {
	return stats.MedianOf(r.contended[time.Millisecond], func(c contended) float64 {
		if c.unserved > 0 {
			return float64(max(c.longestWait, c.Elapsed))
		}
		return float64(c.longestWait)
	})
}

// longestToMean measures fairness: 1 if all goroutines wait equally long.
func (c contended) longestToMean() float64 {
	return stats.Ratio(float64(c.longestWait), float64(c.meanWait))
}
