package queue

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Load is what decides whether more tasks should come: how much waits, and how
// fast it goes. It costs Redis less than Stats.
type Load struct {
	// Length is how many tasks count for MaxLength: ready, delayed and leased.
	Length int
	// Delayed is how many of them are in the delayed set: not due yet, or due and not
	// promoted, which the next dequeue does.
	Delayed int
	// OldestReady is how long the task at the head has been waiting; 0 where none is.
	OldestReady time.Duration
	// Done is how many tasks were acknowledged in the Minute since 1970 by the clock
	// of Redis, so far: the difference of two looks within a minute is the pace.
	Minute, Done int64
}

// Stats are the depths of the queue at one moment, and what it has counted since
// it exists. The counts are kept by the scripts that do the work, in Redis, over
// all processes; Redis loses them no sooner than it loses tasks.
type Stats struct {
	Ready, Delayed, Leased, Dead int
	// OldestReady is how long the task at the head of the ready set has been
	// waiting; zero when none waits. With priorities in use another may be older.
	OldestReady time.Duration
	// Paused says that nothing is taken; see Queue.Pause.
	Paused bool

	// Processed counts the tasks that were acknowledged, by Ack and Complete.
	Processed int64
	// Failed counts the attempts that failed: rejections, other than uncounted ones,
	// and leases that expired, when they are reclaimed. So a task may count often.
	Failed int64
	// Died counts the tasks that became dead letters, also those that were retried or dropped since.
	Died int64
	// PerMinute is how many tasks were acknowledged in each of the last 60 full
	// minutes of the server's clock, the oldest first. The minute under way is not among them.
	PerMinute [statMinutes]int64
	// Waits says how long tasks waited until they were taken.
	Waits Waits
}

const statMinutes = 60

// Throughput is how many tasks were acknowledged per second, on average over the
// last full minutes: 1 to 60 of them, and fewer or more count as that.
func (s Stats) Throughput(minutes int) float64 {
	minutes = min(max(minutes, 1), statMinutes)
	sum := int64(0)
	for _, n := range s.PerMinute[statMinutes-minutes:] {
		sum += n
	}
	return float64(sum) / (time.Duration(minutes) * time.Minute).Seconds()
}

// Waits counts deliveries by how long the task had been ready: since it arrived,
// fell due, or was ready again after an attempt that failed or was handed back.
// Waits[i] are those of more than Bound(i-1) and up to Bound(i), so the counts are
// not cumulative. All are counted where one Dequeue takes up to 16 tasks; where it
// takes more, 16 that are evenly spaced in their order each stand for their neighbours.
type Waits [16]int64

// waitBounds are the upper bounds of the buckets but the last; wait_bounds in dequeue.lua.
var waitBounds = [len(Waits{}) - 1]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute, 10 * time.Minute,
}

// Bound is the longest wait that Waits[i] counts: 1, 2, 5, 10, 20, 50, 100, 200 and
// 500 ms, 1, 2, 5 and 10 s, 1 and 10 min, and the longest Duration for the last.
// It is zero for i below 0.
func (w Waits) Bound(i int) time.Duration {
	switch {
	case i < 0:
		return 0
	case i >= len(waitBounds):
		return math.MaxInt64
	default:
		return waitBounds[i]
	}
}

// Total is how many deliveries were counted.
func (w Waits) Total() int64 {
	sum := int64(0)
	for _, n := range w {
		sum += n
	}
	return sum
}

// Quantile estimates the wait that the fraction p (0 to 1) of the deliveries did
// not exceed: 0.5 for the median. It takes the waits inside a bucket as evenly
// spread, so it may be wrong by the bucket's width, and it says 10 min where the
// answer is in the last bucket, which has no upper bound. It is zero where nothing
// was counted.
func (w Waits) Quantile(p float64) time.Duration {
	rank := min(max(p, 0), 1) * float64(w.Total())
	below := 0.0
	for i, n := range w {
		count := float64(n)
		if n == 0 || below+count < rank {
			below += count
			continue
		}
		from := w.Bound(i - 1)
		if i == len(waitBounds) {
			return from
		}
		return from + time.Duration(float64(w.Bound(i)-from)*(rank-below)/count)
	}
	return 0
}

func parseStats(reply []string) (s Stats, err error) {
	const fixed = 7
	if len(reply) < fixed || (len(reply)-fixed)%2 != 0 {
		return Stats{}, fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	var n [fixed]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(reply[i], 10, 64); err != nil {
			return Stats{}, fmt.Errorf("%w: %w", ErrReply, err)
		}
	}
	s = Stats{
		Ready: int(n[0]), Delayed: int(n[1]), Leased: int(n[2]), Dead: int(n[3]),
		OldestReady: time.Duration(n[4]) * time.Microsecond, Paused: n[5] == 1,
	}
	for counts := reply[fixed:]; len(counts) > 0; counts = counts[2:] {
		if counts[0] == "birth" { // no number; see dequeue.lua
			continue
		}
		value, err := strconv.ParseInt(counts[1], 10, 64)
		if err != nil {
			return Stats{}, fmt.Errorf("%w: count %q: %w", ErrReply, counts[0], err)
		}
		s.count(counts[0], value, n[6])
	}
	return s, nil
}

// count notes one field of the hash counts: m<minute since 1970> for what was
// acknowledged in it, processed for that of minutes which have no field any more,
// failed, died, and w<number of the bucket, from 1>. Those of a later version are
// passed over.
func (s *Stats) count(field string, value, minute int64) {
	switch field {
	case "processed":
		s.Processed += value
	case "failed":
		s.Failed = value
	case "died":
		s.Died = value
	}
	if text, ok := strings.CutPrefix(field, "m"); ok {
		if m, err := strconv.ParseInt(text, 10, 64); err == nil {
			s.Processed += value
			if m < minute && m >= minute-statMinutes { // the minute before this one is the last
				s.PerMinute[statMinutes-(minute-m)] = value
			}
		}
	}
	if text, ok := strings.CutPrefix(field, "w"); ok {
		if b, err := strconv.Atoi(text); err == nil && b >= 1 && b <= len(s.Waits) {
			s.Waits[b-1] = value
		}
	}
}
