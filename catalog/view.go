package catalog

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// View is an item as it is shown. It never changes; another takes its place.
type View struct {
	Item Item
	// LoadedAt is when the database was asked for the item. The stock is of its own age.
	LoadedAt time.Time
	// Stale says that the item should have been loaded again and could not be.
	Stale bool
	Memo

	strictUntil time.Time // until then it is good to buy by
	renewAt     time.Time // from then on it is renewed ahead while it is bought by
	freshUntil  time.Time // until then it is shown without another look
	heard       uint64    // the count of subscriptions when its look began
	changed     bool      // it is known to be old, and shown only when nothing else is available
	least       int64     // the version that it is known to have had; what is older is not taken from Redis
}

// Memo is a place where a reader keeps what it has made of a view, such as its
// encoding, for the next reader.
type Memo struct{ made atomic.Pointer[any] }

// Made is what was kept last; nil if nothing was.
func (m *Memo) Made() any {
	if p := m.made.Load(); p != nil {
		return *p
	}
	return nil
}

// Keep keeps what was made of the view.
func (m *Memo) Keep(made any) { m.made.Store(&made) }

// jitterShare is how much of a time jitter may take away.
const jitterShare = 0.2

// spread shortens a time by up to a fifth at random, so that what was loaded
// together does not expire together.
func (c *Catalog) spread(d time.Duration) time.Duration {
	if !c.on(Avalanche) {
		return d
	}
	return d - time.Duration(jitterShare*rand.Float64()*float64(d))
}

func (c *Catalog) newView(item Item, loadedAt time.Time) *View {
	return &View{
		Item: item, LoadedAt: loadedAt, heard: c.heard.Load(), least: item.Version,
		strictUntil: loadedAt.Add(c.cfg.Life),
		renewAt:     loadedAt.Add(c.cfg.Life/2 + c.spread(c.cfg.Life/4)),
		freshUntil:  loadedAt.Add(c.spread(c.cfg.Fresh)),
	}
}

// fresh reports whether the view may be shown without another look.
func (c *Catalog) fresh(v *View, now time.Time) bool {
	return !v.changed && now.Before(v.freshUntil) && v.heard == c.heard.Load()
}

// with returns the view after fn has changed a copy.
func (v *View) with(fn func(*View)) *View {
	w := &View{
		Item: v.Item, LoadedAt: v.LoadedAt, Stale: v.Stale,
		strictUntil: v.strictUntil, renewAt: v.renewAt, freshUntil: v.freshUntil, heard: v.heard, changed: v.changed, least: v.least,
	}
	fn(w)
	return w
}

// record is the place of an item's view in memory.
type record struct {
	id   string
	view atomic.Pointer[View]
	// renewing says that a look behind the readers' backs is under way.
	renewing atomic.Bool
	// retryAt is when the next one may begin after one that failed.
	retryAt atomic.Int64 // Unix nanoseconds
	stock   liveStock
}

// swap puts a changed copy of the view in its place; fn returns false to leave it.
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
