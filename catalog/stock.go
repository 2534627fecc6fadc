package catalog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// The live stock is asked for in rounds: one question for all items that are
// looked at, one question at a time. An item is asked for again once its number
// is stockSoon old, behind the reader's back; a reader waits only for an item
// that nobody has looked at for stockMax.
const (
	stockSoon = 400 * time.Millisecond
	stockMax  = time.Second
	// stockPause is how long the stock is not asked for after it did not answer.
	stockPause = time.Second
	// stockChunk bounds the items of one question.
	stockChunk = 1000
)

// liveStock is what is known of an item's live stock.
type liveStock struct {
	left   atomic.Int64  // -1: nothing
	asOf   atomic.Int64  // Unix nanoseconds of when it was asked for
	wanted atomic.Bool   // a round will ask
	voids  atomic.Uint64 // how often a message has said that it is another now
}

// stocks gathers what is to be asked.
type stocks struct {
	mu    sync.Mutex
	next  *round
	busy  bool
	quiet atomic.Int64 // Unix nanoseconds until which the stock is not asked
}

type round struct {
	records map[string]*record
	done    chan struct{}
}

// withStock returns the record's view once its stock is young enough, or cannot
// be had.
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
			c.wantStock(r)
		}
		return r.view.Load()
	}
	q := c.wantStock(r)
	if q != nil {
		select {
		case <-q.done:
		case <-ctx.Done(): // the caller finds out on its own
		}
	}
	return r.view.Load()
}

// wantStock adds a record to the next round; nil says that the process is ending.
func (c *Catalog) wantStock(r *record) *round {
	s := &c.stocks
	s.mu.Lock()
	defer s.mu.Unlock()
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
		go c.askStock()
	}
	return q
}

// askStock runs the rounds until there is none.
func (c *Catalog) askStock() {
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
		c.askRound(q)
		close(q.done)
	}
}

func (c *Catalog) askRound(q *round) {
	for _, r := range q.records {
		r.stock.wanted.Store(false)
	}
	if time.Now().UnixNano() < c.stocks.quiet.Load() {
		return // the round before it has shown that there is no answer
	}
	ids := make([]string, 0, len(q.records))
	voids := make([]uint64, 0, len(q.records))
	for id, r := range q.records {
		ids, voids = append(ids, id), append(voids, r.stock.voids.Load())
	}
	askedAt := time.Now()
	left, err := c.left(ids)
	if err != nil {
		return
	}
	for i, id := range ids {
		r := q.records[id]
		if r.stock.voids.Load() == voids[i] {
			r.stock.asOf.Store(askedAt.UnixNano())
		}
		c.setLeft(r, left[i])
	}
}

// left reads the live stock of items, in order, with -1 for what is not loaded.
func (c *Catalog) left(ids []string) ([]int64, error) {
	ctx, cancel := context.WithTimeout(c.life, c.cfg.Wait)
	defer cancel()
	all := make([]int64, 0, len(ids))
	for rest := ids; len(rest) > 0; {
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

// someLeft asks one question. Each has a limit of its own, or the stock of many items,
// which takes several, would count as one that does not answer.
func (c *Catalog) someLeft(ctx context.Context, ids []string) ([]int64, error) {
	// The stock may hang, and must not take the readers' time with it.
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StockTimeout)
	defer cancel()
	return c.stock.Left(ctx, ids)
}

// setLeft shows a new number; what is not loaded keeps the last one.
func (c *Catalog) setLeft(r *record, left int64) {
	if left < 0 {
		return
	}
	r.stock.left.Store(left)
	r.swap(func(v *View) bool {
		was := v.Item.StockLeft
		v.Item.StockLeft = left
		return was != left
	})
}

// StockChanged makes the next reader of an item wait for its live stock.
func (c *Catalog) StockChanged(id string) {
	if r, ok := c.known.GetIfPresent(id); ok {
		r.stock.voids.Add(1)
		r.stock.asOf.Store(0)
	}
	c.list.stockAsOf.Store(0)
}
