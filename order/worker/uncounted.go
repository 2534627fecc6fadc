package worker

import (
	"context"
	"fmt"
	"slices"

	"flashsale/internal/pause"
	"flashsale/internal/requestid"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/timeouts"
	"flashsale/queue"
)

// Membership reads which orders a queue holds.
type Membership interface {
	// Find is accepted.Orders.Find.
	Find(ctx context.Context, ids ...string) ([]accepted.Order, error)
}

// invalidateUncounted invalidates the sales of committed orders that were accepted under an
// earlier epoch and that the sale may not count. Redis has lost data since then, and the
// sales were rebuilt from the database and the queue. An order that is still a task was in
// the queue then and was counted. One that is no task was only in this worker's memory, and
// the sale may have been rebuilt before its commit: it would sell the units a second time,
// and the database would reject them. The next purchase loads an invalidated sale.
//
// It returns an error for each order that could not be checked; its task is retried. The
// epoch is read after the commit: a rebuild under a later epoch reads the database later still.
func (f *Fulfiller) invalidateUncounted(ctx context.Context, tasks []order.Task) map[string]error {
	var late []*order.Task
	epoch := int64(0)
	for i := range tasks {
		t := &tasks[i]
		if t.Epoch == 0 {
			continue // the task is from a version without stamps
		}
		if epoch == 0 {
			var err error
			if epoch, err = f.store.Epoch(context.WithoutCancel(ctx)); err != nil {
				f.onError(err)
				epoch = -1 // check all
			}
		}
		if t.Epoch != epoch {
			late = append(late, t)
		}
	}
	if len(late) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Notify)
	defer cancel()
	err := f.dropUncounted(ctx, late)
	if err == nil {
		return nil
	}
	err = requestid.About(err, len(late), func(i int) requestid.Order { return late[i].Ref() })
	f.onError(err)
	failed := make(map[string]error, len(late))
	for _, t := range late {
		failed[t.ID] = err
	}
	return failed
}

// dropUncounted drops the sales that may not have counted some of these orders.
func (f *Fulfiller) dropUncounted(ctx context.Context, late []*order.Task) error {
	byPartition := make(map[int][]*order.Task)
	for _, t := range late {
		p := inventory.PartitionOf(t.ItemID, f.partitions)
		byPartition[p] = append(byPartition[p], t)
	}
	var items []string
	for p, list := range byPartition {
		known := make([]accepted.Order, len(list))
		if p < len(f.Queued) {
			ids := make([]string, len(list))
			for i, t := range list {
				ids[i] = t.ID
			}
			var err error
			if known, err = f.Queued[p].Find(ctx, ids...); err != nil {
				return fmt.Errorf("check orders of an earlier epoch: %w", err)
			}
		}
		for i, t := range list {
			if known[i].OrderID == "" && !slices.Contains(items, t.ItemID) {
				items = append(items, t.ItemID)
			}
		}
	}
	if len(items) == 0 {
		return nil
	}
	return inventory.Invalidate(ctx, f.rdb, f.partitions, items)
}

// missing handles committed orders whose tasks were in no queue when they were to be
// acknowledged. Redis may have lost the tasks without a new epoch: when an older copy of
// its data returns, an order that only a worker held leaves no other trace, and the sale
// would sell its units a second time. So the sale is dropped, and its next purchase loads
// it. Orders of an earlier epoch were checked before, or the sale was built after their
// commit.
func (f *Fulfiller) missing(ctx context.Context, leased []queue.Leased) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Notify)
	defer cancel()
	epoch, err := f.store.Epoch(ctx)
	if err != nil {
		f.onError(err)
		epoch = -1
	}
	var items []string
	var lost []order.Task
	for i := range leased {
		if !order.IsPurchase(leased[i].Type) {
			continue
		}
		for _, a := range accepted.OrdersOf(leased[i].ID, leased[i].Payload) {
			t, err := order.ParseAccepted(a)
			if err != nil || t.Epoch == 0 || epoch > 0 && t.Epoch != epoch {
				continue
			}
			lost = append(lost, t)
			if !slices.Contains(items, t.ItemID) {
				items = append(items, t.ItemID)
			}
		}
	}
	for wait := commitRetryMin; len(items) > 0; wait = min(2*wait, commitRetryMax) {
		err := inventory.Invalidate(ctx, f.rdb, f.partitions, items)
		if err == nil {
			return
		}
		f.onError(fmt.Errorf("invalidate sales of orders that are in no queue: %w", order.About(err, lost)))
		if !pause.For(ctx, wait) {
			return
		}
	}
}
