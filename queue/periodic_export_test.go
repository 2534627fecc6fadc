package queue

import (
	"context"
	"time"
)

// Every is a schedule with a tick at every multiple of a duration, for tests that
// have no minute to spare.
type Every time.Duration

// Next is the first tick after t.
func (e Every) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

// ScheduleEvery is Schedule with a tick for every entry so often.
func (q *Queue) ScheduleEvery(ctx context.Context, period time.Duration, entries []Periodic, cfg ScheduleConfig) error {
	parsed := make([]entry, len(entries))
	for i, p := range entries {
		parsed[i] = entry{p, Every(period)}
	}
	return q.schedule(ctx, parsed, cfg)
}
