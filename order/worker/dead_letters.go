package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/queue"
)

// DeadLetterAfter is how long a purchase may be a dead letter before its order is rejected.
// Until then an operator can fix the cause and retry it.
const DeadLetterAfter = 15 * time.Minute

// DeadLetters is the part of a queue of orders that the sweeper uses.
type DeadLetters interface {
	// List is queue.Queue.List.
	List(ctx context.Context, q queue.Query) (queue.Page, error)
}

const (
	// deadLetterPage is how many dead letters are read together.
	deadLetterPage = 256
	// deadLetterPages bounds the pages of one sweep; the next sweep continues there.
	deadLetterPages = 64
	// deadLetterAgain is when a queue's letters are read from the start again. If a clock
	// was set back, new letters may be placed among those already read.
	deadLetterAgain = 24 * time.Hour
)

// deadLetterCursor is the sweeps' position in the dead letters of one queue.
type deadLetterCursor struct {
	letters DeadLetters
	place   queue.Place
	begun   time.Time // when the first letter was read
	// failed are letters before the place whose orders could not be rejected, for a retry.
	// They are not many more than a page.
	failed []queue.Place
	// stopped is set when letters of a stopped sale were skipped: once no sale is stopped,
	// all letters are read again.
	stopped bool
}

// deadLetters rejects the orders whose purchase has been a dead letter for too long: the
// buyer gets a final status, and the units return to stock. The letter stays, so that an
// operator can find the cause; a retry of it then changes nothing. Each letter is read
// once: a sweep continues where the previous one ended.
func (s *Sweeper) deadLetters(ctx context.Context, g *deadLetterCursor, done *Swept) error {
	now := s.f.store.Now()
	if g.begun.IsZero() || now.Sub(g.begun) >= deadLetterAgain || g.stopped && !s.f.store.HighWater().AnyStopped() {
		g.place, g.begun, g.stopped = queue.Place{}, now, false
	}
	before := now.Add(-DeadLetterAfter)
	err := s.rejectFailed(ctx, g, done)
	for range deadLetterPages {
		if errors.Is(err, order.ErrDatabase) || len(g.failed) >= deadLetterPage || ctx.Err() != nil {
			break
		}
		page, lerr := g.letters.List(ctx, queue.Query{State: queue.StateDead, After: g.place, DiedBy: before, Limit: deadLetterPage})
		if lerr != nil {
			return fmt.Errorf("find dead orders: %w", lerr)
		}
		failed, berr := s.rejectLetters(ctx, g, page.Tasks, done)
		err = errors.Join(err, berr)
		if errors.Is(berr, order.ErrDatabase) {
			break // the page is read again
		}
		g.failed = append(g.failed, failed...)
		if n := len(page.Tasks); n > 0 {
			g.place = page.Tasks[n-1].Place()
		}
		if page.More == 0 {
			break
		}
	}
	return err
}

// rejectFailed retries the letters that failed before and are still dead.
func (s *Sweeper) rejectFailed(ctx context.Context, g *deadLetterCursor, done *Swept) error {
	if len(g.failed) == 0 {
		return nil
	}
	ids := make([]string, len(g.failed))
	for i := range g.failed {
		ids[i] = g.failed[i].ID
	}
	page, err := g.letters.List(ctx, queue.Query{IDs: ids})
	if err != nil {
		return fmt.Errorf("find dead orders: %w", err)
	}
	var again []queue.TaskInfo
	for i := range page.Tasks {
		if l := &page.Tasks[i]; l.State == queue.StateDead && l.Place() == g.failed[i] {
			again = append(again, *l)
		}
	}
	failed, err := s.rejectLetters(ctx, g, again, done)
	if !errors.Is(err, order.ErrDatabase) {
		g.failed = failed
	}
	return err
}

// rejectLetters rejects the orders of dead letters and notifies their clients. It returns
// the places of those that could not be rejected. Letters of a stopped sale wait for the
// operator's decision: their orders may be committed in the part of the database that was
// lost.
func (s *Sweeper) rejectLetters(ctx context.Context, g *deadLetterCursor, letters []queue.TaskInfo, done *Swept) (failed []queue.Place, err error) {
	var tasks []order.Task
	var of []int // the letter of each
	for i := range letters {
		l := &letters[i]
		if !order.IsPurchase(l.Type) {
			continue
		}
		for _, a := range accepted.OrdersOf(l.ID, l.Payload) {
			t, err := order.ParseAccepted(a)
			if err != nil || t.Quantity <= 0 {
				continue // a payload that cannot be parsed names no order
			}
			if s.f.store.HighWater().IsStopped(t.ItemID) {
				g.stopped = true
				continue
			}
			tasks, of = append(tasks, t), append(of, i)
		}
	}
	if len(tasks) == 0 {
		return nil, nil
	}
	n, left, err := RejectDead(ctx, s.f.store, tasks)
	done.Rejected += n
	if n > 0 {
		// Orders rejected by an earlier sweep are announced again, which is harmless.
		s.f.changes.Notify(ctx, order.TaskIDs(tasks)...)
	}
	missed := make(map[string]bool, len(left))
	for i := range left {
		missed[left[i].ID] = true
	}
	for i := range tasks {
		at := letters[of[i]].Place()
		if missed[tasks[i].ID] && (len(failed) == 0 || failed[len(failed)-1] != at) {
			failed = append(failed, at)
		}
	}
	return failed, err
}

// RejectDead rejects the orders that have no row, and records that their units must be
// released. It returns how many those were, and which of them failed.
func RejectDead(ctx context.Context, s *store.Store, tasks []order.Task) (rejected int, failed []order.Task, err error) {
	missing, err := missing(ctx, s, tasks)
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
			if len(failed) <= maxSweepErrors || errors.Is(berr, order.ErrDatabase) {
				err = errors.Join(err, berr)
			}
		}
		if errors.Is(berr, order.ErrDatabase) {
			return rejected, append(failed, missing[i+1:]...), err
		}
	}
	return rejected, failed, err
}

// missing returns the tasks whose order has no row.
func missing(ctx context.Context, s *store.Store, tasks []order.Task) ([]order.Task, error) {
	found, err := s.Settled(ctx, order.TaskIDs(tasks))
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool, len(found))
	for i := range found {
		known[found[i].ID] = true
	}
	var out []order.Task
	for i := range tasks {
		if !known[tasks[i].ID] {
			out = append(out, tasks[i])
		}
	}
	return out, nil
}

// rejectDeadOne moves an order from queued to rejected without a worker.
func rejectDeadOne(ctx context.Context, s *store.Store, t *order.Task) (rejected int, err error) {
	err = s.TransitionWithEvents(ctx, "reject dead order "+t.ID, func(ctx context.Context, c store.Conn, box *store.Outbox) error {
		rejected = 0
		_, err := store.ReadOrder(ctx, c, t.ID)
		if !errors.Is(err, order.ErrNotFound) {
			return err // it was retried meanwhile
		}
		out := order.Outcome{Status: order.StatusRejected, Reason: order.ReasonFailed, ClosedAt: box.Now}
		if err := store.InsertRejection(ctx, c, t, out); err != nil { // its key may be taken if Redis had lost it
			return err
		}
		_, err = store.InsertReturns.Exec(ctx, c, []any{t.ID, t.ItemID, t.UserID, t.IdempotencyKey, t.Quantity, box.Now})
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
