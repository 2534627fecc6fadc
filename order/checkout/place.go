package checkout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/faultpoint"
	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/timeouts"
)

// volatileWait is how long a purchase waits for its commit, if Volatile is set, before its
// outcome is unknown.
const volatileWait = 10 * time.Second

// sendMargin is how long a purchase may take before its wait for the commit begins: the
// inventory answers each request within that time.
const sendMargin = 5 * time.Second

// attempt is one purchase in progress: the request, and the ticket for its result.
type attempt struct {
	request inventory.Request
	ticket  ticket
	// waiters has the ticket under the order's id while the request waits for the commit;
	// nil: it does not, and the acceptance ends the wait.
	waiters  *Waiters
	accepted atomic.Bool
	late     atomic.Bool // the wait for the commit has ended: acceptance must wake it

	mu   sync.Mutex
	id   string // of the order; empty until the inventory sends the request
	over bool   // the request waits no longer
}

// named is called by the inventory before it sends the request.
func (a *attempt) named(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.id != "" && a.waiters != nil {
		a.waiters.remove(a.id)
	}
	a.id = id
	if !a.over && a.waiters != nil {
		a.waiters.add(id, &a.ticket)
	}
}

// leave ends the wait.
func (a *attempt) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if a.id != "" && a.waiters != nil {
		a.waiters.remove(a.id)
	}
}

// queued returns the order as it waits in the queue.
func (a *attempt) queued(t *order.Task) order.Order {
	a.mu.Lock()
	defer a.mu.Unlock()
	t.ID = a.id
	return t.Queued()
}

// Place buys. It returns once the order is committed, or is durably queued when the wait
// has ended. Errors: catalog.ErrItemNotFound and those of inventory. After
// inventory.ErrUnavailable or the end of ctx the outcome is unknown; repeat the call with
// the same key.
func (s *Service) Place(ctx context.Context, p order.Purchase) (order.Placed, error) {
	if p.Item.ID != p.ItemID {
		var err error
		if p.Item, err = s.Items.Item(ctx, p.ItemID); err != nil {
			return order.Placed{}, err
		}
	}
	if s.Volatile {
		p.Wait = max(p.Wait, s.volatileWait)
	}
	var placed order.Placed
	var replay string
	var err error
	if p.Item.Buckets > 1 {
		placed, replay, err = s.submitToBucket(ctx, &p)
	} else {
		item := p.Item
		placed, replay, err = s.submit(ctx, &p, &item)
	}
	if err != nil {
		return order.Placed{}, err
	}
	if replay != "" {
		placed, err = s.replay(ctx, p.ItemID, replay, p.Wait)
	}
	switch {
	case err != nil:
		return order.Placed{}, err
	case !placed.Committed && s.Volatile:
		return order.Placed{}, inventory.ErrUnavailable
	case (placed.Order.Status == order.StatusPaid || placed.Order.Status == order.StatusRefunded) && placed.Order.PaidAt.IsZero():
		// It was paid before the notice of its commit arrived, which does not contain the
		// payment.
		placed.Order, err = s.Store.Order(ctx, placed.Order.ID)
		return placed, err
	case placed.Order.Status != order.StatusRejected:
		return placed, nil
	case placed.Order.Reason == order.ReasonDuplicate:
		return s.original(ctx, placed)
	case placed.Order.Reason == order.ReasonFailed:
		return placed, nil // the sale refused nothing; the order says what became of it
	}
	return order.Placed{}, refusalOf(placed.Order.Reason)
}

// original returns the earlier order with the key of an order that was refused: Redis had
// lost the key, the database had not. The request was a repeat, and gets the first order.
func (s *Service) original(ctx context.Context, p order.Placed) (order.Placed, error) {
	first, err := store.OrderByKey(ctx, s.Store, p.Order.UserID, p.Order.ItemID, strings.TrimSuffix(p.Order.IdempotencyKey, " "+p.Order.ID))
	switch {
	case errors.Is(err, order.ErrNotFound):
		return order.Placed{}, inventory.ErrKeyReused
	case err != nil:
		return order.Placed{}, err
	case first.Quantity != p.Order.Quantity:
		return order.Placed{}, inventory.ErrKeyReused
	case first.Status == order.StatusRejected:
		return order.Placed{}, refusalOf(first.Reason)
	}
	return order.Placed{Order: first, Committed: true, Replayed: true}, nil
}

