package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislockContender is rueidislock. Its default takes two of three keys;
// tuned is what its documentation recommends for one Redis, one key and no
// invalidation messages for its own writes, with time enough for a try.
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
		// How long a try may take. Its 20 ms suit a lock that has more nodes to
		// go on to; with one, a try that was cut off waits for a message that
		// NOLOOP keeps from it.
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
	// The context given is that of the lock as well, so one that bounds the
	// wait only needs another beside it.
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
		// The wait's end came at the same time, so the lock has ended too.
		return nil, ctx.Err()
	}
	return func(ctx context.Context) error {
		defer cancel()
		return release(ctx)
	}, nil
}

// released turns what WithContext returns into a release. It waits until the
// key is deleted, and hears of no failure.
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
