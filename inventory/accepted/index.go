package accepted

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/queue"
)

// Index finds the queued orders of a buyer. It keeps the queues' logs in memory,
// about 60 bytes per order, and reads new entries at each call. It is safe for concurrent
// use.
type Index struct{ logs []*logReader }

// NewIndex returns an index of these queues of orders. It reads nothing yet.
func NewIndex(rdb redis.UniversalClient, queues ...*queue.Queue) *Index {
	x := &Index{}
	for _, q := range queues {
		x.logs = append(x.logs, &logReader{
			rdb: rdb, queue: q, key: LogKey(q.Prefix()), one: make(chan struct{}, 1), of: make(map[uint64]uint64),
		})
	}
	return x
}

const (
	// maxLook bounds the orders that one call of Orders reads.
	maxLook = 512
	// timeLimit bounds one call of Orders, which may have to read a long log for the
	// first time. The next call goes on where this one ended.
	timeLimit = 5 * time.Second
)

// Orders calls fn with the queued orders of a buyer whose ids are lower than before (empty:
// all orders), the highest first, until fn has accepted limit (1 or more) of them by
// returning true. Another buyer's order may be among them: the payload decides.
//
// It finds every order that was added before the call and is still in the queue, down to
// the id that it returns. To continue below that id, pass it as before. An empty id says
// that there are no more orders.
// Errors: those of Redis.
func (x *Index) Orders(ctx context.Context, buyer, before string, limit int, fn func(Order) bool) (more string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	hash := buyerHash(buyer)
	var found []loggedOrder
	for _, l := range x.logs {
		if found, err = l.orders(ctx, found, hash, before); err != nil {
			return "", fmt.Errorf("read log of queued orders: %w", err)
		}
	}
	slices.SortFunc(found, func(a, b loggedOrder) int { return bytes.Compare(b.id[:], a.id[:]) })
	for looked := 0; looked < len(found); {
		if limit < 1 || looked >= maxLook {
			return found[looked-1].id.text(), nil
		}
		page := found[looked:min(looked+max(limit, 16), len(found), maxLook)]
		accepted, err := ordersOf(ctx, page)
		if err != nil {
			return "", fmt.Errorf("read queued orders: %w", err)
		}
		for i := range page {
			if limit < 1 {
				return found[looked-1].id.text(), nil
			}
			looked++
			if accepted[i].OrderID == "" {
				page[i].log.forget(ctx, hash, page[i].id)
			} else if fn(accepted[i]) {
				limit--
			}
		}
	}
	return "", nil
}

// loggedOrder is an order that was added to a queue.
type loggedOrder struct {
	id  orderID
	log *logReader
}

// ordersOf reads orders; one without an OrderID is no longer queued.
func ordersOf(ctx context.Context, orders []loggedOrder) ([]Order, error) {
	out := make([]Order, len(orders))
	byLog := make(map[*logReader][]int)
	for i := range orders {
		byLog[orders[i].log] = append(byLog[orders[i].log], i)
	}
	for l, places := range byLog {
		ids := make([]string, len(places))
		for k, i := range places {
			ids[k] = orders[i].id.text()
		}
		found, err := NewOrders(l.queue).Find(ctx, ids...)
		if err != nil {
			return nil, err
		}
		for k, i := range places {
			out[i] = found[k]
		}
	}
	return out, nil
}

// logReader is the part of one queue's log that was read.
type logReader struct {
	rdb   redis.UniversalClient
	queue *queue.Queue
	key   string

	// one is a mutex for the fields below. It is a channel, so that a caller's context
	// can end the wait for it.
	one   chan struct{}
	begun atomic.Int64 // reads

	// The rest belongs to the holder of one.
	err     error // of the last read
	last    string
	entries []logEntry
	kept    int // entries after the last check of the log's beginning
	// records are those of the entries, in order; the first one's number is base.
	records []logRecord
	base    uint64
	of      map[uint64]uint64 // by the buyer's hash: the number of the latest record
}

