package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"gorm.io/gorm"

	"flashsale/order/timeouts"
)

// group is one transaction of the writer. Each member runs in a savepoint of it, except a batch
// that is the first.
type group struct {
	preparedTx
	ctx   context.Context
	store *Store
	// cancel releases ctx. On Postgres ctx ends when the transaction takes too long: its
	// server may be unreachable, without an error.
	cancel   context.CancelFunc
	opening  *opening // of the transaction on Postgres; nil: it has not begun
	conn     *sql.Conn
	box      *Outbox // the events of all members; nil: none has opened it
	noteOnce sync.Once

	hasBatch  bool // it contains a batch of orders
	changes   int  // the number of changes in it
	began     time.Time
	batchTook time.Duration
}

// begin begins a transaction; on Postgres it only gets the connection, and lock begins the
// transaction. ctx bounds only the wait for the connection; the database's lock timeout bounds
// the wait for locks.
func begin(ctx context.Context, s *Store) (*group, error) {
	db, err := s.writeDB.DB()
	if err != nil {
		return nil, err
	}
	if err := s.prepared.prepare(ctx, db); err != nil {
		return nil, err
	}
	connecting, cancel := ctx, func() {}
	if s.Postgres() {
		connecting, cancel = context.WithTimeout(ctx, beginTimeout)
	}
	conn, err := db.Conn(connecting)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	g := &group{ctx: context.WithoutCancel(ctx), cancel: func() {}, store: s, conn: conn, began: time.Now()}
	if s.Postgres() {
		g.ctx, g.cancel = context.WithTimeout(g.ctx, postgresTransaction)
		return g, nil
	}
	tx, err := conn.BeginTx(g.ctx, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin: %w", err), conn.Close())
	}
	g.preparedTx = s.prepared.in(tx)
	return g, nil
}

// end commits or rolls back, and returns the connection. After errRolledBack the transaction
// has changed nothing; after another error of a commit, its outcome is unknown.
func (g *group) end(commit bool) error {
	defer g.cancel()
	if g.tx == nil {
		return g.conn.Close() // it has not begun
	}
	if !commit {
		err := g.tx.Rollback()
		if errors.Is(err, sql.ErrTxDone) {
			err = nil // its time is over, and database/sql has rolled it back
		}
		if err != nil {
			err = fmt.Errorf("roll back: %w", err)
		}
		return errors.Join(err, g.conn.Close())
	}
	err := g.tx.Commit()
	cerr := g.conn.Close()
	switch {
	case !g.store.Postgres():
		return errors.Join(err, cerr)
	case err != nil:
		return committed(g.store, g.opening.txID, err)
	}
	// It may have read what another transaction wrote, and written nothing.
	if err := g.store.Replicated(g.ctx); err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return cerr
}

// lock begins a transaction on Postgres, with its lock, before its first members: one shared
// with payments and with batches of other items, or an exclusive one. Its time for changes begins then.
func (g *group) lock(shared bool, items ...string) error {
	if !g.store.Postgres() || g.opening != nil {
		return nil
	}
	tx, open, err := beginLocked(g.ctx, g.conn, shared, items...)
	if err != nil {
		return err
	}
	g.store.noteServer(open.txID.life)
	g.opening, g.preparedTx, g.began = open, g.store.prepared.in(tx), time.Now()
	return nil
}

// isFull reports whether the group accepts no more changes.
func (g *group) isFull() bool {
	spent := time.Since(g.began)
	switch {
	case g.changes == 0:
		return false // every transaction contains at least one
	case g.changes >= groupChanges:
		return true
	case g.hasBatch:
		return spent-g.batchTook >= max(timeouts.GroupLeast, time.Duration(timeouts.GroupShare*float64(g.batchTook)))
	default:
		return spent >= timeouts.Group
	}
}

// run runs members: one, or several payments or cancellations, which it runs together as far as
// possible, and the rest one by one. An error means that the transaction is lost; culprit is the member
// that caused it, if known.
func (g *group) run(bunch []*write) (culprit *write, err error) {
	if len(bunch) > 1 {
		var rest []*write
		err := g.savepoint(func() (err error) {
			rest, err = g.together(bunch)
			return err
		})
		if isLost(err) {
			return nil, err
		}
		if err == nil {
			bunch = rest
		}
	}
	for _, one := range bunch {
		if err := g.runOne(one); err != nil {
			return one, err
		}
	}
	return nil, nil
}

