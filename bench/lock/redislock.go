package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislockContender is bsm/redislock. It does not wait by default, so the
// plain setting is the retry strategy of its documentation's example.
type redislockContender struct{ tuned bool }

func (c redislockContender) name() string {
	if c.tuned {
		return "redislock-5ms"
	}
	return "redislock"
}

func (c redislockContender) waitsOnly() bool { return c.tuned }

func (c redislockContender) manager(addr, process string) (locker, error) {
	retry := 100 * time.Millisecond
	if c.tuned {
		retry = tunedRetry
	}
	rdb := goRedis(addr, process)
	// The linear strategy keeps no state, so that all calls share it.
	opts := &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}
	return &redislockLocker{rdb: rdb, client: redislock.New(rdb), opts: opts}, nil
}

type redislockLocker struct {
	rdb    *redis.Client
	client *redislock.Client
	opts   *redislock.Options
}

func (r *redislockLocker) acquire(ctx context.Context, resource string) (func(context.Context) error, error) {
	l, err := r.client.Obtain(ctx, resource, ttl, r.opts)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func (r *redislockLocker) close(context.Context) error { return r.rdb.Close() }
