package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hibiken/asynq"
)

const (
	asynqTask    = "order"
	asynqWorkers = 32
	asynqRetry   = time.Second
	// asynqPatience is a lease (30 s), the 30 s that asynq adds for clocks that differ, and the
	// minute between two searches for expired leases. None of them can be configured.
	asynqPatience = 2*time.Minute + 15*time.Second
)

// asynqContender reserves with one Lua script, enqueues a task in asynq and answers 202. Workers
// insert one order per task, as asynq's handlers do. The task's id is the order's, so a repeat
// enqueues a task that was lost and no second one.
//
// It lacks: one step for units and task, so a crash strands units. Batches: each order is a
// transaction with a sync of its own. After a crash the tasks that its workers held wait for up
// to two minutes.
func asynqContender() contender {
	return contender{
		name: "asynq", approach: "one Lua script, asynq, workers INSERT into SQLite", answer: http.StatusAccepted,
		patience: asynqPatience, prepare: prepareRedisAndSQLite, open: openAsynq,
	}
}

type asynqSeller struct {
	stock   redisStock
	orders  *sqliteOrders
	client  *asynq.Client
	workers *asynq.Server
}

func openAsynq(ctx context.Context, s settings) (seller, error) {
	orders, err := openSQLiteOrders(ctx, s.db)
	if err != nil {
		return nil, err
	}
	rdb := openRedis(s.redis)
	a := &asynqSeller{
		stock: redisStock{rdb}, orders: orders,
		client: asynq.NewClientFromRedisClient(rdb),
		workers: asynq.NewServerFromRedisClient(rdb, asynq.Config{
			Concurrency:    asynqWorkers,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return asynqRetry },
			LogLevel:       asynq.ErrorLevel,
		}),
	}
	if err := a.workers.Start(asynq.HandlerFunc(a.handle)); err != nil {
		return nil, errors.Join(err, orders.close(), rdb.Close())
	}
	return a, nil
}

func (a *asynqSeller) sell(ctx context.Context, o order) (string, error) {
	id, err := a.stock.reserve(ctx, o)
	if err != nil {
		return "", err
	}
	repeated := id != o.ID
	o.ID = id
	payload, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	_, err = a.client.EnqueueContext(ctx, asynq.NewTask(asynqTask, payload), asynq.TaskID(id))
	switch {
	case err == nil, errors.Is(err, asynq.ErrTaskIDConflict):
		return id, nil
	case repeated:
		return "", err
	default:
		return "", errors.Join(err, a.stock.release(context.WithoutCancel(ctx), o))
	}
}

// handle inserts the order of a task.
func (a *asynqSeller) handle(ctx context.Context, t *asynq.Task) error {
	var o order
	if err := json.Unmarshal(t.Payload(), &o); err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	return a.orders.insert(ctx, o)
}

func (a *asynqSeller) close(context.Context) error {
	a.workers.Shutdown()
	return errors.Join(a.orders.close(), a.stock.rdb.Close())
}