// refusalOf returns the error for the database's reason. The request that waited for the
// order, and every repeat, get the same error as from the purchase script.
func refusalOf(reason string) error {
	switch reason {
	case order.ReasonUserLimit:
		return inventory.ErrUserLimit
	case order.ReasonNoItem:
		return catalog.ErrItemNotFound
	default:
		return inventory.ErrSoldOut
	}
}

// submitToBucket is submit for an item whose stock is divided. It replaces p.ItemID by the
// buyer's bucket, and refills the bucket if it is sold out and others are not. If other buyers have
// taken the units of each refill for timeouts.Refill, the item is sold out for this one: as many
// units as come in are bought at once.
func (s *Service) submitToBucket(ctx context.Context, p *order.Purchase) (order.Placed, string, error) {
	p.ItemID = bucket.Home(p.Item.ID, p.UserID, p.Item.Buckets)
	var firstRefill time.Time // when it ended; zero: none was needed
	for {
		item, err := s.Items.Item(ctx, p.ItemID)
		if err != nil {
			return order.Placed{}, "", err
		}
		placed, replay, err := s.submit(ctx, p, &item)
		if !errors.Is(err, inventory.ErrSoldOut) || !firstRefill.IsZero() && time.Since(firstRefill) > timeouts.Refill {
			return placed, replay, err
		}
		refilled, refillErr := s.Buckets.Refill(ctx, &p.Item, p.ItemID, p.Quantity)
		switch {
		case refillErr != nil:
			return order.Placed{}, "", refillErr
		case !refilled:
			return order.Placed{}, "", err
		case firstRefill.IsZero():
			firstRefill = time.Now()
		}
	}
}

// TermsTries bounds how often a purchase is sent with terms that differ from the sale's. An item that is
// restocked many times a second has another version at several tries in a row.
const TermsTries = 8

// submit sends a purchase through the inventory and waits. If the sale has another version
// of the item, the item is read again, and the purchase is sent with that version. It
// returns the id of the earlier order if the request was a replay.
func (s *Service) submit(ctx context.Context, p *order.Purchase, item *catalog.Item) (order.Placed, string, error) {
	if err := s.Stock.Refusal(p.ItemID, p.UserID, p.IdempotencyKey, p.Quantity); err != nil {
		return order.Placed{}, "", err
	}
	for try := 1; ; try++ {
		t := order.Task{
			ItemID: p.ItemID, UserID: p.UserID, Quantity: p.Quantity,
			UnitPriceMinor: item.PriceMinor, Currency: item.Currency,
			CreatedAt: s.Store.Now().UnixMilli(), IdempotencyKey: p.IdempotencyKey, RequestID: p.RequestID,
		}
		if p.Wait > 0 {
			t.Origin = s.Waiters.Origin()
		}
		if p.Trace != nil {
			t.Trace = p.Trace.String()
		}
		placed, replay, err := s.send(ctx, p, &t, item.Version)
		p.SubmittedAt = time.Time{} // the next request is submitted later
		var other *inventory.ItemVersionError
		if !errors.As(err, &other) {
			return placed, replay, err
		}
		if try == TermsTries {
			return order.Placed{}, "", fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
		}
		if item.Version > other.Version {
			// The sale has lost a change of the item, so it is loaded again. During a
			// change nothing is sold, so no purchase is refused for its version then.
			if err := s.Releaser.Stock.Invalidate(ctx, p.ItemID); err != nil {
				return order.Placed{}, "", fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
			}
			continue
		}
		s.Items.Outdated(p.ItemID, other.Version)
		if *item, err = s.Items.Item(ctx, p.ItemID); err != nil {
			return order.Placed{}, "", fmt.Errorf("read item %s again: %w", p.ItemID, err)
		}
	}
}

