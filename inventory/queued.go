package inventory

import (
	"bytes"
	"context"
	"encoding/hex"
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

// A queue's log of accepted orders is a stream: the purchase script adds one entry per
// batch, with a record of each order that it accepted, in the same atomic step that adds
// their tasks. So every queued order is in the log, unless a version of this program
// without a log added it. TrimQueued removes orders that have left the queue.
//
// A record is the hash of the buyer's name and the order's id. Only the task has the name,
// so the payload decides whose order it is.
const (
	recordSize  = 24
	recordField = "o"
)

// orderID is a UUID as it is stored in a record; zero for an id that is not a UUID.
type orderID [16]byte

// buyerHash is FNV-1a of 64 bits. All processes must compute the same hash.
func buyerHash(buyer string) uint64 { return fnv1a(fnvStart, buyer) }

const fnvStart = uint64(14695981039346656037)

func fnv1a(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// appendQueuedRecords appends the records of a batch, in its order.
func appendQueuedRecords(b []byte, batch []*Request) []byte {
	for _, r := range batch {
		b = appendQueuedRecord(b, buyerHash(r.Buyer), packOrderID(r.OrderID))
	}
	return b
}

func appendQueuedRecord(b []byte, buyer uint64, id orderID) []byte {
	for shift := 56; shift >= 0; shift -= 8 {
		b = append(b, byte(buyer>>shift))
	}
	return append(b, id[:]...)
}

// eachRecord calls fn for every record of an entry.
func eachRecord(m *redis.XMessage, fn func(buyer uint64, id orderID)) {
	text, ok := m.Values[recordField].(string)
	for ; ok && len(text) >= recordSize; text = text[recordSize:] {
		buyer := uint64(0)
		for i := range 8 {
			buyer = buyer<<8 | uint64(text[i])
		}
		if id := orderID([]byte(text[8:recordSize])); id != (orderID{}) {
			fn(buyer, id)
		}
	}
}

func packOrderID(text string) (id orderID) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return orderID{}
	}
	var digits [32]byte
	copy(digits[:], text[:8])
	copy(digits[8:], text[9:13])
	copy(digits[12:], text[14:18])
	copy(digits[16:], text[19:23])
	copy(digits[20:], text[24:])
	if _, err := hex.Decode(id[:], digits[:]); err != nil {
		return orderID{}
	}
	return id
}

func (id orderID) text() string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// QueuedIndex finds the queued orders of a buyer. It keeps the queues' logs in memory,
// about 60 bytes per order, and reads new entries at each call. It is safe for concurrent
// use.
type QueuedIndex struct{ logs []*queuedLog }

// NewQueuedIndex returns an index of these queues of orders. It reads nothing yet.
func NewQueuedIndex(rdb redis.UniversalClient, queues ...*queue.Queue) *QueuedIndex {
	x := &QueuedIndex{}
	for _, q := range queues {
		x.logs = append(x.logs, &queuedLog{
			rdb: rdb, queue: q, key: queuedLogKey(q.Prefix()), one: make(chan struct{}, 1), of: make(map[uint64]uint64),
		})
	}
	return x
}

const (
	// queuedLook bounds the orders that one call of Orders reads.
	queuedLook = 512
	// queuedLimit bounds one call of Orders, which may have to read a long log for the
	// first time. The next call goes on where this one ended.
	queuedLimit = 5 * time.Second
)

