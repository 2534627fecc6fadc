package catalog

import (
	"context"
	"fmt"
	"time"

	"flashsale/internal/pause"
)

// Created tells every process that an item may have been created: that it is to
// be searched for although it was searched for in vain before. It is to be called
// after the commit, also when its outcome is not known. While Redis is away the
// message waits in this process; should it die with it, the others find out
// themselves, when what they remember is over.
func (c *Catalog) Created(ctx context.Context, id string) {
	c.forget(id, 1)
	c.filter.add(creation{id: id})
	c.tell(ctx, news{id: id, version: 1, created: true})
}

// Changed makes every process forget an item as it was before the version. It is
// to be called after the commit; when its outcome is not known, with the version
// that the change was to make. While Redis is away it is as with Created.
func (c *Catalog) Changed(ctx context.Context, id string, version int64) {
	c.forget(id, version)
	c.tell(ctx, news{id: id, version: version})
}

// Outdated makes this process read an item again before it is shown or bought by, if what it
// remembers is older than the version.
func (c *Catalog) Outdated(id string, version int64) { c.forget(id, version) }

// news is what the other processes are to be told.
type news struct {
	id      string
	version int64
	created bool
}

const (
	// tellTimeout bounds one try to tell them.
	tellTimeout = time.Second
	// maxUntold bounds what waits to be told.
	maxUntold = 10_000
)

// tell tells the other processes, or leaves that to Run. It is done also for a
// caller that has left.
func (c *Catalog) tell(ctx context.Context, n news) {
	if c.far == nil {
		return
	}
	err := c.tryTell(context.WithoutCancel(ctx), n)
	if err == nil {
		return
	}
	c.cfg.OnError(err)
	select {
	case c.untold <- n:
	default:
		c.cfg.OnError(fmt.Errorf("catalog: item %s: change not announced, too many announcements wait for Redis; other processes reload it when their copy expires", n.id))
	}
}

func (c *Catalog) tryTell(ctx context.Context, n news) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.tellLimit)
	defer cancel()
	// First the entry that says it is none, then the count: who learns of the id
	// asks Redis next.
	if err := c.far.invalidate(ctx, n.id, n.version); err != nil || !n.created {
		return err
	}
	_, err := c.far.announce(ctx, n.id)
	return err
}

// keepTelling tells what could not be told at once, until ctx ends.
func (c *Catalog) keepTelling(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-c.untold:
			for c.tryTell(ctx, n) != nil {
				if !pause.For(ctx, retryPause) {
					return
				}
			}
		}
	}
}

// forget makes this process load an item again before it is shown or bought again,
// if it is older than the version, and the list of items too. What is remembered
// as no item is searched for again. Looks under way are not remembered, for they may
// have read before the change.
func (c *Catalog) forget(id string, version int64) {
	c.forgetList() // before the item, which a list that is being taken over might bring back
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown.Invalidate(id)
	r, ok := c.known.GetIfPresent(id)
	if ok && r.view.Load().Item.Version >= version {
		return // this process has made the change, or has seen it already
	}
	for k := toShow; k <= toBuy; k++ {
		if f := c.flights[flightKey{id, k}]; f != nil {
			f.void = true
			delete(c.flights, f.key)
		}
	}
	if !ok {
		return
	}
	c.counts.invalid.Add(1)
	r.stock.voids.Add(1)
	r.stock.asOf.Store(0)
	r.swap(func(v *View) bool {
		v.changed, v.least = true, max(v.least, version)
		return true
	})
}
