package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislockContender is rueidislock. Its default takes two of three keys; tuned is its
// documentation's recommendation for one Redis: one key and no invalidation messages for its
// own writes, with a longer limit for an attempt.
type rueidislockContender struct{ tuned bool }

func (c rueidislockContender) name() string {
	if c.tuned {
		return "rueidislock-1key"
	}
	return "rueidislock"
}

func (c rueidislockContender) waitsOnly() bool { return false }

func (c rueidislockContender) manager(addr, process string) (locker, error) {
	opt := rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}, ClientName: process},
	}
	if c.tuned {
		opt.KeyMajority = 1
		opt.NoLoopTracking = true
		// The limit of an attempt. Its default of 20 ms suits several nodes, of which the next
		// is tried. With one node, an attempt that was cut off waits for a message that NOLOOP
		// suppresses.
		opt.TryNextAfter = time.Second
	}
	l, err := rueidislock.NewLocker(opt)
	if err != nil {
		return nil, err
	}
	return &rueidislockLocker{l: l}, nil
}

type rueidislockLocker struct{ l rueidislock.Locker }

func (r *rueidislockLocker) acquire(ctx context.Context, resource string) (func(context.Context) error, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return released(r.l.WithContext(ctx, resource))
	}
	// The given context is also the lock's, so bounding only the wait takes a second context.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, cancel)
	release, err := released(r.l.WithContext(life, resource))
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	if !unhook() {
		// The wait ended at the same time, so the lock has ended too.
		return nil, ctx.Err()
	}
	return func(ctx context.Context) error {
		defer cancel()
		return release(ctx)
	}, nil
}

// released turns the result of WithContext into a release. It waits until the key is deleted,
// and cannot detect a failure.
func released(_ context.Context, cancel context.CancelFunc, err error) (func(context.Context) error, error) {
	if err != nil {
		return nil, err
	}
	return func(context.Context) error {
		cancel()
		return nil
	}, nil
}

func (r *rueidislockLocker) close(context.Context) error {
	r.l.Close()
	return nil
}
