package store

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"flashsale/inventory"
	"flashsale/order/store/database"
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
// run were rolled back. If ctx ends, fn is only cancelled if it has not begun; see [database.DB.Do].
func (s *Store) Change(ctx context.Context, operation string, fn func(ctx context.Context, c database.Conn, now int64) error) error {
	return s.changeWithin(ctx, operation, func(ctx context.Context, tx *database.Tx) error {
		// The clock is read once the change has its turn: after the wait, a payment must
		// not count as older than it is, and no order may expire early.
		return fn(ctx, tx, s.now().UnixMilli())
	})
}

// ChangeWithGORM is [Store.Change] for statements of gorm.
func (s *Store) ChangeWithGORM(ctx context.Context, operation string, fn func(tx *gorm.DB, now int64) error) error {
	return s.changeWithin(ctx, operation, func(ctx context.Context, tx *database.Tx) error {
		return fn(tx.GORM(ctx), s.now().UnixMilli())
	})
}

// changeWithin makes a change with a timeout for its statements.
func (s *Store) changeWithin(ctx context.Context, operation string, run func(ctx context.Context, tx *database.Tx) error) error {
	_, err := s.do(ctx, operation, &database.Write{Run: func(ctx context.Context, tx *database.Tx) error {
		ctx, cancel := context.WithTimeout(ctx, timeouts.Write)
		defer cancel()
		return run(ctx, tx)
	}})
	return err
}

// ChangeWithEvents runs fn as one change that has revisions and events; see [Store.Change]. It returns
// once the revisions are recorded. Nothing bounds its statements: most are few and find their rows by
// an index. A caller whose statements may take long bounds them with a context of its own inside fn.
func (s *Store) ChangeWithEvents(ctx context.Context, operation string, fn func(ctx context.Context, c database.Conn, box *Outbox) error) error {
	return changeAndNoteRevisions(ctx, s, operation, &database.Write{Run: func(ctx context.Context, tx *database.Tx) error {
		return transactionOf(tx).withOutbox(ctx, func(box *Outbox) error { return fn(ctx, tx, box) })
	}})
}

// changeAndNoteRevisions makes a change, and returns once the revisions of its transaction are recorded. They
// are recorded once for all changes of the transaction.
func changeAndNoteRevisions(ctx context.Context, s *Store, operation string, own *database.Write) error {
	tx, err := s.do(ctx, operation, own)
	if err != nil {
		return err
	}
	transactionOf(tx).noted.Do(func() { s.highWater.Note(ctx) })
	return nil
}

// do makes a change. Errors: inventory.ErrOverloaded, database.ErrUnavailable, and those of its Run.
func (s *Store) do(ctx context.Context, operation string, own *database.Write) (*database.Tx, error) {
	tx, err := s.Do(ctx, own)
	if errors.Is(err, database.ErrQueueFull) {
		err = fmt.Errorf("%w: %w", err, inventory.ErrOverloaded)
	}
	if err != nil {
		return nil, database.Wrap(operation, err)
	}
	return tx, nil
}
