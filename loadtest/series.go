package main

import (
	"slices"
	"sync"
	"time"

	"flashsale/internal/loglinear"
)

const (
	// finest is the width of an interval at the start of a run.
	finest = 10 * time.Millisecond
	// maxCells bounds the intervals, and with them the memory, whatever the duration: when
	// all are in use, neighbours are merged.
	maxCells = 500
	// maxClasses bounds the kinds of answers that are counted separately. The last class
	// takes all further kinds.
	maxClasses = 24
	// maxOutages bounds the recorded outages. Beyond it, the last one is extended.
	maxOutages = 64
)

// otherAnswers is the class of the answers for which no class was left.
var otherAnswers = answerKey{code: "other"}

// recorder counts what happens during a run, by interval of time. All intervals have the
// same width: 10 ms at first, then 20 ms, 100 ms, 200 ms, 1 s and so on, so that every
// width is a round number.
type recorder struct {
	plan *plan

	mu      sync.Mutex
	start   time.Time
	width   time.Duration
	cells   []cell // as many as were used
	classes []answerKey
	// acknowledged marks the purchases of which an order was acknowledged, so that an order
	// counts once however many requests asked for it.
	acknowledged []bool
	outages      []outage
	latest       time.Duration // end of the recorded time
}

// cell counts the events of one interval.
type cell struct {
	sent    uint32             // attempts
	answers [maxClasses]uint32 // attempts by answer, when they ended
	orders  uint32             // distinct orders, when first acknowledged

	reads, readFailures uint32

	// settled counts the requests that got their final outcome; latency is theirs, from
	// due.
	settled uint32
	latency buckets
	longest time.Duration

	stock    int64 // the last stated
	hasStock bool
	queued   int64 // the most stated
	oldest   time.Duration
	hasQueue bool
	missed   uint32 // probes without an answer
}

// sighting is what one probe learned. A part that the service does not state is nil.
type sighting struct {
	stock  *int64
	queued *int64
	oldest time.Duration
}

// outage is a time during which something was down.
type outage struct {
	What string  `json:"what"`
	From float64 `json:"from_s"`
	To   float64 `json:"to_s"`
}

// newRecorder makes a recorder for a plan. Its time runs from begin.
func newRecorder(p *plan) *recorder {
	return &recorder{
		plan: p, start: time.Now(), width: finest,
		cells: make([]cell, 0, maxCells), acknowledged: make([]bool, len(p.purchases)),
	}
}

// begin sets the start of the run.
func (r *recorder) begin(start time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = start
}

// at returns the interval of a time. The lock is held.
func (r *recorder) at(t time.Duration) *cell {
	t = max(t, 0)
	r.latest = max(r.latest, t)
	for t >= r.width*maxCells {
		r.fold()
	}
	i := int(t / r.width)
	for len(r.cells) <= i {
		r.cells = append(r.cells, cell{}) // within the capacity
	}
	return &r.cells[i]
}

// step is how many intervals the next fold merges into one, such that their width is
// 1 or 2 times a power of ten.
func (r *recorder) step() int {
	for w := finest; ; w *= 10 {
		if r.width == w {
			return 2
		}
		if r.width == 2*w {
			return 5
		}
	}
}

// fold merges neighbouring intervals. The lock is held.
func (r *recorder) fold() {
	k := r.step()
	kept := (len(r.cells) + k - 1) / k
	for i := range kept {
		group := r.cells[i*k : min((i+1)*k, len(r.cells))]
		if i > 0 {
			r.cells[i] = group[0]
		}
		for j := 1; j < len(group); j++ {
			r.cells[i].merge(&group[j])
		}
	}
	r.cells = r.cells[:kept]
	r.width *= time.Duration(k)
}

// merge adds the next interval to this one.
func (c *cell) merge(o *cell) {
	c.sent += o.sent
	for i := range c.answers {
		c.answers[i] += o.answers[i]
	}
	c.orders += o.orders
	c.reads += o.reads
	c.readFailures += o.readFailures
	if o.settled > 0 {
		c.settled += o.settled
		c.latency.merge(&o.latency)
		c.longest = max(c.longest, o.longest)
	}
	if o.hasStock {
		c.stock, c.hasStock = o.stock, true
	}
	if o.hasQueue {
		c.queued, c.oldest, c.hasQueue = max(c.queued, o.queued), max(c.oldest, o.oldest), true
	}
	c.missed += o.missed
}

