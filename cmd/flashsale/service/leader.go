package service

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/lock"
)

// leaderKey names the lock by which the processes choose the one that does a
// chore for all of them.
func leaderKey(chore string) string { return "fs:{p0}:leader:" + chore }

// leaderRetry is the pause after a try to lead that failed.
const leaderRetry = time.Second

// leaders choose, by locks, the one of all processes that does a chore for all of them.
type leaders struct {
	env   *env
	locks *lock.Manager
}

func newLeaders(e *env, rdb redis.UniversalClient, ps *parts) (*leaders, error) {
	locks, err := lock.New(rdb, lock.Config{Metadata: processName(), Observer: lock.Observer{CannotListen: e.reporter("locks")}})
	if err != nil {
		return nil, err
	}
	ps.add(part{name: "leaders' locks", stop: locks.Close})
	return &leaders{env: e, locks: locks}, nil
}

// lead returns the part that runs a chore in one of all processes that offer to: in the
// one that holds the chore's lock. work returns when its context ends, which is when the
// lock is lost at the latest; what it does must bear that another has begun by then.
func (l *leaders) lead(chore string, work func(ctx context.Context)) part {
	report := l.env.reporter(chore)
	return part{name: chore, run: func(ctx context.Context) error {
		for ctx.Err() == nil {
			err := l.locks.Do(ctx, leaderKey(chore), func(ctx context.Context, _ *lock.Lock) error {
				work(ctx)
				return nil
			})
			if err == nil || ctx.Err() != nil || errors.Is(err, lock.ErrWaitTimeout) {
				continue // another one leads, or it is over
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
