package catalog

import (
	"context"
	"time"
)

// Created tells every process that an item may have been created: that it is to
// be looked for although it was looked for in vain before. It is to be called
// after the commit, also when its outcome is not known. What cannot be told the
// others find out themselves, when what they remember is over.
func (c *Catalog) Created(ctx context.Context, id string) {
	c.forget(id, 1)
	c.filter.add(creation{id: id})
	if c.far == nil {
		return
	}
	ctx, cancel := c.afterCommit(ctx)
	defer cancel()
	// First the entry that says it is none, then the count: who learns of the id
	// asks Redis next.
	err := c.far.invalidate(ctx, id, 1)
	if err == nil {
		_, err = c.far.announce(ctx, id)
	}
	if err != nil {
		c.cfg.OnError(err)
	}
}

// Changed makes every process forget an item as it was before the version. It is
// to be called after the commit; when its outcome is not known, with the version
// that the change was to make.
func (c *Catalog) Changed(ctx context.Context, id string, version int64) {
	c.forget(id, version)
	if c.far == nil {
		return
	}
	ctx, cancel := c.afterCommit(ctx)
	defer cancel()
	if err := c.far.invalidate(ctx, id, version); err != nil {
		c.cfg.OnError(err)
	}
}

// afterCommit is the context of telling others of what is committed, which is
// done also for a caller that has left.
func (c *Catalog) afterCommit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}

// forget makes this process load an item anew before it is shown or bought again,
// if it is older than the version, and the list of items too. What is remembered
// as no item is looked for again. Looks under way are not remembered, for they may
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
