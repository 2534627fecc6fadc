package queue

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// schedule is a series of ticks. Next returns the first one after t, or the
// zero time where none is to be found.
type schedule interface {
	Next(t time.Time) time.Time
}

var errSpec = errors.New("no schedule")

var cronParser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// parseSpec reads Periodic.Spec. What the parser would bend into shape, or
// trip over, is refused here.
func parseSpec(spec string, now time.Time) (schedule, error) {
	text := spec
	zoned, ok := strings.CutPrefix(spec, "CRON_TZ=")
	if !ok {
		zoned, ok = strings.CutPrefix(spec, "TZ=")
	}
	if ok {
		zone, rest, ok := strings.Cut(zoned, " ")
		if !ok {
			return nil, fmt.Errorf("%w: nothing follows the zone", errSpec)
		}
		if zone == "Local" {
			return nil, fmt.Errorf("%w: zone Local differs from process to process", errSpec)
		}
		text = strings.TrimSpace(rest)
	}
	s, err := cronParser.Parse(spec)
	if err != nil {
		return nil, err
	}
	if period, ok := strings.CutPrefix(text, "@every "); ok {
		d, err := time.ParseDuration(period)
		if err != nil {
			return nil, err
		}
		if d < time.Second || d%time.Second != 0 {
			return nil, fmt.Errorf("%w: a period of %v, want whole seconds, at least one", errSpec, d)
		}
	}
	if s.Next(now.UTC()).IsZero() {
		return nil, fmt.Errorf("%w: it has no tick within five years", errSpec)
	}
	return s, nil
}

// after is the first tick later than t, and than last, the last tick there was.
// The periods of @every count from there; any other schedule knows its ticks by
// the calendar. It is zero where there is none.
func after(s schedule, last, t time.Time) time.Time {
	if every, ok := s.(cron.ConstantDelaySchedule); ok {
		next := every.Next(last)
		for d := t.Sub(next); d >= 0; d = t.Sub(next) { // all whole periods, and then one more
			next = next.Add(max(d.Truncate(every.Delay), every.Delay))
		}
		return next
	}
	if last.After(t) {
		t = last
	}
	next := s.Next(t)
	if !next.After(t) {
		return time.Time{}
	}
	return next
}

// recent returns the latest ticks between last and now, both excluded, at most
// n and in order, and whether there were more before them. What lies further
// back is not walked through, which might be years of seconds.
func recent(s schedule, last, now time.Time, n int) (ticks []time.Time, more bool) {
	const century = 100 * 365 * 24 * time.Hour
	for span := time.Minute; ; span *= 4 {
		from := now.Add(-span)
		whole := !from.After(last) || span > century
		if whole {
			from = last
		}
		ticks = ticks[:0]
		count := 0
		for t := after(s, last, from); !t.IsZero() && t.Before(now); t = after(s, last, t) {
			if count++; len(ticks) == n {
				copy(ticks, ticks[1:])
				ticks = ticks[:n-1]
			}
			ticks = append(ticks, t)
		}
		if whole {
			return ticks, count > n
		}
		if count >= n {
			return ticks, after(s, last, last).Before(ticks[0])
		}
	}
}

// planned is a tick to be added, and from when on it is not, zero for never.
type planned struct{ tick, till time.Time }

// plan says which ticks are to be added now: those that were missed, as far as
// they are to be made up for, and those of the time ahead. next is the first one
// after these, or zero, and dropped says that more than maxMissed were missed
// and the oldest are given up.
func plan(s schedule, missed Missed, last, now time.Time, ahead time.Duration) (todo []planned, next time.Time, dropped bool) {
	var ticks []time.Time
	switch missed {
	case MissedAll:
		ticks, dropped = recent(s, last, now, maxMissed)
	case MissedLatest:
		ticks, _ = recent(s, last, now, 1)
	case MissedSkip:
	}
	next = after(s, last, now.Add(-time.Nanosecond))
	for ; !next.IsZero() && !next.After(now.Add(ahead)); next = after(s, last, next) {
		ticks = append(ticks, next)
	}
	todo = make([]planned, len(ticks))
	for i, t := range ticks {
		todo[i].tick = t
		switch missed {
		case MissedLatest:
			// Its place is taken by the next one, should that be missed too.
			todo[i].till = after(s, t, t)
		case MissedSkip:
			todo[i].till = t.Add(time.Millisecond)
		case MissedAll:
		}
	}
	return todo, next, dropped
}
