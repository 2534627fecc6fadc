package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/internal/faultpoint"
	"flashsale/lock"
)

// answer is what a look has found.
type answer struct {
	item     Item
	exists   bool
	loadedAt time.Time // when the source was asked for it
}

// errBusy says that another process is loading the item, and that it took longer
// than this one waits.
var errBusy = errors.New("catalog: another process is loading the item")

func isBusy(err error) bool { return errors.Is(err, errBusy) }

// look finds an item that memory does not have, or has too old: in Redis, else in
// the source. Of all processes one asks the source, and the others find in Redis
// what it has put there.
func (c *Catalog) look(ctx context.Context, key flightKey, least int64) (answer, error) {
	if a, ok := c.lookFar(ctx, key, least); ok {
		return a, nil
	}
	if c.cfg.Locks == nil || c.far.isAway() {
		return c.ask(ctx, key.id)
	}
	wait := c.cfg.Wait
	if key.kind == toBuy {
		// What the holder has asked for would be too old to buy by after that. Buyers
		// on several processes would wait for one slow question after the other.
		wait = min(wait, max(c.oldest(toBuy), time.Millisecond))
	}
	l, err := c.cfg.Locks.Acquire(ctx, c.far.keys.lock(key.id), lock.WithWaitLimit(wait))
	switch {
	case err == nil:
		defer c.letGo(ctx, l, key.id)
		if a, ok := c.lookFar(ctx, key, least); ok {
			return a, nil
		}
		faultpoint.Reach("catalog.loading")
	case errors.Is(err, lock.ErrWaitTimeout) && key.kind == toRenew:
		return answer{}, errBusy // nobody waits for it
	case ctx.Err() != nil:
		return answer{}, context.Cause(ctx)
	}
	return c.ask(ctx, key.id)
}

// letGo releases a lock in the background: the item is there, and its readers need
// not wait for that.
func (c *Catalog) letGo(ctx context.Context, l *lock.Lock, id string) {
	if !c.begin() {
		return // the locks are released with their manager
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		defer c.work.Done()
		if err := l.Release(ctx); err != nil {
			c.cfg.OnError(fmt.Errorf("let go of the loading of item %s: %w", id, err))
		}
	}()
}

// lookFar looks into Redis; ok says that it knows the item well enough.
func (c *Catalog) lookFar(ctx context.Context, key flightKey, least int64) (a answer, ok bool) {
	if c.far.isAway() {
		return answer{}, false
	}
	e, found, err := c.far.read(ctx, key.id)
	switch {
	case err != nil:
		c.cfg.OnError(err)
		return answer{}, false
	case !found:
		return answer{}, false
	case e.version == 0:
		// What is known to exist is none only to a Redis that has forgotten it.
		ok = least == 0 && c.on(Negatives) && e.age <= c.cfg.Negative
	default:
		ok = e.age <= c.oldest(key.kind) && e.version >= least
	}
	if !ok {
		return answer{}, false
	}
	c.counts.redis.Add(1)
	return answer{item: e.item, exists: e.version > 0, loadedAt: e.askedAt.Add(-e.age)}, true
}

// ask asks the source, together with what others ask at the same time, and
// leaves the answer in Redis.
func (c *Catalog) ask(ctx context.Context, id string) (answer, error) {
	a, err := c.loads.load(ctx, id)
	if err != nil {
		return answer{}, err
	}
	c.leave(ctx, id, a)
	return a, nil
}

// leave leaves what the source has said in Redis, for the others.
func (c *Catalog) leave(ctx context.Context, id string, a answer) {
	if c.far.isAway() || !a.exists && !c.on(Negatives) {
		return
	}
	life := c.spread(c.cfg.Keep)
	if !a.exists {
		life = c.spread(c.cfg.Negative)
	}
	if err := c.far.write(ctx, id, a, life); err != nil {
		c.cfg.OnError(err)
	}
}

// askSource reads items by their ids.
func (c *Catalog) askSource(ids []string) ([]Item, error) {
	ctx, cancel := context.WithTimeout(c.life, c.cfg.LoadTimeout)
	defer cancel()
	c.counts.questions.Add(1)
	c.counts.database.Add(int64(len(ids)))
	return c.source.ItemsByID(ctx, ids)
}

// fetchAlone loads an item as a cache without the defence against a breakdown
// does: each reader for itself, and only so many at a time.
func (c *Catalog) fetchAlone(ctx context.Context, id string, k kind) (*View, error) {
	if a, ok := c.lookFar(ctx, flightKey{id, min(k, toRenew)}, 0); ok && (!a.exists || time.Since(a.loadedAt) < c.cfg.Fresh) {
		return c.settle(id, a)
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	askedAt := time.Now()
	items, err := c.askSource([]string{id})
	if err != nil {
		return nil, err
	}
	a := answer{loadedAt: askedAt}
	if len(items) > 0 {
		a.item, a.exists = items[0], true
	}
	c.leave(ctx, id, a)
	return c.settle(id, a)
}

func (c *Catalog) settle(id string, a answer) (*View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !a.exists {
		c.rememberNone(id)
		return nil, ErrItemNotFound
	}
	return c.remember(c.newView(a.item, a.loadedAt)), nil
}
