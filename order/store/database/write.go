package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"flashsale/order/store/postgres"
	"flashsale/order/timeouts"
)

// errClosed says that the database was closed before the write began.
var errClosed = fmt.Errorf("order: the database is closed: %w", sql.ErrConnDone)

// ErrQueueFull means that too many changes wait for the database. Nothing was changed.
var ErrQueueFull = errors.New("order: too many changes wait for the database")

// Write is one unit of work, to be passed to [DB.Do] once. A transaction contains all of it or nothing.
type Write struct {
	// Run makes the changes. It may run twice; the changes of a failed run are rolled back.
	Run func(ctx context.Context, tx *Tx) error
	// Batch precedes all changes, which are the writes without it. A transaction has at most one.
	// On Postgres, batches of several processes run concurrently, except those that are Sole.
	Batch, Sole bool
	// Kind is set for a change that can be made together with others of the same kind.
	Kind *Kind
	// Value is what the functions of Kind and Hooks know of the write.
	Value any

	ctx       context.Context // of its statements
	tries     int             // how often it has failed for the state of the database
	begun     bool            // guarded by the writer's mutex
	abandoned bool            // its caller has left before it began; guarded likewise

	// Set before done is closed.
	err      error
	panicked any
	tx       *Tx
	done     chan struct{}
}

// Kind is a kind of change of which several can be made by fewer statements than one by one.
type Kind struct {
	// Together makes several of them, and returns those that must be made one by one. If it fails, all are.
	Together func(ctx context.Context, tx *Tx, bunch []*Write) (rest []*Write, err error)
	// Shared is whether several of them, on Postgres, share the lock with batches. They have a transaction
	// of their own. One by one, they exclude everything else like other changes.
	Shared bool
}

// Do runs a write, and waits for its commit. All writes that wait share a transaction. If ctx ends
// before a change has begun, it never runs, and the error is that of ctx. A change that has begun, and
// any batch, is finished, because the outcome of a cancelled transaction is unknown. Do returns the
// transaction that committed the write. Errors: ErrQueueFull.
func (db *DB) Do(ctx context.Context, own *Write) (*Tx, error) {
	// A statement whose context can end costs a goroutine.
	own.ctx = context.WithoutCancel(ctx)
	if own.Batch {
		return db.batchWriter.do(own.ctx, &db.batchWriter.batches, own)
	}
	ctx, cancel := context.WithTimeout(ctx, timeouts.Write)
	defer cancel()
	return db.changeWriter.do(ctx, &db.changeWriter.changes, own)
}

// Waiting returns the number of batches and changes that have not begun.
func (db *DB) Waiting() (batches, changes int) {
	db.batchWriter.mu.Lock()
	batches = len(db.batchWriter.batches)
	db.batchWriter.mu.Unlock()
	db.changeWriter.mu.Lock()
	defer db.changeWriter.mu.Unlock()
	return batches, len(db.changeWriter.changes)
}

func (own *Write) answer(tx *Tx, err error) {
	if err != nil {
		own.err = err
	}
	own.tx = tx
	close(own.done)
}

// writeTries bounds the runs of a write that fails for reasons that pass at once.
const writeTries = 3

// mustRepeat reports whether the write must run again after an error: because of a concurrent
// transaction, or because the connection was lost before the commit.
func (own *Write) mustRepeat(err error) bool {
	if own.tries++; own.tries >= writeTries {
		return false
	}
	return postgres.RetryNow(err)
}

func answerAll(members []*Write, tx *Tx, err error) {
	for _, one := range members {
		one.answer(tx, err)
	}
}
