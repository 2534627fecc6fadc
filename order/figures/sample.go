package figures

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"flashsale/catalog"
	"flashsale/internal/bucket"
)

// roundLimit bounds what one event reads. It is below the interval, so that an event is late
// rather than missing while Redis is slow.
const roundLimit = 800 * time.Millisecond

// work publishes and shows the figures once per interval, until no client watches or ctx ends.
func (f *Figures) work(ctx context.Context) {
	f.cfg.Counters.countItems(true)
	defer f.cfg.Counters.countItems(false)
	defer f.withdraw(ctx)
	f.unsent = nil
	tick := time.NewTicker(f.cfg.Every)
	defer tick.Stop()
	var d *deployment  // nil: without watchers
	seen := time.Now() // when a watcher was last known
	for {
		now := time.Now()
		show := f.Watchers() > 0
		switch {
		case !show:
			d = nil
		case d == nil:
			d = newDeployment(now)
		}
		watched, err := f.round(ctx, d, now)
		if show || watched {
			seen = now
		} else if err == nil || now.Sub(seen) > keysLife {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// round publishes a report and, with a deployment, sends an event. It reports whether any
// process has watchers. The error is that of Redis; the event is then sent with what this
// process knows.
func (f *Figures) round(ctx context.Context, d *deployment, now time.Time) (watched bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.roundLimit)
	defer cancel()
	r := f.cfg.Counters.report(&f.cfg.Process, now.Sub(f.started))
	sent := r.withUnsent(f.unsent)
	reports, redisNow, watched, err := f.exchange(ctx, sent, d != nil)
	if f.unsent = nil; err != nil {
		f.unsent = sent
	}
	if d == nil {
		f.report(ctx, err)
		return watched, err
	}
	skew := time.Duration(0) // not known while Redis does not answer
	if err == nil {
		skew = redisNow.Sub(now)
		d.absent()
	}
	for i := range reports {
		if s := &reports[i]; s.id != f.id {
			d.observe(s.id, &s.report, s.at, now, redisNow.Sub(s.at))
		}
	}
	d.observe(f.id, r, now, now, 0)
	d.rank(now)
	e := &event{
		At: timestamp(now.Add(skew)), Since: timestamp(d.began.Add(skew)),
		WindowSeconds: f.cfg.Every.Seconds(), Complete: err == nil && now.Sub(d.began) >= f.cfg.Settle,
	}
	e.describe(d, now, skew)
	f.report(ctx, errors.Join(err, f.show(ctx, e, d)))
	return watched, err
}

// report takes the errors of a round, joined. It passes on those of the first of several
// consecutive rounds with errors.
func (f *Figures) report(ctx context.Context, err error) {
	if err != nil && !f.failing && !errors.Is(ctx.Err(), context.Canceled) {
		f.cfg.OnError(err)
	}
	f.failing = err != nil
}

// show adds what the sources read, and passes the event to the watchers. The event has all that
// could be read; the error is that of the rest.
func (f *Figures) show(ctx context.Context, e *event, d *deployment) error {
	src := &f.cfg.Sources
	var errs []error
	if src.Queues != nil {
		var err error
		if e.Queue, e.Expiries, err = src.Queues(ctx); err != nil {
			e.Queue, e.Expiries = nil, nil
			errs = append(errs, fmt.Errorf("read queues for the figures: %w", err))
		}
	}
	if src.Workers != nil {
		e.Workers = src.Workers()
	}
	busiest := d.busiest(MaxItems)
	f.mu.Lock()
	wanted := f.selectedLocked(busiest)
	f.mu.Unlock()
	items, err := f.items(ctx, wanted, d)
	errs = append(errs, err)
	for _, v := range f.allViews() {
		ids := v.items
		if len(ids) == 0 {
			ids = busiest
		}
		e.Items = make([]item, 0, len(ids))
		for _, id := range ids {
			if i, ok := items[id]; ok { // not if the selection is new
				e.Items = append(e.Items, i)
			}
		}
		frame, err := e.encode()
		if err != nil {
			errs = append(errs, fmt.Errorf("encode figures: %w", err))
			break
		}
		f.pass(v, frame)
	}
	return errors.Join(errs...)
}

// allViews returns the views of this moment.
func (f *Figures) allViews() []*view {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.views))
}

// pass passes an event to the watchers of a view.
func (f *Figures) pass(v *view, frame []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v.frame = frame
	for w := range v.watchers {
		w.frame = frame
		w.wake()
	}
}

// items reads items: one query for the stock of all, and one for the lock of each. The error
// joins the first of each kind, because the items usually fail for the same reason.
func (f *Figures) items(ctx context.Context, ids []string, d *deployment) (map[string]item, error) {
	src := &f.cfg.Sources
	all := make(map[string]item, len(ids))
	if len(ids) == 0 || src.Item == nil {
		return all, nil
	}
	var errItem, errLock error
	known := make([]catalog.Item, len(ids))
	buckets := make([]string, 0, len(ids))
	for i, id := range ids {
		var err error
		known[i], err = src.Item(ctx, id)
		if err != nil && errItem == nil && !errors.Is(err, catalog.ErrItemNotFound) { // it may have been deleted
			errItem = fmt.Errorf("read item %s for the figures: %w", id, err)
		}
		buckets = bucket.AppendIDs(buckets, id, known[i].Buckets)
	}
	left, errLeft := src.Left(ctx, buckets)
	if errLeft != nil {
		errLeft = fmt.Errorf("read stock for the figures: %w", errLeft)
	}
	for i, id := range ids {
		one := item{ID: id, Accepted: d.rateOf(id)}
		units := int64(-1)
		if errLeft == nil {
			n := max(known[i].Buckets, 1)
			units, left = bucket.Sum(left[:n]), left[n:]
		}
		if known[i].ID != "" {
			one.describe(&known[i], units, src.Now(id))
		}
		l, err := src.Lock(ctx, id)
		switch {
		case err == nil:
			one.Lock = l
		case errLock == nil:
			errLock = fmt.Errorf("read the lock of item %s for the figures: %w", id, err)
		}
		all[id] = one
	}
	return all, errors.Join(errLeft, errItem, errLock)
}

// describe sets what the catalogue knows about an item, and its stock; left is -1 if it is not known.
func (one *item) describe(known *catalog.Item, left int64, now time.Time) {
	one.Name, one.StockTotal = &known.Name, &known.StockTotal
	known.StockLeft = left
	if left >= 0 {
		one.StockLeft = &left
	}
	// Without the stock, sold out is not known.
	if state := string(known.State(now)); known.StockLeft >= 0 || state != string(catalog.StateSoldOut) {
		one.State = &state
	}
}

// withdraw removes this process's report, so that the others do not wait for the next one. The
// end of ctx does not cancel it.
func (f *Figures) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.roundLimit)
	defer cancel()
	// If it fails, the report expires.
	_, _, _, err := f.exchange(ctx, nil, false)
	f.report(ctx, err)
}
