package checkout

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
	"flashsale/order"
	"flashsale/order/timeouts"
)

const (
	// messageIDs bounds the orders of one message.
	messageIDs = 256
	// quietTime is how long commits are not published after a message without receivers.
	// Tens of thousands of orders may be committed in a second, and most shops have no
	// subscriber most of the time. A new subscriber reads the database for what it missed.
	quietTime = time.Second
)

// ChangeNotifier notifies the processes that follow orders of which ones changed. A message carries
// only the ids. If one is lost, the change is seen at the next poll; see Feed. A nil ChangeNotifier
// publishes nothing.
type ChangeNotifier struct {
	rdb     redis.UniversalClient
	onError func(error)
	// quietUntil is when commits are published again, in Unix nanoseconds.
	quietUntil atomic.Int64
}

// NewChangeNotifier returns a ChangeNotifier. onError receives the errors of publishing.
func NewChangeNotifier(rdb redis.UniversalClient, onError func(error)) *ChangeNotifier {
	return &ChangeNotifier{rdb: rdb, onError: onError}
}

// Notify publishes the ids of orders whose change is committed. It takes at most a second.
func (b *ChangeNotifier) Notify(ctx context.Context, ids ...string) {
	if b == nil || b.rdb == nil || len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Announce)
	defer cancel()
	_, err := b.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		b.Add(ctx, p, ids)
		return nil
	})
	if err != nil {
		b.onError(fmt.Errorf("publish %s: %w", plural.Count(len(ids), "changed order"), err))
	}
}

// Add puts the messages about some orders into a pipeline.
func (b *ChangeNotifier) Add(ctx context.Context, p redis.Pipeliner, ids []string) []*redis.IntCmd {
	var sent []*redis.IntCmd
	for from := 0; from < len(ids); from += messageIDs {
		sent = append(sent, p.Publish(ctx, order.ChangedChannel, strings.Join(ids[from:min(from+messageIDs, len(ids))], " ")))
	}
	return sent
}

// Due returns the orders of a committed batch to publish: all of them, or, while there is
// no subscriber, only the rejected ones, which are few.
func (b *ChangeNotifier) Due(tasks []order.Task, out []order.Outcome) []string {
	if b == nil || b.rdb == nil {
		return nil
	}
	quiet := time.Now().UnixNano() < b.quietUntil.Load()
	var ids []string
	for i := range tasks {
		if !quiet || out[i].Status == order.StatusRejected {
			ids = append(ids, tasks[i].ID)
		}
	}
	return ids
}

// NoteReceivers derives from the results of PUBLISH whether there are subscribers.
func (b *ChangeNotifier) NoteReceivers(sent []*redis.IntCmd) {
	if len(sent) == 0 {
		return
	}
	until := time.Now().Add(quietTime).UnixNano()
	for _, c := range sent {
		if n, err := c.Result(); err != nil || n > 0 {
			until = 0 // a subscriber exists, or may exist
		}
	}
	b.quietUntil.Store(until)
}
