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

// group is one transaction of the writer. Each member runs in a savepoint of it.
type group struct {
	preparedTx
	ctx   context.Context
	store *Store
	conn  *sql.Conn
	box   *Outbox // the events of all members; nil: none has opened it
	noted sync.Once

	batch   bool // it contains a batch of orders
	changes int  // the number of changes in it
	began   time.Time
	took    time.Duration // by the batch
}

// begin begins a transaction. ctx bounds only the wait for the connection; SQLite's busy
// timeout bounds the wait for the lock.
func begin(ctx context.Context, s *Store) (*group, error) {
	db, err := s.write.DB()
	if err != nil {
		return nil, err
	}
	if err := s.hot.prepare(ctx, db); err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	ctx = context.WithoutCancel(ctx)
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin: %w", err), conn.Close())
	}
	return &group{preparedTx: s.hot.in(tx), ctx: ctx, store: s, conn: conn, began: time.Now()}, nil
}

// end commits or rolls back, and returns the connection.
func (g *group) end(commit bool) error {
	var err error
	if commit {
		err = g.tx.Commit()
	} else if err = g.tx.Rollback(); err != nil {
		err = fmt.Errorf("roll back: %w", err)
	}
	return errors.Join(err, g.conn.Close())
}

// full reports whether the group accepts no more changes.
func (g *group) full() bool {
	spent := time.Since(g.began)
	switch {
	case g.changes == 0:
		return false // every transaction contains at least one
	case g.changes >= groupChanges:
		return true
	case g.batch:
		return spent-g.took >= max(timeouts.GroupLeast, time.Duration(timeouts.GroupShare*float64(g.took)))
	default:
		return spent >= timeouts.Group
	}
}

// run runs members: one, or several payments, which it runs together and, if that fails,
// one by one. An error means that the transaction is lost; culprit is the member that
// caused it, if known.
func (g *group) run(bunch []*write) (culprit *write, err error) {
	if len(bunch) > 1 {
		err := g.savepoint(g.ctx, func() error { return g.payAll(bunch) })
		var lost *lostError
		if err == nil || errors.As(err, &lost) {
			return nil, err
		}
	}
	for _, one := range bunch {
		if err := g.runOne(one); err != nil {
			return one, err
		}
	}
	return nil, nil
}

// runOne runs a member, and undoes its writes if it fails. The member's own error is returned
// to its caller after the commit. runOne returns an error if the transaction is lost.
func (g *group) runOne(one *write) error {
	began := time.Now()
	one.err = g.savepoint(g.ctx, func() (err error) {
		defer func() {
			if one.panicked = recover(); one.panicked != nil {
				err = errPanicked
			}
		}()
		return one.fn(one.ctx, g)
	})
	if one.batch {
		g.took = time.Since(began)
	}
	var lost *lostError
	if errors.As(one.err, &lost) {
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
func (g *group) savepoint(ctx context.Context, fn func() error) error {
	// ctx must not end between the savepoint and its release.
	ctx = context.WithoutCancel(ctx)
	if _, err := g.ExecContext(ctx, setSavepoint); err != nil {
		return &lostError{err}
	}
	err := fn()
	var lost *lostError
	if errors.As(err, &lost) {
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

// telling runs fn with its own outbox, whose events move to the group's outbox once fn has
// succeeded.
func (g *group) telling(ctx context.Context, fn func(box *Outbox) error) error {
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

// write writes the events of all members.
func (g *group) write() error {
	if g.box == nil {
		return nil
	}
	g.box.Now = g.store.now().UnixMilli()
	if err := g.box.bump(g.ctx, g); err != nil {
		return err
	}
	return g.box.write(g.ctx, g)
}

// orm returns the transaction for gorm.
func (g *group) orm(ctx context.Context) *gorm.DB {
	db := g.store.write.Session(&gorm.Session{NewDB: true, Context: ctx})
	db.Statement.ConnPool = g.tx
	return db
}
