package worker

import (
	"context"
	"errors"
	"slices"
	"sync"

	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

// rejecters is how many rejections wait for the database together, which commits those that wait in
// one transaction.
const rejecters = 32

// rejectable returns the orders of a dead letter that can be rejected.
func rejectable(taskType, id string, payload []byte) (tasks []order.Task) {
	if !order.IsPurchase(taskType) {
		return nil // the sweeper expires what is due; other dead letters hold no units
	}
	for _, a := range accepted.OrdersOf(id, payload) {
		t, err := order.ParseAccepted(a)
		if err != nil || t.Quantity <= 0 {
			continue // unreadable: it names no order
		}
		tasks = append(tasks, t)
	}
	return tasks
}

// rejectAll rejects the orders that have no row, announces them and returns their units. It
// returns the ids of those that it rejected, and of those that failed.
func (b *Backlog) rejectAll(ctx context.Context, tasks []order.Task) (rejected, failed map[string]bool, err error) {
	rejected, failed = make(map[string]bool), make(map[string]bool)
	for chunk := range slices.Chunk(tasks, discardOrders) {
		if errors.Is(err, database.ErrUnavailable) {
			addIDs(failed, chunk)
			continue
		}
		missing, merr := store.WithoutRow(ctx, b.store, chunk, idOf)
		if merr != nil {
			err = errors.Join(err, merr)
			addIDs(failed, chunk)
			continue
		}
		done, undone, rerr := b.rejectTogether(ctx, missing)
		err = errors.Join(err, rerr)
		addIDs(rejected, done)
		addIDs(failed, undone)
		if len(done) == 0 {
			continue
		}
		b.ChangeNotifier.Notify(ctx, order.TaskIDs(done)...)
		pending := make([]store.Release, len(done))
		for i := range done {
			t := &done[i]
			pending[i] = store.Release{
				OrderID: t.ID, ItemID: t.ItemID, UserID: t.UserID, IdempotencyKey: t.IdempotencyKey,
				Quantity: t.Quantity, CreatedAt: b.store.Now().UnixMilli(),
			}
		}
		// Units that cannot be returned now are recorded, and the sweeper returns them later.
		b.releaser.Release(ctx, pending)
	}
	return rejected, failed, err
}

func addIDs(ids map[string]bool, tasks []order.Task) {
	for i := range tasks {
		ids[tasks[i].ID] = true
	}
}

// rejectTogether is rejectEach with several rejections at once.
func (b *Backlog) rejectTogether(ctx context.Context, tasks []order.Task) (rejected, failed []order.Task, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for part := range slices.Chunk(tasks, max(1, (len(tasks)+rejecters-1)/rejecters)) {
		all.Go(func() {
			done, undone, rerr := rejectEach(ctx, b.store, part)
			mu.Lock()
			defer mu.Unlock()
			rejected, failed = append(rejected, done...), append(failed, undone...)
			if err == nil || errors.Is(rerr, database.ErrUnavailable) {
				err = errors.Join(err, rerr)
			}
		})
	}
	all.Wait()
	return rejected, failed, err
}

func idOf(t *order.Task) string { return t.ID }

// RejectDead rejects the orders that have no row, and records that their units must be
// released. It returns how many those were, and which of them failed.
func RejectDead(ctx context.Context, s *store.Store, tasks []order.Task) (rejected int, failed []order.Task, err error) {
	missing, err := store.WithoutRow(ctx, s, tasks, idOf)
	if err != nil {
		return 0, tasks, err
	}
	done, failed, err := rejectEach(ctx, s, missing)
	return len(done), failed, err
}

// rejectEach rejects orders without a row. It returns those that it rejected, and those that
// failed.
func rejectEach(ctx context.Context, s *store.Store, missing []order.Task) (rejected, failed []order.Task, err error) {
	for i := range missing {
		// One by one: a fault in one task must not stop the others.
		n, berr := rejectDeadOne(ctx, s, &missing[i])
		berr = order.About(berr, missing[i:i+1])
		if n > 0 {
			rejected = append(rejected, missing[i])
		}
		if berr != nil {
			failed = append(failed, missing[i])
			if len(failed) <= maxSweepErrors || errors.Is(berr, database.ErrUnavailable) {
				err = errors.Join(err, berr)
			}
		}
		if errors.Is(berr, database.ErrUnavailable) {
			return rejected, append(failed, missing[i+1:]...), err
		}
	}
	return rejected, failed, err
}

// rejectDeadOne moves an order from queued to rejected without a worker.
func rejectDeadOne(ctx context.Context, s *store.Store, t *order.Task) (rejected int, err error) {
	err = s.ChangeWithEvents(ctx, "reject dead order "+t.ID, func(ctx context.Context, c database.Conn, box *store.Outbox) error {
		rejected = 0
		_, err := store.ReadOrder(ctx, c, t.ID)
		if !errors.Is(err, order.ErrNotFound) {
			return err // it was retried meanwhile
		}
		out := order.Outcome{Status: order.StatusRejected, Reason: order.ReasonFailed, ClosedAt: box.Now}
		if err := store.InsertRejection(ctx, c, t, out); err != nil { // its key may be taken if Redis had lost it
			return err
		}
		_, err = store.InsertReleases.Exec(ctx, c, []any{t.ID, t.ItemID, t.UserID, t.IdempotencyKey, t.Quantity, box.Now})
		if err != nil {
			return err
		}
		box.Task(t, out)
		box.Touch(t.ItemID)
		rejected = 1
		return nil
	})
	if err != nil {
		return 0, err
	}
	return rejected, nil
}