// sent counts an attempt.
func (r *recorder) sent(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at(at.Sub(r.start)).sent++
}

// answered counts the answer to an attempt.
func (r *recorder) answered(at time.Time, a *answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at(at.Sub(r.start)).answers[r.class(answerKey{a.status, a.code})]++
}

// class is the index of an answer's class. The lock is held.
func (r *recorder) class(k answerKey) int {
	if i := slices.Index(r.classes, k); i >= 0 {
		return i
	}
	if len(r.classes) < maxClasses-1 {
		r.classes = append(r.classes, k)
		return len(r.classes) - 1
	}
	if len(r.classes) < maxClasses {
		r.classes = append(r.classes, otherAnswers)
	}
	return maxClasses - 1
}

// settled counts the final outcome of a request for a purchase.
func (r *recorder) settled(at time.Time, purchase int, k kind, latency time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.at(at.Sub(r.start))
	c.settled++
	c.latency.add(latency)
	c.longest = max(c.longest, latency)
	if k == kindAccepted && !r.acknowledged[purchase] {
		r.acknowledged[purchase] = true
		c.orders++
	}
}

// read counts a reader's request.
func (r *recorder) read(at time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.at(at.Sub(r.start))
	c.reads++
	if !ok {
		c.readFailures++
	}
}

// saw records what a probe learned.
func (r *recorder) saw(at time.Time, s sighting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.at(at.Sub(r.start))
	if s.stock != nil {
		c.stock, c.hasStock = *s.stock, true
	}
	if s.queued != nil {
		c.queued, c.oldest, c.hasQueue = max(c.queued, *s.queued), max(c.oldest, s.oldest), true
	}
}

// missed records that a probe got no answer.
func (r *recorder) missed(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at(at.Sub(r.start)).missed++
}

// down records an outage.
func (r *recorder) down(what string, from, to time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := outage{what, seconds(max(from.Sub(r.start), 0)), seconds(max(to.Sub(r.start), 0))}
	if n := len(r.outages); n == maxOutages {
		r.outages[n-1].To = max(r.outages[n-1].To, o.To)
		return
	}
	r.outages = append(r.outages, o)
}

// pollPause is the pause between probes: a tenth of a second, and in long runs an interval.
func (r *recorder) pollPause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(100*time.Millisecond, r.width)
}

// seconds rounds to milliseconds, for people and for JSON.
func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond).Milliseconds()) / 1000
}

// bucketCount covers durations up to two hours, the bound of newHistogram.
const bucketCount = 30 * loglinear.PerDoubling

// buckets is a small histogram of durations. The series has one for each interval, so it
// trades the precision of an HDR histogram for a thirtieth of its size.
type buckets [bucketCount]uint32

// bucketOf is the index for a duration.
func bucketOf(d time.Duration) int { return min(bucketCount-1, loglinear.Bucket(d)) }

// bucketMiddle is the duration that stands for a bucket.
func bucketMiddle(i int) time.Duration {
	first, last := loglinear.Bounds(i)
	return (first + last) / 2
}

func (b *buckets) add(d time.Duration) { b[bucketOf(d)]++ }

func (b *buckets) merge(o *buckets) {
	for i := range b {
		b[i] += o[i]
	}
}

// quantiles returns the durations below which the given fractions of n entries are. The
// fractions ascend. No result is larger than the longest duration, which is known exactly.
func (b *buckets) quantiles(n uint32, longest time.Duration, fractions []float64) []time.Duration {
	out := make([]time.Duration, 0, len(fractions))
	var seen uint32
	at := 0
	for _, f := range fractions {
		rank := max(1, uint32(f*float64(n)+0.999999))
		for at < bucketCount-1 && seen+b[at] < rank {
			seen += b[at]
			at++
		}
		out = append(out, min(bucketMiddle(at), longest))
	}
	return out
}