// Orders calls fn with the queued orders of a buyer whose ids are lower than before (empty:
// all orders), the highest first, until fn has accepted limit (1 or more) of them by
// returning true. Another buyer's order may be among them: the payload decides.
//
// It finds every order that was added before the call and is still in the queue, down to
// the id that it returns. To continue below that id, pass it as before. An empty id says
// that there are no more orders.
// Errors: ErrUnavailable.
func (x *QueuedIndex) Orders(ctx context.Context, buyer, before string, limit int, fn func(Accepted) bool) (more string, err error) {
	ctx, cancel := context.WithTimeout(ctx, queuedLimit)
	defer cancel()
	hash := buyerHash(buyer)
	var found []queuedOrder
	for _, l := range x.logs {
		if found, err = l.orders(ctx, found, hash, before); err != nil {
			return "", fmt.Errorf("read log of queued orders: %w: %w", ErrUnavailable, err)
		}
	}
	slices.SortFunc(found, func(a, b queuedOrder) int { return bytes.Compare(b.id[:], a.id[:]) })
	for looked := 0; looked < len(found); {
		if limit < 1 || looked >= queuedLook {
			return found[looked-1].id.text(), nil
		}
		page := found[looked:min(looked+max(limit, 16), len(found), queuedLook)]
		accepted, err := acceptedOf(ctx, page)
		if err != nil {
			return "", fmt.Errorf("read queued orders: %w: %w", ErrUnavailable, err)
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

// queuedOrder is an order that was added to a queue.
type queuedOrder struct {
	id  orderID
	log *queuedLog
}

// acceptedOf reads orders; one without an OrderID is no longer queued.
func acceptedOf(ctx context.Context, orders []queuedOrder) ([]Accepted, error) {
	out := make([]Accepted, len(orders))
	byLog := make(map[*queuedLog][]int)
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

// queuedLog is the part of one queue's log that was read.
type queuedLog struct {
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
	entries []queuedEntry
	kept    int // entries after the last check of the log's beginning
	// records are those of the entries, in order; the first one's number is base.
	records []queuedRecord
	base    uint64
	of      map[uint64]uint64 // by the buyer's hash: the number of the latest record
}

// queuedEntry is an entry of the log.
type queuedEntry struct {
	id  streamID
	end uint64 // the number of the first record after it
}

// queuedRecord is one order in an entry.
type queuedRecord struct {
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
	// queuedPage is how many entries one call reads: 300 kB of full batches.
	queuedPage = 50
	// queuedPages bounds the pages of one read.
	queuedPages = 1 << 16
	// queuedSlack is how many entries are kept before it is worth checking which of them
	// have been removed from the log.
	queuedSlack = 64
)

var errQueuedLog = errors.New("inventory: the log of queued orders has no end")

// orders reads the new entries of the log, and appends a buyer's orders with ids lower
// than before, each once, in no order. It includes every order that was added before the
// call. Concurrent callers share a read that began after their calls.
func (l *queuedLog) orders(ctx context.Context, found []queuedOrder, buyer uint64, before string) ([]queuedOrder, error) {
	if err := l.current(ctx); err != nil {
		return nil, err
	}
	defer l.end()
	return l.collect(found, buyer, before), nil
}

// current reads the new entries of the log. After success the caller holds one and must
// call end.
func (l *queuedLog) current(ctx context.Context) error {
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
func (l *queuedLog) collect(found []queuedOrder, buyer uint64, before string) []queuedOrder {
	own := len(found)
	end := packOrderID(before)
	for number := l.of[buyer]; number > l.base; number = l.records[number-l.base-1].before {
		id := l.records[number-l.base-1].id
		if id == (orderID{}) || before != "" && bytes.Compare(id[:], end[:]) >= 0 {
			continue
		}
		found = append(found, queuedOrder{id, l})
	}
	// TrimQueued may have added an order to the log again.
	slices.SortFunc(found[own:], func(a, b queuedOrder) int { return bytes.Compare(a.id[:], b.id[:]) })
	once := slices.CompactFunc(found[own:], func(a, b queuedOrder) bool { return a.id == b.id })
	return found[:own+len(once)]
}

// forget removes an order whose task has ended.
func (l *queuedLog) forget(ctx context.Context, buyer uint64, id orderID) {
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

func (l *queuedLog) begin(ctx context.Context) error {
	select {
	case l.one <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *queuedLog) end() { <-l.one }

// readOn reads from the last entry that was read, which it reads once more. If that entry
// is gone, everything up to it was removed from the log, or Redis has lost the log, and
// the entries in memory are invalid.
func (l *queuedLog) readOn(ctx context.Context) error {
	first, err := l.beginning(ctx)
	if err != nil {
		return err
	}
	for range queuedPages {
		from := "-"
		if l.last != "" {
			from = l.last
		}
		page, err := l.rdb.XRangeN(ctx, l.key, from, "+", queuedPage+1).Result()
		if err != nil {
			return err
		}
		full := len(page) > queuedPage
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
	return errQueuedLog
}

// beginning is the id of the log's first entry, if it is worth checking; otherwise zero.
// It is read before the log's end: orders that TrimQueued has removed by then were added
// again at the end, so their old entries may be dropped.
func (l *queuedLog) beginning(ctx context.Context) (streamID, error) {
	if len(l.entries) < 2*l.kept+queuedSlack {
		return streamID{}, nil
	}
	head, err := l.rdb.XRangeN(ctx, l.key, "-", "+", 1).Result()
	if err != nil || len(head) == 0 { // empty: the last entry is gone as well, which readOn detects
		return streamID{}, err
	}
	return parseStreamID(head[0].ID)
}

// add adds an entry and its records.
func (l *queuedLog) add(m *redis.XMessage) error {
	at, err := parseStreamID(m.ID)
	if err != nil {
		return fmt.Errorf("entry %q: %w", m.ID, err)
	}
	eachRecord(m, func(buyer uint64, id orderID) {
		number := l.base + uint64(len(l.records)) + 1
		l.records = append(l.records, queuedRecord{buyer: buyer, id: id, before: l.of[buyer]})
		l.of[buyer] = number
	})
	l.entries = append(l.entries, queuedEntry{at, l.base + uint64(len(l.records))})
	l.last = m.ID
	return nil
}

// drop removes the entries before first, unless that is zero.
func (l *queuedLog) drop(first streamID) {
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

func (l *queuedLog) reset() {
	l.base += uint64(len(l.records))
	l.last, l.entries, l.records, l.kept = "", nil, nil, 0
	l.of = make(map[uint64]uint64)
}

// batchLook bounds the orders that one call of OfBuyers reads.
const batchLook = 16 * queuedLook

// errManyQueued says that the buyers of a batch have too many queued orders to read.
var errManyQueued = errors.New("too many queued orders of these buyers")

// OfBuyers calls fn with every queued order of these buyers in the item's partition, in no
// order. Orders of other items and other buyers may be among them: the payload decides. It
// finds every order that was added before the call and is still in the queue. Errors: ErrUnavailable, also if there are too many.
func (x *QueuedIndex) OfBuyers(ctx context.Context, item string, buyers []string, fn func(Accepted)) error {
	ctx, cancel := context.WithTimeout(ctx, queuedLimit)
	defer cancel()
	l := x.logs[PartitionOf(item, len(x.logs))]
	if err := l.current(ctx); err != nil {
		return fmt.Errorf("read log of queued orders: %w: %w", ErrUnavailable, err)
	}
	var found []queuedOrder
	seen := make(map[uint64]bool, len(buyers))
	for _, buyer := range buyers {
		if hash := buyerHash(buyer); !seen[hash] && len(found) <= batchLook {
			seen[hash] = true
			found = l.collect(found, hash, "")
		}
	}
	l.end()
	if len(found) > batchLook {
		return fmt.Errorf("%w: %w", ErrUnavailable, errManyQueued)
	}
	accepted, err := acceptedOf(ctx, found)
	if err != nil {
		return fmt.Errorf("read queued orders: %w: %w", ErrUnavailable, err)
	}
	for _, a := range accepted {
		if a.OrderID != "" {
			fn(a)
		}
	}
	return nil
}