// send sends a task for one version of the item; otherwise it is like submit.
func (s *Service) send(ctx context.Context, p *order.Purchase, t *order.Task, version int64) (order.Placed, string, error) {
	wait := p.Wait
	a := &attempt{ticket: ticket{settled: make(chan settlement, 3)}}
	a.request = inventory.Request{
		ItemID: t.ItemID, Buyer: t.UserID, IdempotencyKey: t.IdempotencyKey, Quantity: t.Quantity,
		Payload: t.Payload(), ItemVersion: version, Named: a.named, Done: a.done, SubmittedAt: p.SubmittedAt,
		RequestID: p.RequestID, Trace: p.Trace,
	}
	if wait > 0 {
		a.waiters = s.Waiters
		defer a.leave()
	}
	if err := s.Stock.Submit(&a.request); err != nil {
		return order.Placed{}, "", err
	}
	if a.waiters == nil {
		// The inventory answers every request in bounded time, so this wait
		// needs no timer of its own; only a client that goes away ends it sooner.
		select {
		case set := <-a.ticket.settled:
			return order.Placed{Order: a.queued(t)}, set.outcome.ReplayOf, set.outcome.Err
		case <-ctx.Done():
			return order.Placed{}, "", context.Cause(ctx)
		}
	}
	faultpoint.Reach("order.waiting")
	placed, replay, err := a.wait(ctx, t, wait)
	if !errors.Is(err, errWaitSpent) {
		return placed, replay, err
	}
	// The wait for the commit has ended. The purchase is accepted already, or its result
	// will arrive soon.
	a.late.Store(true)
	if a.accepted.Load() {
		return order.Placed{Order: a.queued(t)}, "", nil
	}
	return a.wait(ctx, t, sendMargin)
}

// errWaitSpent says that no result arrived in time. If there is nothing more to wait for,
// the caller gets it as ErrUnavailable.
var errWaitSpent = fmt.Errorf("order: no answer in time: %w", inventory.ErrUnavailable)

// wait waits for the next event.
func (a *attempt) wait(ctx context.Context, t *order.Task, d time.Duration) (order.Placed, string, error) {
	timer := takeTimer(d)
	defer giveTimer(timer)
	select {
	case e := <-a.ticket.settled:
		queued := a.queued(t)
		if e.commit {
			return order.Placed{Order: e.notice.Apply(queued), Committed: true, CommittedAt: e.at}, "", nil
		}
		return order.Placed{Order: queued}, e.outcome.ReplayOf, e.outcome.Err
	case <-timer.C:
		return order.Placed{}, "", errWaitSpent
	case <-ctx.Done():
		return order.Placed{}, "", context.Cause(ctx)
	}
}

// done is called by the inventory. If the request waits for its commit, its acceptance does
// not wake it: that would be a second wake-up for every order. A request whose wait has
// ended sets late before it reads accepted, so one of the two sees the other's value.
func (a *attempt) done(o inventory.Outcome) {
	if a.waiters != nil && o.Err == nil && o.ReplayOf == "" {
		a.accepted.Store(true)
		if !a.late.Load() {
			return
		}
	}
	a.ticket.settled <- settlement{outcome: o}
}

// replayPollMin and replayPollMax bound the pauses between reads of an order of an earlier
// request: this process gets no notice of its commit.
const (
	replayPollMin = 2 * time.Millisecond
	replayPollMax = 100 * time.Millisecond
)

// replay returns the earlier order in its present state. It waits for the commit as long as
// the first request would have. If the order is neither in the database nor in the queue,
// Redis has lost a part of its data, and every repeat would fail; so the sale is dropped,
// and its next load only has keys of existing orders. If a worker holds the order's only
// copy, the repeat makes another order, and the database finds the first by its key when
// both are committed.
func (s *Service) replay(ctx context.Context, item, id string, wait time.Duration) (order.Placed, error) {
	end := time.Now().Add(wait)
	for d := replayPollMin; ; d = min(2*d, replayPollMax) {
		o, err := s.Get(ctx, id)
		if errors.Is(err, order.ErrNotFound) {
			err = errors.Join(err, s.Releaser.Stock.Invalidate(ctx, item))
		}
		if err != nil {
			return order.Placed{}, fmt.Errorf("%w: replay of order %s: %w", inventory.ErrUnavailable, id, err)
		}
		left := time.Until(end)
		switch {
		case o.Status != order.StatusQueued:
			return order.Placed{Order: o, Committed: true, Replayed: true}, nil
		case left <= 0 && s.Volatile:
			return order.Placed{}, inventory.ErrUnavailable
		case left <= 0:
			return order.Placed{Order: o, Replayed: true}, nil
		}
		if !pause.For(ctx, min(d, left)) {
			return order.Placed{}, context.Cause(ctx)
		}
	}
}

// timers are reused: otherwise every purchase would create one.
var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

func takeTimer(d time.Duration) *time.Timer {
	t, ok := timers.Get().(*time.Timer)
	if !ok {
		return time.NewTimer(d)
	}
	t.Reset(d)
	return t
}

func giveTimer(t *time.Timer) {
	t.Stop() // since Go 1.23 nothing stale can be left in its channel
	timers.Put(t)
}
