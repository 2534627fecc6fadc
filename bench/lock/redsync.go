package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncContender is go-redsync/redsync with one pool. By default it retries
// 32 times, after 50 to 250 ms.
type redsyncContender struct{ tuned bool }

func (c redsyncContender) name() string {
	if c.tuned {
		return "redsync-5ms"
	}
	return "redsync"
}

func (c redsyncContender) waitsOnly() bool { return c.tuned }

func (c redsyncContender) manager(addr, process string) (locker, error) {
	rdb := goRedis(addr, process)
	r := &redsyncLocker{rdb: rdb, sync: redsync.New(goredis.NewPool(rdb))}
	if c.tuned {
		r.opts = []redsync.Option{redsync.WithRetryDelay(tunedRetry), redsync.WithTries(math.MaxInt32)}
	}
	return r, nil
}

type redsyncLocker struct {
	rdb  *redis.Client
	sync *redsync.Redsync
	opts []redsync.Option
}

func (r *redsyncLocker) acquire(ctx context.Context, resource string) (func(context.Context) error, error) {
	m := r.sync.NewMutex(resource, r.opts...)
	for {
		err := m.LockContext(ctx)
		if err == nil {
			return func(ctx context.Context) error { return unlock(ctx, m) }, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		// The attempts are used up; its documentation says to call again.
		var taken *redsync.ErrTaken
		if !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed) {
			return nil, err
		}
	}
}

func unlock(ctx context.Context, m *redsync.Mutex) error {
	ok, err := m.UnlockContext(ctx)
	if err == nil && !ok {
		return fmt.Errorf("redsync: %s was not held", m.Name())
	}
	return err
}

func (r *redsyncLocker) close(context.Context) error { return r.rdb.Close() }
