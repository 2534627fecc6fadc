package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/queue"
)

// buriedAfter is how long a purchase may be a dead letter before its order is
// rejected: time for an operator to mend the cause and retry it.
const buriedAfter = 15 * time.Minute

// DeadLetters is what the sweeper needs of a queue of orders.
type DeadLetters interface {
	List(ctx context.Context, state queue.State, offset, limit int) ([]queue.TaskInfo, error)
}

// buriedPage is how many dead letters are looked at together.
const buriedPage = 256

// buried rejects the orders whose purchase is a dead letter for too long: the
// buyer hears an end, and the units are sold to others. The letter stays, for
// who looks into the cause; retried after that, it changes nothing.
func (s *Sweeper) buried(ctx context.Context, q DeadLetters, done *Swept) error {
	before := s.f.store.now().Add(-buriedAfter)
	for offset := 0; ctx.Err() == nil; offset += buriedPage {
		letters, err := q.List(ctx, queue.StateDead, offset, buriedPage)
		if err != nil {
			return fmt.Errorf("look for dead orders: %w", err)
		}
		var tasks []task
		for i := range letters {
			l := &letters[i]
			if l.Type != purchaseType || l.At.After(before) {
				continue
			}
			// What cannot be read names no order that anybody could ask for.
			if t, err := parseTask(l.ID, l.Payload); err == nil && t.Quantity > 0 {
				tasks = append(tasks, t)
			}
		}
		n, err := s.f.store.bury(ctx, tasks)
		done.Buried += n
		if n > 0 {
			// Those that were buried before are told of again, which changes nothing.
			s.f.bell.ring(ctx, idsOf(tasks)...)
		}
		if err != nil || len(letters) < buriedPage {
			return err
		}
	}
	return context.Cause(ctx)
}

// bury rejects those of the orders that have no row, and notes their units to
// be given back. It returns how many those were.
func (s *Store) bury(ctx context.Context, tasks []task) (buried int, err error) {
	missing, err := s.missing(ctx, tasks)
	if err != nil {
		return 0, err
	}
	for i := range missing {
		// One by one: what made a task a dead letter may break this, too.
		n, berr := s.buryOne(ctx, &missing[i])
		buried += n
		err = errors.Join(err, berr)
	}
	return buried, err
}

func idsOf(tasks []task) []string {
	ids := make([]string, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	return ids
}

// missing are those of the tasks that have made no row.
func (s *Store) missing(ctx context.Context, tasks []task) ([]task, error) {
	found, err := s.settled(ctx, idsOf(tasks))
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool, len(found))
	for i := range found {
		known[found[i].id] = true
	}
	var out []task
	for i := range tasks {
		if !known[tasks[i].ID] {
			out = append(out, tasks[i])
		}
	}
	return out, nil
}

// buryOne is the transition from queued to rejected without a worker.
func (s *Store) buryOne(ctx context.Context, t *task) (buried int, err error) {
	err = s.telling(ctx, "reject dead order "+t.ID, func(ctx context.Context, c conn, box *outbox) error {
		buried = 0
		_, err := readOrder(ctx, c, t.ID)
		if !errors.Is(err, ErrNotFound) {
			return err // it was retried meanwhile
		}
		out := outcome{status: StatusRejected, reason: reasonFailed, closedAt: box.now}
		if err := insertRejection(ctx, c, t, out); err != nil { // its key may be taken: Redis had lost it
			return err
		}
		_, err = insertReturns.exec(ctx, c, []any{t.ID, t.ItemID, t.UserID, t.IdempotencyKey, t.Quantity, box.now})
		if err != nil {
			return err
		}
		box.task(t, out)
		box.touch(t.ItemID)
		buried = 1
		return nil
	})
	if err != nil {
		return 0, err
	}
	return buried, nil
}
