package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/internal/faultpoint"
	"flashsale/lock"
)

// kind is the purpose of a load, which decides how old the item may be.
type kind int

const (
	toShow  kind = iota // for display, not in memory: an entry in Redis of any age is good
	toRenew             // the old item is shown meanwhile: Redis may have a newer one
	toBuy               // for a purchase
)

// oldest is the greatest age at which an entry is taken from Redis. It is less than the
// age at which the item would be renewed: otherwise each process would take an entry from
// Redis and load the item itself shortly afterwards.
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

// flight is one load of an item, for all readers that want it meanwhile.
type flight struct {
	key  flightKey
	done chan struct{}
	// subscription is the count of subscriptions when the load began. If there was another
	// one since, the result may lack a change.
	subscription uint64
	view         *View
	err          error
	// behind is the record that is renewed in the background; nil if readers wait.
	behind *record
	// The fields below are guarded by the catalogue's mutex.
	least int64 // the version that the item has at least
	void  bool  // the item has changed since the load began
}

// fetch loads an item that is not available from memory, once for all concurrent readers.
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

// refused refuses unknown ids without a query to the source.
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

// join returns the load under way, or begins one.
func (c *Catalog) join(id string, k kind, behind *record) *flight {
	key := flightKey{id, k}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.flights[key]
	if f != nil {
		if behind != nil {
			behind.renewing.Store(false) // this load is under way for other readers
		}
		return f
	}
	f = &flight{key: key, done: make(chan struct{}), subscription: c.subscriptions.Load(), behind: behind}
	if _, none := c.unknown.GetIfPresent(id); none && k != toRenew && c.on(Negatives) {
		f.err = ErrItemNotFound // found since this reader looked
		close(f.done)
		return f
	}
	if r, ok := c.known.GetIfPresent(id); ok {
		v := r.view.Load()
		if behind == nil && c.good(v, time.Now(), k) {
			f.view = v // another load has ended since this reader looked into memory
			close(f.done)
			return f
		}
		// After a failover, Redis may return an entry that is known to be old.
		f.least = v.least
	}
	if !c.beginLocked() {
		f.err = errClosed
		close(f.done)
		return f
	}
	c.flights[key] = f
	go c.runFlight(f)
	return f
}

func (c *Catalog) runFlight(f *flight) {
	defer c.work.Done()
	ctx, cancel := context.WithTimeout(c.life, c.cfg.Wait+c.cfg.LoadTimeout)
	defer cancel()
	a, err := c.lookUp(ctx, f.key, f.least)
	c.finishFlight(f, a, err)
}

