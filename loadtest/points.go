package main

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

const (
	// reportPoints is the largest number of points in a report, fewPoints the number from
	// which intervals are merged no further because they hold too few requests.
	reportPoints = 120
	fewPoints    = 40
	// enoughSettled is the mean number of requests in an interval with any that makes its
	// quantiles meaningful.
	enoughSettled = 20
)

// series is a run by intervals of time.
type series struct {
	IntervalMS float64 `json:"interval_ms"`
	// Answers names the columns of the points' answers.
	Answers []string `json:"answers"`
	Points  []point  `json:"points"`
	// Outages are the times at which the service did not answer the probes, and those
	// during which a killed process was down.
	Outages []outage `json:"outages,omitempty"`
	Marks   []mark   `json:"marks,omitempty"`
}

// mark is a moment of a run.
type mark struct {
	At   float64 `json:"at_s"`
	What string  `json:"what"`
}

// point is one interval. Requests are counted when they were due, attempts when they were
// sent and again when they were answered. The latency is that of the requests that got
// their final answer in the interval, from when each was due; nil if there were none.
type point struct {
	At      float64 `json:"at_s"` // start of the interval
	Due     int64   `json:"due"`
	Sent    int64   `json:"sent"`
	Answers []int64 `json:"answers"` // as series.Answers
	Orders  int64   `json:"orders"`  // distinct orders, when first acknowledged

	Reads        int64 `json:"reads,omitempty"`
	ReadFailures int64 `json:"read_failures,omitempty"`

	Latency *pointLatency `json:"latency,omitempty"`

	// Stock, Queued and OldestMS are what the service stated; nil if it was not asked in
	// the interval or did not answer.
	Stock    *int64   `json:"stock_left,omitempty"`
	Queued   *int64   `json:"queued_orders,omitempty"`
	OldestMS *float64 `json:"oldest_queued_ms,omitempty"`
	// Missed counts the probes that got no answer.
	Missed int64 `json:"missed_probes,omitempty"`
}

// pointLatency are the quantiles of an interval, at most 1/32 off; Max is exact.
type pointLatency struct {
	Settled int64   `json:"requests"`
	P50     float64 `json:"p50_ms"`
	P90     float64 `json:"p90_ms"`
	P99     float64 `json:"p99_ms"`
	Max     float64 `json:"max_ms"`
}

var pointFractions = []float64{0.5, 0.9, 0.99}

// sofar returns the series until now.
func (r *recorder) sofar() *series {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.series(min(time.Since(r.start), r.latest))
}

// finish merges intervals until a chart can show them, and returns the series of the run.
func (r *recorder) finish(marks []mark) *series {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at(r.latest)
	for {
		n := len(r.cells)
		var settled, busy int
		for i := range r.cells {
			settled += int(r.cells[i].settled)
			busy += min(1, int(r.cells[i].settled))
		}
		if n <= reportPoints && (n <= fewPoints || settled >= enoughSettled*busy) {
			break
		}
		r.fold()
	}
	s := r.series(r.latest)
	slices.SortStableFunc(s.Outages, func(a, b outage) int { return cmp.Compare(a.From, b.From) })
	s.Marks = marks
	return s
}

// series reads the intervals. The lock is held.
func (r *recorder) series(until time.Duration) *series {
	s := &series{IntervalMS: float64(r.width) / float64(time.Millisecond), Answers: make([]string, len(r.classes)), Outages: append([]outage(nil), r.outages...)}
	for i, k := range r.classes {
		s.Answers[i] = answerCount{Status: k.status, Code: shorten(k.code)}.Name()
		if k == otherAnswers {
			s.Answers[i] = otherAnswers.code
		}
	}
	n := min(len(r.cells), int(until/r.width)+1)
	s.Points = make([]point, n)
	due := 0
	for i := range s.Points {
		end := r.width * time.Duration(i+1)
		upTo := sort.Search(len(r.plan.shots), func(j int) bool { return r.plan.shots[j].due >= end })
		s.Points[i] = r.cells[i].point(len(r.classes))
		s.Points[i].At = seconds(r.width * time.Duration(i))
		s.Points[i].Due = int64(upTo - due)
		due = upTo
	}
	return s
}

// point converts the counts of an interval.
func (c *cell) point(classes int) point {
	p := point{
		Sent: int64(c.sent), Answers: make([]int64, classes), Orders: int64(c.orders),
		Reads: int64(c.reads), ReadFailures: int64(c.readFailures), Missed: int64(c.missed),
	}
	for i := range p.Answers {
		p.Answers[i] = int64(c.answers[i])
	}
	if c.settled > 0 {
		q := c.latency.quantiles(c.settled, c.longest, pointFractions)
		p.Latency = &pointLatency{int64(c.settled), millis(q[0]), millis(q[1]), millis(q[2]), millis(c.longest)}
	}
	if c.hasStock {
		p.Stock = new(c.stock)
	}
	if c.hasQueue {
		p.Queued, p.OldestMS = new(c.queued), new(millis(c.oldest))
	}
	return p
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// shorten bounds a code, which comes from the service, for charts and tables.
func shorten(code string) string {
	const longest = 40
	if r := []rune(code); len(r) > longest {
		return string(r[:longest]) + "…"
	}
	return code
}

// worthMarking reports whether a moment is far enough from the end of the recorded time to
// be marked in a chart.
func (r *recorder) worthMarking(at time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return at < r.latest-r.latest/20
}

// duration reads seconds.
func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
