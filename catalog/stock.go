package catalog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/bucket"
)

// The live stock is read in rounds: one query for all items that are being read, and one
// round at a time. Once an item's stock is stockSoon old, it is read again in the
// background; a reader waits only for a stock that is older than stockMax.
const (
	stockSoon = 400 * time.Millisecond
	stockMax  = time.Second
	// stockPause is how long the stock is not read after an error.
	stockPause = time.Second
	// stockChunk bounds the items of one query.
	stockChunk = 1000
)

// liveStock is an item's live stock, as it was read last.
type liveStock struct {
	left   atomic.Int64  // -1: not known
	asOf   atomic.Int64  // Unix nanoseconds of when it was read
	wanted atomic.Bool   // a round will read it
	voids  atomic.Uint64 // how often a message has invalidated it
}

// stocks gathers the items of the next round.
type stocks struct {
	mu    sync.Mutex
	next  *round
	busy  bool
	quiet atomic.Int64 // Unix nanoseconds until which the stock is not read
}

type round struct {
	records map[string]*record
	done    chan struct{}
}

// withStock returns the record's view once its stock is recent enough or is not
// available.
func (c *Catalog) withStock(ctx context.Context, r *record, now time.Time) *View {
	age := time.Duration(now.UnixNano() - r.stock.asOf.Load())
	if age < stockSoon {
		return r.view.Load()
	}
	if now.UnixNano() < c.stocks.quiet.Load() {
		return r.view.Load()
	}
	if age < stockMax {
		if r.stock.wanted.CompareAndSwap(false, true) {
			c.wantStock(r, now)
		}
		return r.view.Load()
	}
	q := c.wantStock(r, now)
	if q != nil {
		select {
		case <-q.done:
		case <-ctx.Done(): // the caller checks ctx itself
		}
	}
	return r.view.Load()
}

// wantStock adds a record to the next round. It returns nil if a round has just read the
// record or the process is ending.
func (c *Catalog) wantStock(r *record, now time.Time) *round {
	s := &c.stocks
	s.mu.Lock()
	defer s.mu.Unlock()
	// A caller that was slow to get here may have seen the stock as it was before a round
	// that has ended by now.
	if now.UnixNano()-r.stock.asOf.Load() < int64(stockSoon) {
		r.stock.wanted.Store(false)
		return nil
	}
	if s.next == nil {
		s.next = &round{records: make(map[string]*record), done: make(chan struct{})}
	}
	q := s.next
	q.records[r.id] = r
	if !s.busy {
		if !c.begin() {
			return nil
		}
		s.busy = true
		go c.readStock()
	}
	return q
}

// readStock runs the rounds until there is none.
func (c *Catalog) readStock() {
	defer c.work.Done()
	s := &c.stocks
	for {
		s.mu.Lock()
		q := s.next
		s.next = nil
		s.busy = q != nil
		s.mu.Unlock()
		if q == nil {
			return
		}
		c.readRound(q)
		close(q.done)
	}
}

func (c *Catalog) readRound(q *round) {
	for _, r := range q.records {
		r.stock.wanted.Store(false)
	}
	if time.Now().UnixNano() < c.stocks.quiet.Load() {
		return // the previous round got no answer
	}
	items := make([]Item, 0, len(q.records))
	voids := make([]uint64, 0, len(q.records))
	for _, r := range q.records {
		items, voids = append(items, r.view.Load().Item), append(voids, r.stock.voids.Load())
	}
	askedAt := time.Now()
	left, err := c.left(items)
	if err != nil {
		return
	}
	for i := range items {
		r := q.records[items[i].ID]
		c.setLeft(r, left[i])
		// Last, because a reader that finds the stock recent takes the view as it is.
		if r.stock.voids.Load() == voids[i] {
			r.stock.asOf.Store(askedAt.UnixNano())
		}
	}
}

// left reads the live stock of items, in order, with -1 for what is not loaded.
func (c *Catalog) left(items []Item) ([]int64, error) {
	ctx, cancel := context.WithTimeout(c.life, c.cfg.Wait)
	defer cancel()
	all := make([]int64, 0, len(items))
	for rest := items; len(rest) > 0; {
		n := min(len(rest), stockChunk)
		left, err := c.someLeft(ctx, rest[:n])
		if err != nil {
			c.stocks.quiet.Store(time.Now().Add(stockPause).UnixNano())
			c.cfg.OnError(fmt.Errorf("catalog: %w", err))
			return nil, err
		}
		all = append(all, left...)
		rest = rest[n:]
	}
	return all, nil
}

// someLeft sends one query. Each query has its own limit, so that many items, which need
// several queries, do not exceed it.
func (c *Catalog) someLeft(ctx context.Context, items []Item) ([]int64, error) {
	// A stock that hangs must not use up the readers' time.
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StockTimeout)
	defer cancel()
	ids := make([]string, 0, len(items))
	for i := range items {
		ids = bucket.AppendIDs(ids, items[i].ID, items[i].Buckets)
	}
	left, err := c.stock.Left(ctx, ids)
	if err != nil || len(ids) == len(items) {
		return left, err
	}
	sums := make([]int64, len(items))
	for i := range items {
		n := max(items[i].Buckets, 1)
		sums[i], left = bucket.Sum(left[:n]), left[n:]
	}
	return sums, nil
}

// setLeft updates the stock of a record. A sale that is not loaded keeps its last stock until
// the item is read from the database again, from which the sale will be loaded.
func (c *Catalog) setLeft(r *record, left int64) {
	r.stock.left.Store(left)
	if left < 0 {
		return
	}
	r.swap(func(v *View) bool {
		was := v.Item.StockLeft
		v.Item.StockLeft = left
		return was != left
	})
}

// StockChanged makes the next reader of an item wait for its live stock.
func (c *Catalog) StockChanged(id string) {
	c.stockChanged(id)
	if item := bucket.Item(id); item != id {
		c.stockChanged(item)
	}
	c.list.stockAsOf.Store(0)
}

func (c *Catalog) stockChanged(id string) {
	if r, ok := c.known.GetIfPresent(id); ok {
		r.stock.voids.Add(1)
		r.stock.asOf.Store(0)
	}
}
