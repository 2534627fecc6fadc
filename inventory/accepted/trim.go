package accepted

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"flashsale/queue"
)

const (
	// trimPage is how many entries of a log one step reads.
	trimPage = 64
	// trimPages bounds one call. A queue's purchase scripts add fewer entries between
	// two sweeps.
	trimPages = 4096
	// trimEntry is how many records are rewritten as one entry.
	trimEntry = 256
)

// Trim removes from a queue's log the orders that have left the queue. It processes
// the log from its beginning, up to the first page with mostly queued orders, so that it
// does not read a long queue again at each call. It moves the queued orders of the
// processed pages, dead letters included, to the log's end, so that a few old orders do
// not keep the others from being removed. Any number of processes may call it
// concurrently. Errors: those of Redis.
func Trim(ctx context.Context, rdb redis.UniversalClient, q *queue.Queue) error {
	key := LogKey(q.Prefix())
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

// trimPageOf is one step of Trim. more says whether another step is worthwhile.
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
	found, err := NewOrders(q).Find(ctx, texts...)
	if err != nil {
		return false, err
	}
	var again [][]byte
	alive := 0
	for i, a := range found {
		if a.OrderID == "" {
			continue
		}
		if alive%trimEntry == 0 {
			again = append(again, nil)
		}
		alive++
		last := len(again) - 1
		again[last] = appendRecord(again[last], buyers[i], ids[i])
	}
	whole := len(page) == trimPage
	mostly := 2*alive > len(ids)
	if mostly && !whole {
		return false, nil // no entries follow these
	}
	// In one transaction, so that every queued order is always in an entry, and that only
	// the log's beginning is removed.
	_, err = rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for _, records := range again {
			p.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{recordField, records}})
		}
		p.XDel(ctx, key, entries...)
		return nil
	})
	return whole && !mostly, err
}
