package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"flashsale/lock"
)

// ours is flashsale/lock with its defaults; two of them are written out, because the targets
// and the other contenders refer to them. There is nothing to tune: it does not poll.
type ours struct{}

func (ours) name() string    { return oursName }
func (ours) waitsOnly() bool { return false }

func (ours) manager(addr, process string) (locker, error) {
	rdb := goRedis(addr, process)
	m, err := lock.New(rdb, lock.Config{TTL: ttl, Liveness: liveness})
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return &ourLocker{rdb: rdb, m: m}, nil
}

type ourLocker struct {
	rdb *redis.Client
	m   *lock.Manager
}

func (o *ourLocker) acquire(ctx context.Context, resource string) (func(context.Context) error, error) {
	l, err := o.m.Acquire(ctx, resource)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func (o *ourLocker) close(ctx context.Context) error {
	return errors.Join(o.m.Close(ctx), o.rdb.Close())
}
