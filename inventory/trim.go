package inventory

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"flashsale/queue"
)

const (
	// trimPage is how many entries of a log are looked at together.
	trimPage = 64
	// trimPages bounds one call. A queue's purchase scripts add fewer entries between
	// two sweeps.
	trimPages = 4096
	// trimEntry is how many records are written again as one entry.
	trimEntry = 256
)

// TrimQueued removes from a queue's log the orders that are not in the queue any more. It
// goes through the log from its beginning, up to the first page of which most orders are
// queued still: what a queue holds is not looked at again and again. The queued orders of
// the pages it went through, dead letters among them, are written again at the log's end,
// so that nothing old keeps the rest from being removed. Any number of processes may do
// so at once. Errors: those of Redis.
func TrimQueued(ctx context.Context, rdb redis.UniversalClient, q *queue.Queue) error {
	key := queuedLogKey(q.Prefix())
	for range trimPages {
		more, err := trimPageOf(ctx, rdb, q, key)
		if err != nil {
			return fmt.Errorf("trim log of queued orders: %w", err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

// trimPageOf is one step of TrimQueued. more says that another one is worth it.
func trimPageOf(ctx context.Context, rdb redis.UniversalClient, q *queue.Queue, key string) (more bool, err error) {
	page, err := rdb.XRangeN(ctx, key, "-", "+", trimPage).Result()
	if err != nil || len(page) == 0 {
		return false, err
	}
	var buyers []uint64
	var ids []orderID
	var texts []string
	entries := make([]string, len(page))
	for i := range page {
		entries[i] = page[i].ID
		eachRecord(&page[i], func(buyer uint64, id orderID) {
			buyers, ids, texts = append(buyers, buyer), append(ids, id), append(texts, id.text())
		})
	}
	payloads, err := q.Payloads(ctx, texts...)
	if err != nil {
		return false, err
	}
	var again [][]byte
	alive := 0
	for i, payload := range payloads {
		if payload == nil {
			continue
		}
		if alive%trimEntry == 0 {
			again = append(again, nil)
		}
		alive++
		last := len(again) - 1
		again[last] = appendQueuedRecord(again[last], buyers[i], ids[i])
	}
	whole := len(page) == trimPage
	mostly := 2*alive > len(ids)
	if mostly && !whole {
		return false, nil // there is nothing behind these that they could hide
	}
	// One step, so that nobody finds an order that is queued in no entry, and that what is
	// removed is always the log's beginning.
	_, err = rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for _, records := range again {
			p.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{recordField, records}})
		}
		p.XDel(ctx, key, entries...)
		return nil
	})
	return whole && !mostly, err
}
