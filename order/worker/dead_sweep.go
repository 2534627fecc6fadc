package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/order"
	"flashsale/order/store/database"
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
	// deadLetterRestart is when a queue's letters are read from the start again. If a clock
	// was set back, new letters may be placed among those already read.
	deadLetterRestart = 24 * time.Hour
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
	now := s.fulfiller.store.Now()
	if g.begun.IsZero() || now.Sub(g.begun) >= deadLetterRestart || g.stopped && !s.fulfiller.store.HighWater().AnyStopped() {
		g.place, g.begun, g.stopped = queue.Place{}, now, false
	}
	before := now.Add(-DeadLetterAfter)
	err := s.rejectFailed(ctx, g, done)
	for range deadLetterPages {
		if errors.Is(err, database.ErrUnavailable) || len(g.failed) >= deadLetterPage || ctx.Err() != nil {
			break
		}
		page, lerr := g.letters.List(ctx, queue.Query{State: queue.StateDead, After: g.place, DiedBy: before, Limit: deadLetterPage})
		if lerr != nil {
			return fmt.Errorf("find dead orders: %w", lerr)
		}
		failed, berr := s.rejectLetters(ctx, g, page.Tasks, done)
		err = errors.Join(err, berr)
		if errors.Is(berr, database.ErrUnavailable) {
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
	if !errors.Is(err, database.ErrUnavailable) {
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
		for _, t := range rejectable(letters[i].Type, letters[i].ID, letters[i].Payload) {
			if s.fulfiller.store.HighWater().IsStopped(t.ItemID) {
				g.stopped = true
				continue
			}
			tasks, of = append(tasks, t), append(of, i)
		}
	}
	if len(tasks) == 0 {
		return nil, nil
	}
	n, left, err := RejectDead(ctx, s.fulfiller.store, tasks)
	done.Rejected += n
	if n > 0 {
		// Orders rejected by an earlier sweep are announced again, which is harmless.
		s.fulfiller.changeNotifier.Notify(ctx, order.TaskIDs(tasks)...)
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
