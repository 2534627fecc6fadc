package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Load is the input of admission control: how many tasks are waiting, and how fast
// they are done. It costs Redis less than Stats.
type Load struct {
	// Length is what counts towards MaxLength: the entries of the ready, delayed and
	// leased tasks.
	Length int
	// Active is the number of ready and leased tasks. A delayed task becomes ready when
	// a dequeue promotes it.
	Active int
	// OldestReady is how long the task at the head of the ready set has been waiting; 0
	// if there is none.
	OldestReady time.Duration
	// Minute is the current minute since 1970 by the clock of Redis, and Done the number
	// of entries acknowledged in it so far. The difference between two calls in the same
	// minute gives the rate.
	Minute, Done int64
}

// Stats are the number of tasks per state at one moment, and counters since the queue
// was created. The scripts keep the counters in Redis, for all processes together and
// as durably as the tasks.
type Stats struct {
	// At is the moment, by the clock of Redis and to the millisecond.
	At                           time.Time
	Ready, Delayed, Leased, Dead int
	// Entries is the number of entries of all these tasks; see Task.Entries. A dead
	// letter counts as one.
	Entries int
	// Split counts the tasks that were split off others; see Completion.Split.
	Split int64
	// OldestReady is how long the task at the head of the ready set has been waiting;
	// zero if there is none. With priorities another task may be older.
	OldestReady time.Duration
	// Paused reports whether the queue is paused; see Queue.Pause.
	Paused bool

	// Processed counts the entries of the tasks that Ack and Complete acknowledged.
	Processed int64
	// Failed counts failed attempts: counted rejections, and leases that expired, when
	// they are reclaimed. A task may count several times.
	Failed int64
	// Died counts the tasks that became dead letters, including those that were retried
	// or dropped later.
	Died int64
	// LastMinute counts the entries acknowledged in the last full minute of the server's
	// clock.
	LastMinute int64
	// Waits is the distribution of the time between ready and dequeued.
	Waits Waits
}

// Pending is the number of entries of the ready, delayed and leased tasks. If there are none, it is
// zero; otherwise a fault that removed tasks may have left it too high.
func (s Stats) Pending() int {
	if s.Ready+s.Delayed+s.Leased == 0 {
		return 0
	}
	return s.Entries - s.Dead // a dead letter counts as one
}

// Waits is a histogram of deliveries by how long the task had been ready: since it
// arrived, fell due, or was returned to the ready set. Each bucket counts the waits up to its
// bound and above the one before: 1, 2, 5, 10, 20, 50, 100, 200 and 500 ms, 1, 2, 5 and
// 10 s, 1 and 10 min, and the last without a bound. A Dequeue of up to
// 16 tasks counts each of them; a larger one samples 16 evenly spaced tasks and weights
// them, so that the total is the number of deliveries.
type Waits [16]int64

// waitBounds are the upper bounds of all buckets except the last; wait_bounds in
// dequeue.lua.
var waitBounds = [len(Waits{}) - 1]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute, 10 * time.Minute,
}

// Total is the number of deliveries counted.
func (w Waits) Total() int64 {
	sum := int64(0)
	for _, n := range w {
		sum += n
	}
	return sum
}

// Quantile estimates the wait that a fraction p (0 to 1) of the deliveries did not
// exceed: 0.5 for the median. It interpolates within a bucket, so the error is at most
// the width of the bucket. For the last bucket, which has no upper bound, it returns
// 10 min. It is zero if nothing was counted.
func (w Waits) Quantile(p float64) time.Duration {
	rank := min(max(p, 0), 1) * float64(w.Total())
	below, from := 0.0, time.Duration(0)
	for i, n := range w {
		count := float64(n)
		if n > 0 && below+count >= rank {
			if i == len(waitBounds) {
				return from
			}
			return from + time.Duration(float64(waitBounds[i]-from)*(rank-below)/count)
		}
		below += count
		from = waitBounds[min(i, len(waitBounds)-1)]
	}
	return 0
}

// Stats returns the number of tasks per state and the counters. Errors: those of Redis.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	reply, err := q.eval(ctx, statsScript).StringSlice()
	if err != nil {
		return Stats{}, fmt.Errorf("queue stats: %w", err)
	}
	s, err := parseStats(reply)
	if err != nil {
		return Stats{}, fmt.Errorf("queue stats: %w", err)
	}
	return s, nil
}

// Load returns the current load of the queue. Errors: those of Redis.
func (q *Queue) Load(ctx context.Context) (Load, error) {
	n, err := numbers(q.eval(ctx, loadScript), 5)
	if err != nil {
		return Load{}, fmt.Errorf("queue load: %w", err)
	}
	return Load{
		Length: int(n[0]), Active: int(n[1]), OldestReady: time.Duration(n[2]) * time.Microsecond,
		Minute: n[3], Done: n[4],
	}, nil
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
		OldestReady: time.Duration(n[4]) * time.Microsecond, Paused: n[5] == 1, At: time.UnixMilli(n[6]).UTC(),
	}
	for counts := reply[fixed:]; len(counts) > 0; counts = counts[2:] {
		if counts[0] == "birth" { // no number; earlier versions wrote it
			continue
		}
		value, err := strconv.ParseInt(counts[1], 10, 64)
		if err != nil {
			return Stats{}, fmt.Errorf("%w: count %q: %w", ErrReply, counts[0], err)
		}
		s.count(counts[0], value, n[6]/time.Minute.Milliseconds())
	}
	s.Entries += s.Ready + s.Delayed + s.Leased + s.Dead
	return s, nil
}

// count reads one field of the hash counts: m<minute since 1970> has the entries
// acknowledged in that minute, processed those of older minutes, w<bucket, from 1> the
// waits, failed and died the totals, and extra the entries above one per task. Unknown fields of a later version are skipped.
func (s *Stats) count(field string, value, minute int64) {
	switch field {
	case "processed":
		s.Processed += value
	case "failed":
		s.Failed = value
	case "died":
		s.Died = value
	case "split":
		s.Split = value
	case "extra":
		s.Entries = max(0, int(value))
	}
	if text, ok := strings.CutPrefix(field, "m"); ok {
		if m, err := strconv.ParseInt(text, 10, 64); err == nil {
			s.Processed += value
			if m == minute-1 {
				s.LastMinute = value
			}
		}
	}
	if text, ok := strings.CutPrefix(field, "w"); ok {
		if b, err := strconv.Atoi(text); err == nil && b >= 1 && b <= len(s.Waits) {
			s.Waits[b-1] = value
		}
	}
}
