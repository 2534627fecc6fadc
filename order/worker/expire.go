package worker

import (
	"context"
	"fmt"

	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/queue"
)

// expiries are the orders of a batch of expiry tasks.
type expiries struct {
	ids   []string
	index []int // of each order's task
}

// add adds the orders of a task, or returns its verdict if it is malformed. The sweeper expires its
// orders then.
func (e *expiries) add(l *queue.Leased, index int) error {
	_, ids := order.ParseExpiry(l.ID, l.Payload)
	for _, id := range ids {
		if err := order.CheckText(id); err != nil {
			return queue.Discard(fmt.Errorf("%w: %w", order.ErrTaskMalformed, err))
		}
	}
	for _, id := range ids {
		e.ids, e.index = append(e.ids, id), append(e.index, index)
	}
	return nil
}

// setVerdict keeps the verdict on an order. Of the verdicts on the orders of one task, a failure
// counts; otherwise the task waits for the order that is due first.
func (e *expiries) setVerdict(errs []error, i int, err error) {
	known := errs[e.index[i]]
	before, waits := queue.Snoozed(known)
	d, wait := queue.Snoozed(err)
	if known == nil || waits && (!wait || d < before) {
		errs[e.index[i]] = err
	}
}

// expire closes the orders that are due and releases their units. report is called for each
// order that is not finished: it is not due yet by the database's clock, or it failed. An
// order that breaks the transaction is found by halving, and only that one fails.
func (f *Fulfiller) expire(ctx context.Context, ids []string, report func(i int, err error)) {
	if len(ids) == 0 {
		return
	}
	var results map[string]store.Expiry
	var pending []store.Release
	err := f.persist(ctx, func() (wrote bool, err error) {
		results, pending, err = f.store.Expire(ctx, ids)
		for _, e := range results {
			wrote = wrote || e.Closed
		}
		return wrote, err
	})
	switch {
	case err == nil:
		_, failed := f.Releaser.Release(ctx, pending)
		f.changeNotifier.Notify(ctx, expired(results)...)
		for i, id := range ids {
			if e := results[id]; e.In > 0 {
				report(i, queue.Snooze(e.In))
			} else if err := failed[id]; err != nil {
				report(i, fmt.Errorf("order %s: %w", id, err))
			}
		}
	case database.Transient(err):
		for i := range ids {
			report(i, queue.Return(err))
		}
	case len(ids) == 1:
		report(0, err)
	default:
		half := len(ids) / 2
		f.expire(ctx, ids[:half], report)
		f.expire(ctx, ids[half:], func(i int, err error) { report(half+i, err) })
	}
}

// expired returns the orders that are expired, including those of a repeated expiry.
func expired(results map[string]store.Expiry) []string {
	var ids []string
	for id, e := range results {
		if e.Status == order.StatusExpired {
			ids = append(ids, id)
		}
	}
	return ids
}
