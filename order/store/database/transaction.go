package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"flashsale/order/store/sqlite"
	"flashsale/order/timeouts"
)

// Hooks are what happens in one transaction besides the writes in it. All methods are called on the
// goroutine of the writer.
type Hooks interface {
	// Opening adds statements to the round trip in which a transaction on Postgres begins. first is one of
	// its members.
	Opening(b *pgx.Batch, first *Write)
	// Begun is called when a transaction on Postgres has begun, before its members; batch is whether the first is
	// one. If it returns an error, it has called [Tx.End]. The error counts as transient, and its members fail with
	// it; after ErrRunAgain, they run in another transaction.
	Begun(ctx context.Context, batch bool) error
	// Committing is called before the commit. After an error the transaction is rolled back.
	Committing(ctx context.Context) error
	// Committed is called after the commit, before the members are answered.
	Committed()
}

// ErrRunAgain makes the members of a transaction run in another one; see [Hooks].
var ErrRunAgain = errors.New("order: the transaction must run again")

// refusedError is an error of [Hooks.Begun].
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// Tx is one transaction of a writer. Each member runs in a savepoint of it, except a batch
// that is the first.
type Tx struct {
	preparedTx
	ctx context.Context
	db  *DB
	// cancel releases ctx. On Postgres ctx ends when the transaction takes too long: its
	// server may be unreachable, without an error.
	cancel context.CancelFunc
	conn   *sql.Conn
	id     txID // on Postgres
	hooks  Hooks

	hasBatch  bool // it contains a batch
	changes   int  // the number of changes in it
	began     time.Time
	waited    bool // on SQLite, for a transaction of another connection, usually of another process
	beside    bool // it or another one has waited lately
	batchTook time.Duration
}

// begin begins a transaction; on Postgres it only gets the connection, and lock begins the
// transaction. ctx bounds only the wait for the connection; the database's lock timeout bounds
// the wait for locks.
func begin(ctx context.Context, db *DB) (*Tx, error) {
	pool, err := db.write.DB()
	if err != nil {
		return nil, err
	}
	if err := db.prepared.prepare(ctx, pool); err != nil {
		return nil, err
	}
	connecting, cancel := ctx, func() {}
	if db.Postgres() {
		connecting, cancel = context.WithTimeout(ctx, beginTimeout)
	}
	conn, err := pool.Conn(connecting)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	tx := &Tx{ctx: context.WithoutCancel(ctx), cancel: func() {}, db: db, conn: conn, began: time.Now()}
	tx.hooks = db.cfg.Hooks(tx)
	if db.Postgres() {
		tx.ctx, tx.cancel = context.WithTimeout(tx.ctx, postgresTransaction)
		return tx, nil
	}
	begun, err := conn.BeginTx(tx.ctx, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin: %w", err), conn.Close())
	}
	tx.began = time.Now()
	if tx.waited, err = sqlite.Waited(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("begin: %w", err), begun.Rollback(), conn.Close())
	}
	tx.preparedTx = db.prepared.in(begun)
	return tx, nil
}

// End commits or rolls back, and returns the connection. After errRolledBack the transaction
// has changed nothing; after another error of a commit, its outcome is unknown.
func (tx *Tx) End(commit bool) error {
	defer tx.cancel()
	if tx.begun == nil {
		return tx.conn.Close() // it has not begun
	}
	if !commit {
		err := tx.begun.Rollback()
		if errors.Is(err, sql.ErrTxDone) {
			err = nil // its time is over, and database/sql has rolled it back
		}
		if err != nil {
			err = fmt.Errorf("roll back: %w", err)
		}
		return errors.Join(err, tx.conn.Close())
	}
	err := tx.begun.Commit()
	cerr := tx.conn.Close()
	switch {
	case !tx.Postgres():
		return errors.Join(err, cerr)
	case err != nil:
		return committed(tx.db, tx.id, err)
	}
	// It may have read what another transaction wrote, and written nothing.
	if err := tx.db.Replicated(tx.ctx); err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return cerr
}

// lock begins a transaction on Postgres, with its lock, before its first members: one shared
// with other such transactions, or an exclusive one. Its time for changes begins then. If it returns an error, the
// transaction has ended. Errors: a *refusedError.
func (tx *Tx) lock(shared bool, first *Write) error {
	if !tx.Postgres() || tx.begun != nil {
		return nil
	}
	begun, id, err := beginLocked(tx.ctx, tx.conn, shared, func(b *pgx.Batch) { tx.hooks.Opening(b, first) })
	if err != nil {
		return errors.Join(err, tx.End(false))
	}
	tx.db.noteServer(id.life)
	tx.id, tx.preparedTx, tx.began = id, tx.db.prepared.in(begun), time.Now()
	if err := tx.hooks.Begun(tx.ctx, first.Batch); err != nil {
		return &refusedError{err}
	}
	return nil
}

