// Package histogram measures durations on paths that every purchase takes. An observation is two
// atomic additions, in memory that requests on other processors rarely use: less than half of what
// the Prometheus client's histogram costs. Prometheus reads both in the same form.
package histogram

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// shards is the number of copies of the counters. It is a power of two.
	shards = 8
	// maxBounds is the largest number of buckets with an upper bound.
	maxBounds = 21
)

// Histogram counts durations by buckets. It is safe for concurrent use.
type Histogram struct {
	desc   *prometheus.Desc
	labels []string // the values of the variable labels
	bounds []time.Duration
	shards [shards]shard
}

// shard is one copy of the counters. Its size is a multiple of a cache line.
type shard struct {
	// sum is in microseconds: in nanoseconds, a backlog of waits of ten minutes would overflow it
	// within an hour.
	sum    atomic.Int64
	counts [maxBounds + 1]atomic.Uint64
	_      [8]byte
}

// Opts describes a Histogram.
type Opts struct {
	Name, Help string
	// Labels are the fixed labels. Histograms with the same name and help may differ in them.
	Labels prometheus.Labels
	// Bounds are the upper bounds of the buckets, ascending, at most 21.
	Bounds []time.Duration
}

// New returns a histogram, which is a prometheus.Collector. It panics if there are too many
// bounds.
func New(o Opts) *Histogram {
	return newHistogram(prometheus.NewDesc(o.Name, o.Help, nil, o.Labels), o.Bounds)
}

func newHistogram(desc *prometheus.Desc, bounds []time.Duration, labels ...string) *Histogram {
	if len(bounds) > maxBounds || !slices.IsSorted(bounds) {
		panic("histogram: invalid bounds for " + desc.String())
	}
	return &Histogram{desc: desc, labels: labels, bounds: bounds}
}

// Observe counts a duration. Callers that run concurrently should pass different shards, of any
// value.
func (h *Histogram) Observe(in int, d time.Duration) { h.ObserveN(in, d, 1) }

// ObserveN counts a duration n times: for a step that n purchases made together. A negative
// duration, the difference of two clocks, counts as zero.
func (h *Histogram) ObserveN(in int, d time.Duration, n int) {
	d = max(d, 0)
	i := 0
	for i < len(h.bounds) && d > h.bounds[i] {
		i++
	}
	s := &h.shards[in&(shards-1)]
	s.counts[i].Add(uint64(n)) //nolint:gosec // n is a number of purchases
	s.sum.Add(d.Round(time.Microsecond).Microseconds() * int64(n))
}

// Describe implements prometheus.Collector.
func (h *Histogram) Describe(to chan<- *prometheus.Desc) { to <- h.desc }

// Collect implements prometheus.Collector. An observation that is made meanwhile may be in the
// count and not yet in the sum.
func (h *Histogram) Collect(to chan<- prometheus.Metric) {
	var sum float64 // seconds
	var count uint64
	buckets := make(map[float64]uint64, len(h.bounds))
	for i := range len(h.bounds) + 1 {
		for s := range h.shards {
			count += h.shards[s].counts[i].Load()
		}
		if i < len(h.bounds) {
			buckets[h.bounds[i].Seconds()] = count
		}
	}
	for s := range h.shards {
		sum += float64(h.shards[s].sum.Load()) / float64(time.Second/time.Microsecond)
	}
	to <- prometheus.MustNewConstHistogram(h.desc, count, sum, buckets, h.labels...)
}

// Vec has a histogram for each value of a label. A series exists once it was asked for.
type Vec struct {
	desc   *prometheus.Desc
	bounds []time.Duration

	mu  sync.Mutex
	all map[string]*Histogram
}

// NewVec returns a Vec, which is a prometheus.Collector.
func NewVec(o Opts, label string) *Vec {
	return &Vec{
		desc:   prometheus.NewDesc(o.Name, o.Help, []string{label}, o.Labels),
		bounds: o.Bounds, all: make(map[string]*Histogram),
	}
}

// With returns the histogram for a value of the label. Callers keep it.
func (v *Vec) With(value string) *Histogram {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all[value] == nil {
		v.all[value] = newHistogram(v.desc, v.bounds, value)
	}
	return v.all[value]
}

// Describe implements prometheus.Collector.
func (v *Vec) Describe(to chan<- *prometheus.Desc) { to <- v.desc }

// Collect implements prometheus.Collector.
func (v *Vec) Collect(to chan<- prometheus.Metric) {
	v.mu.Lock()
	all := slices.Collect(maps.Values(v.all))
	v.mu.Unlock()
	for _, h := range all {
		h.Collect(to)
	}
}
