package store

import (
	"context"

	"gorm.io/gorm"

	"flashsale/order/timeouts"
)

// Change runs fn as one change, at one instant. timeouts.Write bounds its statements.
//
// A change is every write except the commit of a batch of orders. Other packages make theirs by
// one of three methods:
//
//   - [Store.ChangeWithEvents], if it changes an order or a payment in normal operation: fn gets an
//     [Outbox], which raises the revisions of the items and writes the webhook events in the same
//     transaction;
//   - [Store.ChangeWithGORM], for the rows of items and webhooks, which are written by gorm;
//   - Change, for everything else, such as recoveries and the table meta.
//
// With the last two, a caller that raises a revision passes it to [HighWater.Committed] itself.
//
// In each, operation says what is done, for the error. fn may run again if the changes of its first
// run were rolled back. If ctx ends, fn is only cancelled if it has not begun; see writer.change.
func (s *Store) Change(ctx context.Context, operation string, fn func(ctx context.Context, c Conn, now int64) error) error {
	_, err := s.changeWriter.change(ctx, withTimeout(timeouts.Write, func(ctx context.Context, g *group) error {
		// The clock is read once the change has its turn: after the wait, a payment must
		// not count as older than it is, and no order may expire early.
		return fn(ctx, g, s.now().UnixMilli())
	}))
	if err != nil {
		return Wrap(operation, err)
	}
	return nil
}

// ChangeWithGORM is Change by gorm; see there.
func (s *Store) ChangeWithGORM(ctx context.Context, operation string, fn func(tx *gorm.DB, now int64) error) error {
	_, err := s.changeWriter.change(ctx, withTimeout(timeouts.Write, func(ctx context.Context, g *group) error {
		return fn(g.orm(ctx), s.now().UnixMilli())
	}))
	if err != nil {
		return Wrap(operation, err)
	}
	return nil
}

// ChangeWithEvents runs fn as one change that has revisions and events; see [Store.Change]. It returns
// once the revisions are recorded. Nothing bounds its statements: most are few and find their rows by
// an index. A caller whose statements may take long bounds them with a context of its own inside fn.
func (s *Store) ChangeWithEvents(ctx context.Context, operation string, fn func(ctx context.Context, c Conn, box *Outbox) error) error {
	return changeAndNoteRevisions(ctx, s, operation, &write{fn: func(ctx context.Context, g *group) error {
		return g.withOutbox(ctx, func(box *Outbox) error { return fn(ctx, g, box) })
	}})
}

// changeAndNoteRevisions makes a change, and returns once the revisions of its transaction are recorded. They
// are recorded once for all changes of the transaction.
func changeAndNoteRevisions(ctx context.Context, s *Store, operation string, own *write) error {
	g, err := s.changeWriter.change(ctx, own)
	if err != nil {
		return Wrap(operation, err)
	}
	g.noteOnce.Do(func() { s.highWater.Note(ctx) })
	return nil
}
