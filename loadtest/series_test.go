package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBuckets(t *testing.T) {
	t.Parallel()
	for d := time.Duration(0); d < 2*time.Hour; d = d*21/20 + 7*time.Microsecond {
		got := bucketMiddle(bucketOf(d))
		if off := (got - d.Truncate(time.Microsecond)).Abs(); off > d/32+time.Microsecond {
			t.Fatalf("%s is kept as %s", d, got)
		}
	}
	if i := bucketOf(1000 * time.Hour); i != bucketCount-1 {
		t.Errorf("beyond the bound: bucket %d", i)
	}
	var b buckets
	for i := range 1000 {
		b.add(time.Duration(i+1) * time.Millisecond)
	}
	q := b.quantiles(1000, time.Second, []float64{0.5, 0.99, 1})
	for i, want := range []time.Duration{500 * time.Millisecond, 990 * time.Millisecond, time.Second} {
		if (q[i] - want).Abs() > want/32 {
			t.Errorf("quantile %d: %s, want about %s", i, q[i], want)
		}
	}
	if one := b.quantiles(0, 0, []float64{0.5}); one[0] != 0 {
		t.Errorf("no entries: %v", one)
	}
}

// recorded is a recorder whose run began in the past, so that tests choose the times.
func recorded(shots ...shot) (*recorder, time.Time) {
	p := &plan{purchases: make([]purchase, len(shots)), shots: shots}
	r := newRecorder(p)
	start := time.Now().Add(-100 * time.Hour)
	r.begin(start)
	return r, start
}

// Merging intervals neither loses nor invents events, whatever happens when.
func TestRecorder_Merging(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const shots = 50
		r, start := recorded(make([]shot, shots)...)
		longest := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(50*time.Hour)).Draw(t, "longest"))
		var sent, settled, reads int64
		var answers [maxClasses + 5]int64
		bought := map[int]bool{}
		slowest := time.Duration(0)
		for range rapid.IntRange(1, 300).Draw(t, "events") {
			at := start.Add(time.Duration(rapid.Int64Range(0, int64(longest)).Draw(t, "at")))
			code := rapid.IntRange(0, len(answers)-1).Draw(t, "code")
			latency := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "latency"))
			purchase := rapid.IntRange(0, shots-1).Draw(t, "purchase")
			r.sent(at)
			r.answered(at, &answer{status: 400 + code})
			r.settled(at, purchase, kindAccepted, latency)
			r.read(at, code%2 == 0)
			sent, settled, reads = sent+1, settled+1, reads+1
			answers[code]++
			bought[purchase] = true
			slowest = max(slowest, latency)
		}
		s := r.finish(nil)
		if len(s.Points) > reportPoints || len(r.cells) > maxCells {
			t.Fatalf("%d points of %d intervals", len(s.Points), len(r.cells))
		}
		digits := fmt.Sprint(s.IntervalMS)
		if digits[0] != '1' && digits[0] != '2' {
			t.Errorf("an interval of %s ms", digits)
		}
		var sum point
		worst := 0.0
		sum.Answers = make([]int64, len(s.Answers))
		for _, p := range s.Points {
			sum.Sent, sum.Due, sum.Orders, sum.Reads = sum.Sent+p.Sent, sum.Due+p.Due, sum.Orders+p.Orders, sum.Reads+p.Reads
			for i, n := range p.Answers {
				sum.Answers[i] += n
			}
			if p.Latency != nil {
				settled -= p.Latency.Settled
				worst = max(worst, p.Latency.Max)
			}
		}
		if sum.Sent != sent || sum.Reads != reads || settled != 0 || worst != millis(slowest) || sum.Due != shots || sum.Orders != int64(len(bought)) {
			t.Errorf("%+v, of %d sent; %d unsettled; %d bought", sum, sent, settled, len(bought))
		}
		var total int64
		for i, name := range s.Answers {
			total += sum.Answers[i]
			var code int
			if _, err := fmt.Sscan(name, &code); err == nil && sum.Answers[i] != answers[code-400] {
				t.Errorf("%s: %d, want %d", name, sum.Answers[i], answers[code-400])
			}
		}
		if total != sent || len(s.Answers) > maxClasses {
			t.Errorf("%d answers of %d, in %d classes", total, sent, len(s.Answers))
		}
	})
}

func TestRecorder_Probes(t *testing.T) {
	t.Parallel()
	r, start := recorded(shot{})
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	stock, queued := int64(10), int64(3)
	r.saw(at(1), sighting{stock: &stock, queued: &queued, oldest: time.Second})
	stock, queued = 8, 2
	r.saw(at(2), sighting{stock: &stock, queued: &queued})
	r.missed(at(25))
	r.settled(at(2000), 0, kindRefused, time.Second)
	r.down(noAnswer, at(25), at(900))
	s := r.finish([]mark{{1, "m"}})
	first := s.Points[0]
	if *first.Stock != 8 || *first.Queued != 3 || *first.OldestMS != 1000 || first.Orders != 0 {
		t.Errorf("first point %+v", first)
	}
	var missed int64
	for _, p := range s.Points {
		missed += p.Missed
	}
	if missed != 1 {
		t.Errorf("%d missed probes", missed)
	}
	if !slices.Equal(s.Outages, []outage{{noAnswer, 0.025, 0.9}}) || !slices.Equal(s.Marks, []mark{{1, "m"}}) {
		t.Errorf("outages %v, marks %v", s.Outages, s.Marks)
	}
	for range 2 * maxOutages {
		r.down(noAnswer, at(1000), at(5000))
	}
	if len(r.outages) != maxOutages || r.outages[maxOutages-1].To != 5 {
		t.Errorf("%d outages, the last %+v", len(r.outages), r.outages[len(r.outages)-1])
	}
}

// The live view sees what has happened so far, at the finest width.
func TestRecorder_SoFar(t *testing.T) {
	t.Parallel()
	r, start := recorded(shot{}, shot{due: time.Hour})
	if s := r.sofar(); len(s.Points) != 0 || s.line() != "" {
		t.Errorf("before the first event: %+v", s)
	}
	r.sent(start.Add(35 * time.Millisecond))
	s := r.sofar()
	if s.IntervalMS != 10 || len(s.Points) != 4 || s.Points[3].Sent != 1 || s.Points[0].Due != 1 {
		t.Errorf("series %+v", s)
	}
}
