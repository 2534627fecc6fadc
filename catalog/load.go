package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/internal/faultpoint"
	"flashsale/lock"
)

// kind says what an item is loaded for, and so how old it may be.
type kind int

const (
	toShow  kind = iota // nobody has it: whatever Redis remembers will do
	toRenew             // it is shown meanwhile: Redis may have a younger one
	toBuy               // somebody buys by it
)

// oldest is the greatest age of what is taken from Redis. It is less than the
// time after which the item would be renewed, or each process would take it over
// just before and load it itself just after.
func (c *Catalog) oldest(k kind) time.Duration {
	switch k {
	case toBuy:
		return c.cfg.Life / 2
	case toRenew:
		return c.cfg.Fresh / 2
	default:
		return c.cfg.Keep
	}
}

type flightKey struct {
	id   string
	kind kind
}

// flight is one look for an item on behalf of all who want it meanwhile.
type flight struct {
	key  flightKey
	done chan struct{}
	// heard is the count of subscriptions as the look began: what was said before
	// the next one may be missing from what it finds.
	heard uint64
	view  *View
	err   error
	// behind is whose renewal this is; nil where readers wait for it.
	behind *record
	// The fields below are guarded by the catalogue's mutex.
	least int64 // the version that the item has at least
	void  bool  // the item has changed since the look began
}

// fetch loads an item that is not available from memory, once for all who ask.
func (c *Catalog) fetch(ctx context.Context, id string, k kind) (*View, error) {
	if err := c.refused(ctx, id); err != nil {
		return nil, err
	}
	if !c.on(Breakdown) {
		return c.fetchAlone(ctx, id, k)
	}
	f := c.join(id, k, nil)
	timer := time.NewTimer(c.cfg.Wait)
	defer timer.Stop()
	select {
	case <-f.done:
		return f.view, f.err
	case <-timer.C:
		return nil, fmt.Errorf("catalog: item %s: not loaded within %v: %w", id, c.cfg.Wait, context.DeadlineExceeded)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// refused refuses ids that are none without a look at the source.
func (c *Catalog) refused(ctx context.Context, id string) error {
	if c.on(Negatives) {
		if _, known := c.unknown.GetIfPresent(id); known {
			c.counts.negative.Add(1)
			return ErrItemNotFound
		}
	}
	if c.on(Bloom) && c.refuses(ctx, id) {
		c.counts.refused.Add(1)
		return ErrItemNotFound
	}
	return nil
}

// join returns the look under way, or begins one.
func (c *Catalog) join(id string, k kind, behind *record) *flight {
	key := flightKey{id, k}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.flights[key]
	if f != nil {
		if behind != nil {
			behind.renewing.Store(false) // others wait for the same already
		}
		return f
	}
	f = &flight{key: key, done: make(chan struct{}), heard: c.heard.Load(), behind: behind}
	if r, ok := c.known.GetIfPresent(id); ok {
		// Redis might give back what is known to be old, after a failover.
		f.least = r.view.Load().least
	}
	if !c.beginLocked() {
		f.err = errClosed
		close(f.done)
		return f
	}
	c.flights[key] = f
	go c.fly(f)
	return f
}

func (c *Catalog) fly(f *flight) {
	defer c.work.Done()
	ctx, cancel := context.WithTimeout(c.life, c.cfg.Wait+c.cfg.LoadTimeout)
	defer cancel()
	a, err := c.look(ctx, f.key, f.least)
	c.land(f, a, err)
}

// land remembers what a look has found, unless the item has changed meanwhile,
// and tells those who wait.
func (c *Catalog) land(f *flight, a answer, err error) {
	c.mu.Lock()
	if c.flights[f.key] == f {
		delete(c.flights, f.key)
	}
	switch {
	case err != nil:
		f.err = err
	case !a.exists:
		f.err = ErrItemNotFound
		if !f.void && f.heard == c.heard.Load() {
			c.rememberNone(f.key.id)
		}
	default:
		f.view = c.newView(a.item, a.loadedAt)
		f.view.heard = f.heard
		if !f.void {
			f.view = c.remember(f.view)
		}
	}
	c.mu.Unlock()
	if f.behind != nil {
		if err != nil {
			c.cfg.OnError(fmt.Errorf("load item %s: %w", f.key.id, err))
			c.renewalFailed(f, err)
		}
		f.behind.renewing.Store(false)
	}
	close(f.done)
}

// renewalFailed lets the item be shown as it is, and says so once its time is over.
func (c *Catalog) renewalFailed(f *flight, err error) {
	if isBusy(err) {
		// Another process is loading it and takes its time: nothing has failed yet.
		f.behind.retryAt.Store(time.Now().Add(retryPause).UnixNano())
		return
	}
	if v := f.behind.view.Load(); v.changed || !time.Now().Before(v.freshUntil) {
		c.outdated(f.behind)
		return
	}
	f.behind.retryAt.Store(time.Now().Add(retryPause).UnixNano())
}

// remember puts a view in memory, and returns the one that is there then. The
// caller holds the mutex.
func (c *Catalog) remember(v *View) *View {
	id := v.Item.ID
	r, ok := c.known.GetIfPresent(id)
	if !ok {
		r = &record{id: id}
		r.stock.left.Store(-1)
	} else if old := r.view.Load(); old.Item.Version > v.Item.Version && !v.LoadedAt.After(old.LoadedAt) && !old.changed {
		return old // another look began later, was quicker, and has seen more
	}
	// The database counts what is committed; the live number is younger, whatever its age.
	if left := r.stock.left.Load(); left >= 0 {
		v.Item.StockLeft = left
	}
	r.view.Store(v)
	r.retryAt.Store(0)
	c.known.Set(id, r)
	c.unknown.Invalidate(id)
	return v
}

func (c *Catalog) rememberNone(id string) {
	c.known.Invalidate(id)
	if c.on(Negatives) {
		c.unknown.Set(id, struct{}{})
	}
}

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