// finishFlight caches the result of a load, unless the item has changed meanwhile, and wakes the
// waiting readers.
func (c *Catalog) finishFlight(f *flight, a answer, err error) {
	c.mu.Lock()
	if c.flights[f.key] == f {
		delete(c.flights, f.key)
	}
	switch {
	case err != nil:
		f.err = err
	case !a.exists:
		f.err = ErrItemNotFound
		if !f.void && f.subscription == c.subscriptions.Load() {
			c.rememberNone(f.key.id)
		}
	default:
		f.view = c.newView(a.item, a.loadedAt)
		f.view.subscription = f.subscription
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

// renewalFailed keeps the old item, and marks it as stale once it has expired.
func (c *Catalog) renewalFailed(f *flight, err error) {
	if isBusy(err) {
		// Another process is still loading the item: nothing has failed yet.
		f.behind.retryAt.Store(time.Now().Add(retryPause).UnixNano())
		return
	}
	if v := f.behind.view.Load(); v.changed || !time.Now().Before(v.freshUntil) {
		c.outdated(f.behind)
		return
	}
	f.behind.retryAt.Store(time.Now().Add(retryPause).UnixNano())
}

// remember caches a view, unless a newer one is cached, and returns the cached one. The
// caller holds the mutex.
func (c *Catalog) remember(v *View) *View {
	id := v.Item.ID
	r, ok := c.known.GetIfPresent(id)
	if !ok {
		r = &record{id: id}
		r.stock.left.Store(-1)
	} else if old := r.view.Load(); old.Item.Version > v.Item.Version && !v.LoadedAt.After(old.LoadedAt) && !old.changed {
		return old // another load began later, was quicker, and has a newer version
	}
	// The database only counts committed orders, so the live stock is always newer.
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

// answer is the result of a load.
type answer struct {
	item     Item
	exists   bool
	loadedAt time.Time // when the source was queried
}

// errBusy says that another process is loading the item, which takes longer than this one
// waits.
var errBusy = errors.New("catalog: another process is loading the item")

func isBusy(err error) bool { return errors.Is(err, errBusy) }

// lookUp reads an item that memory lacks, or has too old: from Redis, else from the source.
// One process queries the source and stores the result in Redis for the others.
func (c *Catalog) lookUp(ctx context.Context, key flightKey, least int64) (answer, error) {
	if a, ok := c.readRemote(ctx, key, least); ok {
		return a, nil
	}
	if c.cfg.Locks == nil || c.remote.isDown() {
		return c.query(ctx, key.id)
	}
	wait := c.cfg.Wait
	if key.kind == toBuy {
		// After a longer wait, the holder's result would be too old for a purchase. Buyers
		// on several processes would wait for one slow query after the other.
		wait = min(wait, max(c.oldest(toBuy), time.Millisecond))
	}
	l, err := c.cfg.Locks.Acquire(ctx, c.remote.keys.lock(key.id), lock.WithWaitLimit(wait))
	switch {
	case err == nil:
		defer c.unlock(ctx, l, key.id)
		if a, ok := c.readRemote(ctx, key, least); ok {
			return a, nil
		}
		faultpoint.Reach("catalog.loading")
	case errors.Is(err, lock.ErrWaitTimeout) && key.kind == toRenew:
		return answer{}, errBusy // no reader waits for a renewal
	case ctx.Err() != nil:
		return answer{}, context.Cause(ctx)
	}
	return c.query(ctx, key.id)
}

// unlock releases a lock in the background, so that the item's readers need not wait.
func (c *Catalog) unlock(ctx context.Context, l *lock.Lock, id string) {
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

// readRemote reads Redis; ok says that the entry is good enough.
func (c *Catalog) readRemote(ctx context.Context, key flightKey, least int64) (a answer, ok bool) {
	if c.remote.isDown() {
		return answer{}, false
	}
	e, found, err := c.remote.read(ctx, key.id)
	switch {
	case err != nil:
		c.cfg.OnError(err)
		return answer{}, false
	case !found:
		return answer{}, false
	case e.version == 0:
		// A negative entry for an item that is known to exist means that Redis has lost it.
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

// query queries the source, together with other readers, and stores the result in Redis.
func (c *Catalog) query(ctx context.Context, id string) (answer, error) {
	a, err := c.loads.load(ctx, id)
	if err != nil {
		return answer{}, err
	}
	c.storeRemote(ctx, id, a)
	return a, nil
}

// storeRemote stores a result of the source in Redis, for the other processes.
func (c *Catalog) storeRemote(ctx context.Context, id string, a answer) {
	if c.remote.isDown() || !a.exists && !c.on(Negatives) {
		return
	}
	life := c.spread(c.cfg.Keep)
	if !a.exists {
		life = c.spread(c.cfg.Negative)
	}
	if err := c.remote.write(ctx, id, a, life); err != nil {
		c.cfg.OnError(err)
	}
}

// querySource reads items by their ids.
func (c *Catalog) querySource(ids []string) ([]Item, error) {
	ctx, cancel := context.WithTimeout(c.life, c.cfg.LoadTimeout)
	defer cancel()
	c.counts.queries.Add(1)
	c.counts.database.Add(int64(len(ids)))
	return c.source.ItemsByID(ctx, ids)
}

// fetchAlone loads an item as a cache does that has no defence against a breakdown: each
// reader sends its own query. Only the number of concurrent queries is bounded.
func (c *Catalog) fetchAlone(ctx context.Context, id string, k kind) (*View, error) {
	if a, ok := c.readRemote(ctx, flightKey{id, min(k, toRenew)}, 0); ok && (!a.exists || time.Since(a.loadedAt) < c.cfg.Fresh) {
		return c.settle(id, a)
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	askedAt := time.Now()
	items, err := c.querySource([]string{id})
	if err != nil {
		return nil, err
	}
	a := answer{loadedAt: askedAt}
	if len(items) > 0 {
		a.item, a.exists = items[0], true
	}
	c.storeRemote(ctx, id, a)
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
