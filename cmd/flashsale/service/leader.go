package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/lock"
)

// leaderKey is the lock that elects the one process that runs a chore.
func leaderKey(chore string) string { return "fs:{p0}:leader:" + chore }

// leaderRetry is the pause after a failed attempt to become the leader.
const leaderRetry = time.Second

const (
	// leaderClockEvery is how often a leader checks whether the clock of Redis was set back.
	leaderClockEvery = 5 * time.Second
	// leaderSetBack is how far the clock may be behind the last check: about the TTL of the locks.
	leaderSetBack = 10 * time.Second
)

// leaders elects one process for each chore with locks.
type leaders struct {
	env        *env
	locks      *lock.Manager
	now        func() time.Time // the clock of Redis
	clockEvery time.Duration
}

func newLeaders(e *env, rdb redis.UniversalClient, now func() time.Time, ps *parts) (*leaders, error) {
	locks, err := lock.New(rdb, lock.Config{Metadata: processName(), Observer: lock.Observer{CannotListen: e.reporter("locks")}})
	if err != nil {
		return nil, err
	}
	ps.add(part{name: "leaders' locks", stop: locks.Close})
	return &leaders{env: e, locks: locks, now: now, clockEvery: leaderClockEvery}, nil
}

// resign calls cancel after the clock of Redis was set back. The TTL of the lock was lengthened by the difference,
// and renewals never shorten it: if this process were killed, no other would lead for that long. A new lock has the
// right TTL.
func (l *leaders) resign(ctx context.Context, cancel context.CancelFunc) {
	tick := time.NewTicker(l.clockEvery)
	defer tick.Stop()
	for latest := l.now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := l.now()
		if latest.Sub(now) > leaderSetBack {
			cancel()
			return
		}
		latest = now
	}
}

// lead returns a part that runs a chore in one of all processes: the one that holds the chore's
// lock. work must return when its context ends, at the latest when the lock is lost. By then
// another process may have begun, so work must tolerate overlap.
func (l *leaders) lead(chore string, work func(ctx context.Context)) part {
	report := l.env.reporter(chore)
	return part{name: chore, run: func(ctx context.Context) error {
		for ctx.Err() == nil {
			err := l.locks.Do(ctx, leaderKey(chore), func(ctx context.Context, _ *lock.Lock) error {
				ctx, cancel := context.WithCancel(ctx)
				var watch sync.WaitGroup
				watch.Go(func() { l.resign(ctx, cancel) })
				defer watch.Wait()
				defer cancel()
				work(ctx)
				return nil
			})
			if err == nil || ctx.Err() != nil || errors.Is(err, lock.ErrWaitTimeout) {
				continue // another process leads, or this part ends
			}
			report(err)
			select {
			case <-ctx.Done():
			case <-time.After(leaderRetry):
			}
		}
		return nil
	}}
}