// isFull reports whether the transaction accepts no more changes.
func (tx *Tx) isFull() bool {
	return tx.changes >= groupChanges || tx.changes > 0 && tx.isOver() // every transaction contains at least one
}

// isOver reports whether the time for changes is over.
func (tx *Tx) isOver() bool {
	spent := time.Since(tx.began)
	switch {
	case tx.hasBatch:
		return spent-tx.batchTook >= max(timeouts.GroupLeast, time.Duration(timeouts.GroupShare*float64(tx.batchTook)))
	default:
		return spent >= timeouts.Group
	}
}

// run runs members: one, or several of a kind, which it runs together as far as possible, and the rest one by
// one. It returns those for which the time was not enough. An error means that the transaction is lost; culprit is the
// member that caused it, if known.
func (tx *Tx) run(bunch []*Write) (left []*Write, culprit *Write, err error) {
	if len(bunch) > 1 {
		var rest []*Write
		err := tx.savepoint(func() (err error) {
			rest, err = bunch[0].Kind.Together(tx.ctx, tx, bunch)
			return err
		})
		if IsLost(err) {
			return nil, nil, err
		}
		if err == nil {
			bunch = rest
		}
	}
	for i, one := range bunch {
		if i > 0 && tx.isOver() {
			return bunch[i:], nil, nil
		}
		if err := tx.runOne(one); err != nil {
			return nil, one, err
		}
	}
	return nil, nil, nil
}

// runShared makes changes of a kind that is Shared in a transaction of their own, which needs no savepoint. It
// returns those that must be made one by one. After an error the transaction has ended.
func (tx *Tx) runShared(bunch []*Write) (rest []*Write, err error) {
	if err := tx.lock(true, bunch[0]); err != nil {
		return nil, err
	}
	if rest, err = bunch[0].Kind.Together(tx.ctx, tx, bunch); err == nil {
		err = tx.hooks.Committing(tx.ctx)
	}
	if err != nil {
		return nil, errors.Join(err, tx.End(false))
	}
	return rest, nil
}

// runOne runs a member, and undoes its writes if it fails. The member's own error is returned
// to its caller after the commit. runOne returns an error if the transaction is lost. A batch that is
// the first member needs no savepoint: if it fails, the transaction is lost, but nothing else is in it, and its
// caller gets the error after the rollback. On SQLite a savepoint copies each page that the batch changes, which took a tenth
// of a commit.
func (tx *Tx) runOne(one *Write) error {
	began := time.Now()
	first := one.Batch && tx.changes == 0
	scope := tx.savepoint
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
		if deadline, ok := tx.ctx.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
		}
		return one.Run(ctx, tx)
	})
	if one.Batch {
		tx.batchTook = time.Since(began)
	}
	if first || IsLost(one.err) {
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

// IsLost reports whether an error is or wraps a lostError.
func IsLost(err error) bool {
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
func (tx *Tx) savepoint(fn func() error) error {
	// A member's own ctx must not end between the savepoint and its release.
	ctx := tx.ctx
	if _, err := tx.ExecContext(ctx, setSavepoint); err != nil {
		return &lostError{err}
	}
	err := fn()
	if IsLost(err) {
		return err
	}
	if err != nil {
		if _, uerr := tx.ExecContext(ctx, undoSavepoint); uerr != nil {
			return &lostError{errors.Join(err, uerr)}
		}
	}
	if _, rerr := tx.ExecContext(ctx, releaseSavepoint); rerr != nil {
		return &lostError{errors.Join(err, rerr)}
	}
	return err
}

// GORM returns the transaction for gorm.
func (tx *Tx) GORM(ctx context.Context) *gorm.DB {
	db := tx.db.write.Session(&gorm.Session{NewDB: true, Context: ctx})
	db.Statement.ConnPool = tx.begun
	return db
}

// Hooks returns the hooks of the transaction.
func (tx *Tx) Hooks() Hooks { return tx.hooks }

// Postgres reports whether the database is on Postgres.
func (tx *Tx) Postgres() bool { return tx.db.Postgres() }

// ServerLife identifies the time between two crashes or restarts of the server of Postgres.
func (tx *Tx) ServerLife() string { return tx.id.life }
