package order

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// changedChannel tells of orders that changed: each message is ids between
// spaces. It is one channel for the shop, since who listens wants few orders of
// many items. It is no key.
const changedChannel = "fs:changed"

const (
	// bellIDs bounds the orders of one message.
	bellIDs = 256
	// bellQuiet is how long commits are not told of after a message that nobody
	// received: commits come by the ten thousand, and most shops have nobody
	// listening most of the time. Who begins to listen meanwhile searches for itself.
	bellQuiet = time.Second
)

// Bell tells the processes that follow orders which ones changed. A message says
// only that there is something to see, and one that is lost delays it until the
// next look; see Feed. A nil Bell tells nobody.
type Bell struct {
	rdb     redis.UniversalClient
	onError func(error)
	// quietUntil is when commits are told of again, in Unix nanoseconds.
	quietUntil atomic.Int64
}

// NewBell returns a Bell. onError learns of messages that could not be sent.
func NewBell(rdb redis.UniversalClient, onError func(error)) *Bell {
	return &Bell{rdb: rdb, onError: onError}
}

// ring tells of orders whose change is committed. It takes a second at the most.
func (b *Bell) ring(ctx context.Context, ids ...string) {
	if b == nil || b.rdb == nil || len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ringTimeout)
	defer cancel()
	_, err := b.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		b.add(ctx, p, ids)
		return nil
	})
	if err != nil {
		b.onError(fmt.Errorf("publish %d changed orders: %w", len(ids), err))
	}
}

// add puts the messages about some orders into a pipeline.
func (b *Bell) add(ctx context.Context, p redis.Pipeliner, ids []string) []*redis.IntCmd {
	var sent []*redis.IntCmd
	for from := 0; from < len(ids); from += bellIDs {
		sent = append(sent, p.Publish(ctx, changedChannel, strings.Join(ids[from:min(from+bellIDs, len(ids))], " ")))
	}
	return sent
}

// due are the orders of a committed batch that are to be told of: all of them,
// and while nobody listens those alone that were rejected, which are few.
func (b *Bell) due(tasks []task, out []outcome) []string {
	if b == nil || b.rdb == nil {
		return nil
	}
	quiet := time.Now().UnixNano() < b.quietUntil.Load()
	var ids []string
	for i := range tasks {
		if !quiet || out[i].status == StatusRejected {
			ids = append(ids, tasks[i].ID)
		}
	}
	return ids
}

// heard learns from the answers to messages whether anybody listens.
func (b *Bell) heard(sent []*redis.IntCmd) {
	if len(sent) == 0 {
		return
	}
	until := time.Now().Add(bellQuiet).UnixNano()
	for _, c := range sent {
		if n, err := c.Result(); err != nil || n > 0 {
			until = 0 // somebody listens, or may
		}
	}
	b.quietUntil.Store(until)
}