// logEntry is an entry of the log.
type logEntry struct {
	id  streamID
	end uint64 // the number of the first record after it
}

// logRecord is one order in an entry.
type logRecord struct {
	buyer  uint64
	id     orderID // zero: removed
	before uint64  // the number of the buyer's record before this one; base 1, and 0 for none
}

// streamID is the id of an entry, in a comparable form.
type streamID [2]uint64

func parseStreamID(text string) (streamID, error) {
	ms, seq, _ := strings.Cut(text, "-")
	first, err1 := strconv.ParseUint(ms, 10, 64)
	second, err2 := strconv.ParseUint(seq, 10, 64)
	return streamID{first, second}, errors.Join(err1, err2)
}

func (a streamID) less(b streamID) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }

const (
	// readPage is how many entries one call reads: 300 kB of full batches.
	readPage = 50
	// maxPages bounds the pages of one read.
	maxPages = 1 << 16
	// checkSlack is how many entries are kept before it is worth checking which of them
	// have been removed from the log.
	checkSlack = 64
)

var errEndless = errors.New("accepted: the log of queued orders has no end")

// orders reads the new entries of the log, and appends a buyer's orders with ids lower
// than before, each once, in no order. It includes every order that was added before the
// call. Concurrent callers share a read that began after their calls.
func (l *logReader) orders(ctx context.Context, found []loggedOrder, buyer uint64, before string) ([]loggedOrder, error) {
	if err := l.current(ctx); err != nil {
		return nil, err
	}
	defer l.end()
	return l.collect(found, buyer, before), nil
}

// current reads the new entries of the log. After success the caller holds one and must
// call end.
func (l *logReader) current(ctx context.Context) error {
	begun := l.begun.Load()
	if err := l.begin(ctx); err != nil {
		return err
	}
	if l.begun.Load() == begun || l.err != nil {
		l.begun.Add(1)
		if l.err = l.readOn(ctx); l.err != nil {
			l.end()
			return l.err
		}
	}
	return nil
}

// collect is orders without the read. The caller holds one.
func (l *logReader) collect(found []loggedOrder, buyer uint64, before string) []loggedOrder {
	own := len(found)
	end := packOrderID(before)
	for number := l.of[buyer]; number > l.base; number = l.records[number-l.base-1].before {
		id := l.records[number-l.base-1].id
		if id == (orderID{}) || before != "" && bytes.Compare(id[:], end[:]) >= 0 {
			continue
		}
		found = append(found, loggedOrder{id, l})
	}
	// Trim may have added an order to the log again.
	slices.SortFunc(found[own:], func(a, b loggedOrder) int { return bytes.Compare(a.id[:], b.id[:]) })
	once := slices.CompactFunc(found[own:], func(a, b loggedOrder) bool { return a.id == b.id })
	return found[:own+len(once)]
}

// forget removes an order whose task has ended.
func (l *logReader) forget(ctx context.Context, buyer uint64, id orderID) {
	if l.begin(ctx) != nil {
		return // the next call finds it again
	}
	defer l.end()
	for number := l.of[buyer]; number > l.base; number = l.records[number-l.base-1].before {
		if r := &l.records[number-l.base-1]; r.id == id {
			r.id = orderID{}
		}
	}
}

