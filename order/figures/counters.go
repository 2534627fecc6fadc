// Package figures shows operators what a deployment does at present: rates, latencies, queues,
// locks, stock, and the share of each process, as one event per second.
//
// Every process counts (Counters). While a client watches, each process publishes its counters to
// Redis once per second, and the process that is being watched adds them up (Figures). While
// no client watches, a process sends nothing.
package figures

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/bucket"
)

// reportedItems bounds the items in one process's report: the busiest.
const reportedItems = 200

// The statuses of answers to accepted purchases.
const (
	committedAnswer = iota // 201
	queuedAnswer           // 202
	answerKinds
)

// statusOf are the statuses in events.
var statusOf = [answerKinds]string{"201", "202"}

// Counters count what this process does. They only rise. All methods are safe for concurrent
// use, and cheap enough for every purchase.
type Counters struct {
	accepted, committed, handovers atomic.Int64
	refused                        map[string]*atomic.Int64 // by code; not changed after NewCounters
	answers                        [answerKinds]histogram

	// counting says that accepted orders are counted by item, which is only necessary while
	// the figures are published.
	counting atomic.Bool
	mu       sync.Mutex
	items    map[string]int64
}

// otherCode counts refusals with a code that NewCounters was not given.
const otherCode = "other"

// NewCounters returns counters of refusals with these codes.
func NewCounters(codes []string) *Counters {
	c := &Counters{refused: make(map[string]*atomic.Int64, len(codes)+1)}
	for _, code := range append(codes, otherCode) {
		c.refused[code] = new(atomic.Int64)
	}
	return c
}

// Accepted counts orders of an item that the purchase script has accepted.
func (c *Counters) Accepted(item string, orders int) {
	item = bucket.Item(item)
	c.accepted.Add(int64(orders))
	if !c.counting.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.items != nil {
		c.items[item] += int64(orders)
	}
}

// Committed counts orders written to the database, confirmed or rejected.
func (c *Counters) Committed(orders int) { c.committed.Add(int64(orders)) }

// HandedOver counts a lock that was handed to a waiting process.
func (c *Counters) HandedOver() { c.handovers.Add(1) }

// Answered counts an answer to a purchase: 201 or 202. Other statuses are ignored.
func (c *Counters) Answered(status int, took time.Duration) {
	switch status {
	case 201:
		c.answers[committedAnswer].observe(took)
	case 202:
		c.answers[queuedAnswer].observe(took)
	}
}

// Refused counts a purchase that was refused with this code.
func (c *Counters) Refused(code string) {
	n := c.refused[code]
	if n == nil {
		n = c.refused[otherCode]
	}
	n.Add(1)
}

// countItems begins or ends counting by item.
func (c *Counters) countItems(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.items = nil
	if on {
		c.items = make(map[string]int64)
	}
	c.counting.Store(on)
}

// takeItems returns the orders by item since the last call, those of the busiest items. cut
// says that there were more.
func (c *Counters) takeItems() (busiest map[string]int64, cut bool) {
	c.mu.Lock()
	all := c.items
	if all != nil {
		c.items = make(map[string]int64, len(all))
	}
	c.mu.Unlock()
	return cutItems(all)
}

// cutItems leaves the busiest items. cut says that there were more.
func cutItems(all map[string]int64) (busiest map[string]int64, cut bool) {
	if len(all) <= reportedItems {
		return all, false
	}
	ids := make([]string, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b)) })
	for _, id := range ids[reportedItems:] {
		delete(all, id)
	}
	return all, true
}
