package main

import (
	"context"
	"errors"
	"time"

	"flashsale/lock"
)

// leaderKey names the lock by which the processes choose the one that does a
// chore for all of them.
func leaderKey(chore string) string { return "fs:{p0}:leader:" + chore }

// leaderRetry is the pause after a try to lead that failed.
const leaderRetry = time.Second

// lead runs a chore in one of all processes that offer to: in the one that holds
// the chore's lock. work returns when its context ends, which is when the lock
// is lost at the latest; what it does must bear that another has begun by then.
func (a *app) lead(chore string, work func(ctx context.Context)) error {
	if a.leaders == nil {
		locks, err := lock.New(a.rdb, lock.Config{Metadata: processName(), Observer: lock.Observer{CannotListen: a.reporter("locks")}})
		if err != nil {
			return err
		}
		a.leaders = locks
		a.life.add(part{name: "leaders' locks", stop: locks.Close})
	}
	report := a.reporter(chore)
	a.life.add(part{name: chore, run: func(ctx context.Context) error {
		for ctx.Err() == nil {
			err := a.leaders.Do(ctx, leaderKey(chore), func(ctx context.Context, _ *lock.Lock) error {
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
	}})
	return nil
}