// payTogether records payments in a transaction of their own on Postgres, which needs no savepoint. It
// returns those that must be recorded one by one. After an error the transaction has ended.
func (g *group) payTogether(payments []*write) (rest []*write, err error) {
	if err := g.lock(true); err != nil {
		return nil, errors.Join(err, g.end(false))
	}
	if err := g.compareServer(); err != nil {
		return nil, err
	}
	if rest, err = g.payAll(payments); err == nil {
		err = g.writeEvents()
	}
	if err != nil {
		return nil, errors.Join(err, g.end(false))
	}
	return rest, nil
}

// together makes several payments or cancellations, and returns those that must be made one by one.
func (g *group) together(bunch []*write) (rest []*write, err error) {
	if bunch[0].pay != nil {
		return g.payAll(bunch)
	}
	list := make([]*cancellation, len(bunch))
	for i, one := range bunch {
		list[i] = one.cancel
	}
	return nil, g.cancelAll(g.ctx, list...)
}

// runOne runs a member, and undoes its writes if it fails. The member's own error is returned
// to its caller after the commit. runOne returns an error if the transaction is lost. A batch that is
// the first member needs no savepoint: if it fails, the transaction is lost, but nothing else is in it, and its
// caller gets the error after the rollback. On SQLite a savepoint copies each page that the batch changes, which took a tenth
// of a commit.
func (g *group) runOne(one *write) error {
	began := time.Now()
	first := one.isBatch && g.changes == 0
	scope := g.savepoint
	if first {
		scope = func(fn func() error) error { return fn() }
	}
	one.err = scope(func() (err error) {
		defer func() {
			if one.panicked = recover(); one.panicked != nil {
				err = errPanicked
			}
		}()
		ctx := one.ctx
		if deadline, ok := g.ctx.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
		}
		return one.fn(ctx, g)
	})
	if one.isBatch {
		g.batchTook = time.Since(began)
	}
	if first || isLost(one.err) {
		return one.err
	}
	return nil
}

// errPanicked is the error of a member that panicked; its caller panics, too.
var errPanicked = errors.New("order: a change panicked")

// lostError says that the transaction cannot continue: the writes of a savepoint could not
// be undone. SQLite ends a transaction itself when the disk is full, for example, or when a
// statement is interrupted.
type lostError struct{ err error }

func (e *lostError) Error() string { return "order: the transaction is lost: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// isLost reports whether an error is or wraps a lostError.
func isLost(err error) bool {
	var lost *lostError
	return errors.As(err, &lost)
}

const (
	setSavepoint     = "SAVEPOINT member"
	undoSavepoint    = "ROLLBACK TO SAVEPOINT member"
	releaseSavepoint = "RELEASE SAVEPOINT member"
)

// savepoint runs fn, and undoes its writes if it fails. Savepoints can be nested. After a
// lostError the transaction accepts no writes.
func (g *group) savepoint(fn func() error) error {
	// A member's own ctx must not end between the savepoint and its release.
	ctx := g.ctx
	if _, err := g.ExecContext(ctx, setSavepoint); err != nil {
		return &lostError{err}
	}
	err := fn()
	if isLost(err) {
		return err
	}
	if err != nil {
		if _, uerr := g.ExecContext(ctx, undoSavepoint); uerr != nil {
			return &lostError{errors.Join(err, uerr)}
		}
	}
	if _, rerr := g.ExecContext(ctx, releaseSavepoint); rerr != nil {
		return &lostError{errors.Join(err, rerr)}
	}
	return err
}

// withOutbox runs fn with its own outbox, whose events move to the group's outbox once fn has
// succeeded.
func (g *group) withOutbox(ctx context.Context, fn func(box *Outbox) error) error {
	now := g.store.now().UnixMilli()
	if g.box == nil {
		var err error
		if g.box, err = openOutbox(ctx, g, now); err != nil {
			return err
		}
	}
	own := &Outbox{Now: now, wanted: g.box.wanted}
	if err := fn(own); err != nil {
		return err
	}
	g.box.add(own)
	return nil
}

// writeEvents writes the events of all members.
func (g *group) writeEvents() error {
	if g.box == nil {
		return nil
	}
	g.box.Now = g.store.now().UnixMilli()
	if err := g.box.raiseTouched(g.ctx, g); err != nil {
		return err
	}
	return g.box.write(g.ctx, g)
}

// orm returns the transaction for gorm.
func (g *group) orm(ctx context.Context) *gorm.DB {
	db := g.store.writeDB.Session(&gorm.Session{NewDB: true, Context: ctx})
	db.Statement.ConnPool = g.tx
	return db
}