func (l *logReader) begin(ctx context.Context) error {
	select {
	case l.one <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *logReader) end() { <-l.one }

// readOn reads from the last entry that was read, which it reads once more. If that entry
// is gone, everything up to it was removed from the log, or Redis has lost the log, and
// the entries in memory are invalid.
func (l *logReader) readOn(ctx context.Context) error {
	first, err := l.beginning(ctx)
	if err != nil {
		return err
	}
	for range maxPages {
		from := "-"
		if l.last != "" {
			from = l.last
		}
		page, err := l.rdb.XRangeN(ctx, l.key, from, "+", readPage+1).Result()
		if err != nil {
			return err
		}
		full := len(page) > readPage
		if l.last != "" {
			if len(page) == 0 || page[0].ID != l.last {
				l.reset()
				continue
			}
			page = page[1:]
		}
		for i := range page {
			if err := l.add(&page[i]); err != nil {
				return err
			}
		}
		if !full {
			l.drop(first)
			return nil
		}
	}
	return errEndless
}

// beginning is the id of the log's first entry, if it is worth checking; otherwise zero.
// It is read before the log's end: orders that Trim has removed by then were added
// again at the end, so their old entries may be dropped.
func (l *logReader) beginning(ctx context.Context) (streamID, error) {
	if len(l.entries) < 2*l.kept+checkSlack {
		return streamID{}, nil
	}
	head, err := l.rdb.XRangeN(ctx, l.key, "-", "+", 1).Result()
	if err != nil || len(head) == 0 { // empty: the last entry is gone as well, which readOn detects
		return streamID{}, err
	}
	return parseStreamID(head[0].ID)
}

// add adds an entry and its records.
func (l *logReader) add(m *redis.XMessage) error {
	at, err := parseStreamID(m.ID)
	if err != nil {
		return fmt.Errorf("entry %q: %w", m.ID, err)
	}
	eachRecord(m, func(buyer uint64, id orderID) {
		number := l.base + uint64(len(l.records)) + 1
		l.records = append(l.records, logRecord{buyer: buyer, id: id, before: l.of[buyer]})
		l.of[buyer] = number
	})
	l.entries = append(l.entries, logEntry{at, l.base + uint64(len(l.records))})
	l.last = m.ID
	return nil
}

// drop removes the entries before first, unless that is zero.
func (l *logReader) drop(first streamID) {
	if first == (streamID{}) {
		return
	}
	n := 0
	for n < len(l.entries) && l.entries[n].id.less(first) {
		n++
	}
	if n > 0 {
		end := l.entries[n-1].end
		gone := l.records[:end-l.base]
		for i := range gone {
			if l.of[gone[i].buyer] <= end { // the buyer's latest record is removed, too
				delete(l.of, gone[i].buyer)
			}
		}
		// Copied, so that the memory of the removed entries is freed.
		l.records = slices.Clone(l.records[len(gone):])
		l.entries = slices.Clone(l.entries[n:])
		l.base = end
	}
	l.kept = len(l.entries)
}

func (l *logReader) reset() {
	l.base += uint64(len(l.records))
	l.last, l.entries, l.records, l.kept = "", nil, nil, 0
	l.of = make(map[uint64]uint64)
}

// batchLook bounds the orders that one call of OfBuyers reads.
const batchLook = 16 * maxLook

// ErrTooMany means that buyers have more queued orders than one call of OfBuyers reads.
var ErrTooMany = errors.New("accepted: too many queued orders of these buyers")

// OfBuyers calls fn with every queued order of these buyers in one of the queues, given by
// its place in NewIndex, in no order. Other buyers' orders may be among them: the payload
// decides. It finds every order that was added before the call and is still in the queue.
// Errors: those of Redis, ErrTooMany.
func (x *Index) OfBuyers(ctx context.Context, place int, buyers []string, fn func(Order)) error {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	l := x.logs[place]
	if err := l.current(ctx); err != nil {
		return fmt.Errorf("read log of queued orders: %w", err)
	}
	var found []loggedOrder
	seen := make(map[uint64]bool, len(buyers))
	for _, buyer := range buyers {
		if hash := buyerHash(buyer); !seen[hash] && len(found) <= batchLook {
			seen[hash] = true
			found = l.collect(found, hash, "")
		}
	}
	l.end()
	if len(found) > batchLook {
		return ErrTooMany
	}
	accepted, err := ordersOf(ctx, found)
	if err != nil {
		return fmt.Errorf("read queued orders: %w", err)
	}
	for _, a := range accepted {
		if a.OrderID != "" {
			fn(a)
		}
	}
	return nil
}
