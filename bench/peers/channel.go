package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"flashsale/internal/pause"
)

const (
	channelRoom    = 100_000 // orders that wait in memory
	channelWorkers = 4
	channelBatch   = 256
	channelTries   = 5
	channelRetry   = 100 * time.Millisecond
)

var errQueueFull = errors.New("peers: the queue is full")

// channelContender reserves with one Lua script, puts the order into a channel of its process
// and answers 202. Workers of the same process insert what waits, in batches.
//
// It lacks: a queue that survives the process. A crash loses the orders in the channel although
// they were answered, and their units stay taken. A shutdown with SIGTERM drains the channel.
func channelContender() contender {
	return contender{
		name: "channel", approach: "one Lua script, a Go channel, workers INSERT into SQLite", answer: http.StatusAccepted,
		patience: defaultPatience, prepare: prepareRedisAndSQLite, open: openChannel,
	}
}

type channelSeller struct {
	stock  redisStock
	orders *sqliteOrders
	queue  chan order
	all    sync.WaitGroup

	mu     sync.Mutex
	failed []error // of the workers
}

func openChannel(ctx context.Context, s settings) (seller, error) {
	orders, err := openSQLiteOrders(ctx, s.db)
	if err != nil {
		return nil, err
	}
	c := &channelSeller{stock: redisStock{openRedis(s.redis)}, orders: orders, queue: make(chan order, channelRoom)}
	for range channelWorkers {
		// The workers outlive ctx: close ends them once the channel is empty.
		c.all.Go(func() { c.work(context.WithoutCancel(ctx)) })
	}
	return c, nil
}

func (c *channelSeller) sell(ctx context.Context, o order) (string, error) {
	id, err := c.stock.reserve(ctx, o)
	if err != nil {
		return "", err
	}
	repeated := id != o.ID
	o.ID = id
	select {
	case c.queue <- o: // a repeat too; the insert ignores it if the row exists
		return id, nil
	default:
	}
	if repeated {
		return "", errQueueFull
	}
	return "", errors.Join(errQueueFull, c.stock.release(context.WithoutCancel(ctx), o))
}

func (c *channelSeller) work(ctx context.Context) {
	for first := range c.queue {
		batch := []order{first}
	gather:
		for len(batch) < channelBatch {
			select {
			case o, ok := <-c.queue:
				if !ok {
					break gather
				}
				batch = append(batch, o)
			default:
				break gather
			}
		}
		if err := c.insert(ctx, batch); err != nil {
			fmt.Fprintf(os.Stderr, "insert %d orders: %v\n", len(batch), err)
			c.mu.Lock()
			c.failed = append(c.failed, err)
			c.mu.Unlock()
		}
	}
}

func (c *channelSeller) insert(ctx context.Context, batch []order) (err error) {
	for range channelTries {
		if err = c.orders.insert(ctx, batch...); err == nil || !pause.For(ctx, channelRetry) {
			return err
		}
	}
	return err
}

func (c *channelSeller) close(context.Context) error {
	close(c.queue)
	c.all.Wait()
	return errors.Join(append(c.failed, c.orders.close(), c.stock.rdb.Close())...)
}
