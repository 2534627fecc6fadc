package main

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

// lockTries outlast sellLimit at redsync's mean delay of 150 ms.
const lockTries = 80

// redsyncContender takes the item's lock for each request. Under the lock it checks and
// decrements the stock in Redis; after the unlock it inserts the order into SQLite and answers
// 201. It has redsync's defaults, except that it retries until the request's own limit.
//
// It lacks: one step for units and row, so a crash strands units. Fencing: a process that is
// paused for longer than the lock's 8 s decrements after another has taken over. Fairness: each
// waiter polls. After a crash no purchase succeeds until the lock expires.
func redsyncContender() contender {
	return contender{
		name: "redsync", approach: "a lock per request (redsync), stock in Redis, then INSERT into SQLite", answer: http.StatusCreated,
		patience: defaultPatience, prepare: prepareRedisAndSQLite,
		open: func(ctx context.Context, s settings) (seller, error) {
			r, err := openReserveThenInsert(ctx, s)
			if err != nil {
				return nil, err
			}
			locks := redsync.New(goredis.NewPool(r.stock.rdb))
			r.reserve = func(ctx context.Context, o order) (string, error) { return lockedReserve(ctx, locks, r.stock, o) }
			return r, nil
		},
	}
}

func lockedReserve(ctx context.Context, locks *redsync.Redsync, stock redisStock, o order) (id string, err error) {
	m := locks.NewMutex(lockKey(o.Item), redsync.WithTries(lockTries))
	if err := m.LockContext(ctx); err != nil {
		return "", err
	}
	id, err = check(ctx, stock.rdb, o)
	if err == nil && id == "" {
		id, err = o.ID, stock.take(ctx, stock.rdb, o)
	}
	if err != nil {
		_, unlockErr := m.UnlockContext(context.WithoutCancel(ctx))
		return "", errors.Join(err, unlockErr)
	}
	// What was taken stays valid if the unlock fails; the lock then expires.
	_, _ = m.UnlockContext(context.WithoutCancel(ctx)) //nolint:errcheck // see above
	return id, nil
}
