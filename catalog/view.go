package catalog

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// View is an item for display. It is immutable; a new one replaces it.
type View struct {
	Item Item
	// LoadedAt is when the database was queried for the item. The stock has its own age.
	LoadedAt time.Time
	// Stale says that the item should have been reloaded and could not be.
	Stale bool
	Memo

	strictUntil  time.Time // until then it is good for purchases
	renewAt      time.Time // from then on a purchase renews it in the background
	freshUntil   time.Time // until then it is shown without a reload
	subscription uint64    // the count of subscriptions when its load began
	changed      bool      // it is known to be old, and shown only when nothing else is available
	least        int64     // the least version of the item; older entries are not taken from Redis
}

// Memo stores what a reader has made of a view, such as its encoding, for the next reader.
type Memo struct{ made atomic.Pointer[any] }

// Made is the value that was kept last; nil if there is none.
func (m *Memo) Made() any {
	if p := m.made.Load(); p != nil {
		return *p
	}
	return nil
}

// Keep stores what was made of the view.
func (m *Memo) Keep(made any) { m.made.Store(&made) }

// jitterShare is the largest part by which jitter shortens a time.
const jitterShare = 0.2

// spread shortens a time by up to a fifth at random, so that items that were loaded
// together do not expire together.
func (c *Catalog) spread(d time.Duration) time.Duration {
	if !c.on(Avalanche) {
		return d
	}
	return d - time.Duration(jitterShare*rand.Float64()*float64(d))
}

func (c *Catalog) newView(item Item, loadedAt time.Time) *View {
	v := &View{
		Item: item, LoadedAt: loadedAt, subscription: c.subscriptions.Load(), least: item.Version,
		freshUntil: loadedAt.Add(c.spread(c.cfg.Fresh)),
	}
	c.boughtFrom(v, loadedAt)
	return v
}

// boughtFrom makes a new view good for purchases for one life from that time on.
func (c *Catalog) boughtFrom(v *View, at time.Time) {
	v.strictUntil = at.Add(c.cfg.Life)
	v.renewAt = at.Add(c.cfg.Life/2 + c.spread(c.cfg.Life/4))
}

// fresh reports whether the view may be shown without a reload.
func (c *Catalog) fresh(v *View, now time.Time) bool {
	return !v.changed && now.Before(v.freshUntil) && v.subscription == c.subscriptions.Load()
}

// good reports whether the view in memory answers a reader without a load.
func (c *Catalog) good(v *View, now time.Time, k kind) bool {
	switch k {
	case toShow:
		return c.fresh(v, now)
	case toBuy:
		return !v.changed && now.Before(v.strictUntil)
	default:
		return false
	}
}

// with returns a copy of the view that fn has changed.
func (v *View) with(fn func(*View)) *View {
	w := &View{
		Item: v.Item, LoadedAt: v.LoadedAt, Stale: v.Stale,
		strictUntil: v.strictUntil, renewAt: v.renewAt, freshUntil: v.freshUntil, subscription: v.subscription, changed: v.changed, least: v.least,
	}
	fn(w)
	return w
}

// record holds an item's present view in memory.
type record struct {
	id   string
	view atomic.Pointer[View]
	// renewing says that a background reload is under way.
	renewing atomic.Bool
	// retryAt is when the next reload may begin after one that failed.
	retryAt atomic.Int64 // Unix nanoseconds
	stock   liveStock
}

// swap replaces the view by a copy that fn has changed; fn returns false to keep the view.
func (r *record) swap(fn func(*View) bool) {
	for {
		v := r.view.Load()
		keep := false
		w := v.with(func(w *View) { keep = fn(w) })
		if !keep || r.view.CompareAndSwap(v, w) {
			return
		}
	}
}
