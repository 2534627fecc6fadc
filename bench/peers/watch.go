package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
)

// watchPause is the longest pause before a transaction is tried again.
const watchPause = 5 * time.Millisecond

// watchContender decrements the stock in Redis in an optimistic transaction: WATCH, read,
// MULTI, EXEC, and again if another purchase of the item came first. Then it inserts the order
// into SQLite and answers 201.
//
// It lacks: one step for units and row, so a crash strands units. Progress under contention: of
// the purchases that read the same stock one succeeds, and the others repeat all their calls.
func watchContender() contender {
	return contender{
		name: "watch", approach: "WATCH/MULTI on the stock in Redis, then INSERT into SQLite", answer: http.StatusCreated,
		patience: defaultPatience, prepare: prepareRedisAndSQLite,
		open: func(ctx context.Context, s settings) (seller, error) {
			r, err := openReserveThenInsert(ctx, s)
			if err != nil {
				return nil, err
			}
			r.reserve = func(ctx context.Context, o order) (string, error) { return watchedReserve(ctx, r.stock, o) }
			return r, nil
		},
	}
}

// watchedReserve tries until ctx ends.
func watchedReserve(ctx context.Context, stock redisStock, o order) (id string, err error) {
	for {
		err = stock.rdb.Watch(ctx, func(tx *redis.Tx) error {
			if id, err = check(ctx, tx, o); err != nil || id != "" {
				return err
			}
			id = o.ID
			return stock.take(ctx, tx, o)
		}, itemKeys(o.Item)...)
		if !errors.Is(err, redis.TxFailedErr) {
			return id, err
		}
		if err := pause.OrCause(ctx, rand.N(watchPause)); err != nil {
			return "", err
		}
	}
}
