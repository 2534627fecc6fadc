package sales

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
)

// scanKeep bounds the orders that one scan of a queue returns; each takes about 300 bytes.
const scanKeep = 200_000

// sharedScans makes loads that begin at about the same time share one scan of a partition's
// queue. Scans run one after the other, and each serves all loads that joined before it
// began. So the number of scans does not grow with the number of sales.
type sharedScans struct {
	once   sync.Once
	queues []*sharedScan
}

type sharedScan struct {
	tasks order.Queued
	keep  int
	turn  chan struct{} // held by the goroutine that scans

	mu   sync.Mutex
	next *scanRound // the scan that has not begun; nil: no load waits for one
}

// scanRound is one scan of a queue for some items.
type scanRound struct {
	items []string
	index map[string]int // of each item in items
	done  chan struct{}
	// Once done is closed:
	found map[string]inventory.Queued
	err   error
}

// Queued reads the orders of these items that are in the queues, including dead letters:
// their units stay taken until an operator retries or discards them. See inventory.Source.
// Errors: inventory.ErrUnavailable.
func (s *Source) Queued(ctx context.Context, items []string) (map[string]inventory.Queued, error) {
	s.shared.once.Do(func() {
		for _, q := range s.Tasks {
			s.shared.queues = append(s.shared.queues, &sharedScan{tasks: q, keep: scanKeep, turn: make(chan struct{}, 1)})
		}
	})
	of := make(map[int][]string)
	for _, item := range items {
		p := s.Partition(item)
		of[p] = append(of[p], item)
	}
	var mu sync.Mutex
	all := make(map[string]inventory.Queued, len(items))
	group, ctx := errgroup.WithContext(ctx)
	for p, items := range of {
		group.Go(func() error {
			found, err := s.shared.queues[p].read(ctx, items)
			if err != nil {
				return fmt.Errorf("read queued orders: %w: %w", inventory.ErrUnavailable, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, item := range items {
				if q, ok := found[item]; ok {
					all[item] = q
				}
			}
			return nil
		})
	}
	return all, group.Wait()
}

// read waits for a scan that begins after the call and covers at least the first of the
// items.
func (s *sharedScan) read(ctx context.Context, items []string) (map[string]inventory.Queued, error) {
	for {
		r := s.join(items)
		select {
		case <-r.done:
		case s.turn <- struct{}{}:
			if s.begin(r) {
				r.run(ctx, s.tasks, s.keep)
			}
			<-s.turn
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		_, covered := r.found[items[0]]
		switch {
		case r.err == nil && covered:
			return r.found, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case r.err != nil && !errors.Is(r.err, context.Canceled) && !errors.Is(r.err, context.DeadlineExceeded):
			return nil, r.err
		}
		// The scanning goroutine was cancelled, or other items had too many orders.
	}
}

// join adds items to the next scan.
func (s *sharedScan) join(items []string) *scanRound {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &scanRound{index: make(map[string]int), done: make(chan struct{})}
	}
	for _, item := range items {
		if _, known := s.next.index[item]; !known {
			s.next.index[item] = len(s.next.items)
			s.next.items = append(s.next.items, item)
		}
	}
	return s.next
}

// begin closes a scan to further items, and reports whether it still has to run. The caller
// has the turn.
func (s *sharedScan) begin(r *scanRound) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != r {
		return false
	}
	s.next = nil
	return true
}

// run scans the queue. If more than keep orders are queued, it omits the last items.
func (r *scanRound) run(ctx context.Context, tasks order.Queued, keep int) {
	defer close(r.done)
	groups := make([]inventory.Queued, len(r.items))
	kept, covered := 0, len(groups)
	r.err = tasks.Scan(ctx, func(a accepted.Order) error {
		if strings.HasPrefix(a.OrderID, order.ExpiryPrefix) {
			return nil
		}
		t, err := order.ParseAccepted(a)
		if err != nil {
			return nil //nolint:nilerr // an unreadable task holds no units
		}
		i, asked := r.index[t.ItemID]
		if !asked || i >= covered {
			return nil
		}
		g := &groups[i]
		g.Orders = append(g.Orders, inventory.Holding{
			Buyer: t.UserID, IdempotencyKey: t.IdempotencyKey, OrderID: t.ID, Quantity: t.Quantity, Counts: true,
		})
		g.Sequence = max(g.Sequence, t.Sequence)
		for kept++; kept > keep && covered > 1; {
			covered--
			kept -= len(groups[covered].Orders)
			groups[covered] = inventory.Queued{}
		}
		return nil
	})
	if r.err != nil {
		return
	}
	r.found = make(map[string]inventory.Queued, covered)
	for i, item := range r.items[:covered] {
		r.found[item] = groups[i]
	}
}
