package database

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"flashsale/order/store/postgres"
)

const (
	// writeQueue bounds the changes that wait for the writer: about a second's work.
	writeQueue = 8192
	// groupChanges is the maximum number of changes in one transaction.
	groupChanges = 256
	// maxBunch is how many changes of a kind are made together at most, because a batch has joined the transaction
	// or may arrive meanwhile. Beside another process, whose batches come in between, it is groupChanges.
	maxBunch = 40
	// besideFor is how long after a wait for another process that process is expected to write again.
	besideFor = time.Second
	// After a transaction of changes beside another process, which may be a worker that commits a sale's orders, the
	// writer pauses for yieldFactor times its duration, at most yieldMost.
	yieldFactor = 3
	yieldMost   = 50 * time.Millisecond
)

// writer runs writes, one transaction after the other. All writes that wait
// when a transaction begins join it, so the disk is synced once for all of them. A batch
// precedes all changes, and the time of the changes that join it is bounded: many
// payments do not stop a sale. A database on Postgres has two writers, one for batches and one
// for changes.
//
// No timer delays a batch, and there is no goroutine while nothing is waiting.
type writer struct {
	db    *DB
	limit int // of the changes that wait

	mu      sync.Mutex
	batches []*Write      // at most one per worker
	changes []*Write      // all other writes
	running chan struct{} // closed when the goroutine ends; nil: not running
	closed  bool
	stop    context.CancelFunc // cancels the wait for the connection
	life    context.Context

	waited     time.Time     // when a transaction last waited for another process; used by the goroutine
	yieldUntil time.Time     // when the next transaction without a batch may begin; used by the goroutine
	newBatch   chan struct{} // gets a value when a batch arrives; capacity 1
}

func newWriter(db *DB) *writer {
	life, stop := context.WithCancel(context.Background()) //nolint:forbidigo // it lives as long as the database is open
	return &writer{db: db, limit: writeQueue, life: life, stop: stop, newBatch: make(chan struct{}, 1)}
}

// do queues a write and waits for it. Run runs on the writer's goroutine.
func (w *writer) do(ctx context.Context, queue *[]*Write, own *Write) (*Tx, error) {
	own.done = make(chan struct{})
	if err := w.enqueue(ctx, queue, own); err != nil {
		return nil, err
	}
	select {
	case <-own.done:
	case <-ctx.Done():
		if w.withdraw(own) {
			return nil, fmt.Errorf("wait for the database: %w", context.Cause(ctx))
		}
		<-own.done
	}
	if own.panicked != nil {
		panic(own.panicked)
	}
	return own.tx, own.err
}

func (w *writer) enqueue(ctx context.Context, queue *[]*Write, own *Write) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return errClosed
	case len(*queue) >= w.limit:
		return ErrQueueFull
	}
	*queue = append(*queue, own)
	if own.Batch {
		select {
		case w.newBatch <- struct{}{}:
		default:
		}
	}
	if w.running == nil {
		w.running = make(chan struct{})
		go w.run(w.running)
	}
	return nil
}

// withdraw reports whether the write has not begun. Then it never will.
func (w *writer) withdraw(own *Write) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	own.abandoned = !own.begun
	return own.abandoned
}

// run writes until nothing is waiting.
func (w *writer) run(ended chan struct{}) {
	defer close(ended)
	for w.hasWaiting() {
		w.yield()
		tx, err := w.begin()
		if err != nil {
			w.refuse(err)
			continue
		}
		if bunch := w.popShared(); len(bunch) > 0 {
			w.transactShared(tx, bunch)
			continue
		}
		w.runSeparately(w.transact(tx, w.next))
	}
}

// yield waits until a transaction without a batch may begin, or a batch waits.
func (w *writer) yield() {
	left := time.Until(w.yieldUntil)
	if left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	for w.batchesWaiting() == 0 {
		select {
		case <-timer.C:
			return
		case <-w.newBatch:
		case <-w.life.Done():
			return
		}
	}
}

func (w *writer) batchesWaiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.batches)
}

// begin begins a transaction.
func (w *writer) begin() (*Tx, error) {
	// Each commit that is abandoned keeps a session of the server, so no other begins meanwhile.
	if err := w.db.Replicated(w.life); err != nil {
		return nil, err
	}
	tx, err := begin(w.life, w.db)
	if err != nil && postgres.RetryNow(err) {
		tx, err = begin(w.life, w.db) // a new connection was lost
	}
	if err != nil {
		return nil, err
	}
	if tx.waited {
		w.waited = tx.began
	}
	tx.beside = !w.waited.IsZero() && tx.began.Sub(w.waited) < besideFor
	return tx, nil
}

// hasWaiting reports whether any write is waiting. If not, the goroutine must end.
func (w *writer) hasWaiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.batches)+len(w.changes) > 0 {
		return true
	}
	w.running = nil
	return false
}

// popShared removes the oldest changes if their kind is Shared, on Postgres: there they have
// transactions of their own, because they need another lock than other changes.
func (w *writer) popShared() []*Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sharedNext() {
		return nil
	}
	first := pop(&w.changes)
	return append([]*Write{first}, w.popAlike(first, groupChanges-1)...)
}

// sharedNext reports whether the kind of the oldest change, on Postgres, is Shared. The caller holds the mutex.
func (w *writer) sharedNext() bool {
	for len(w.changes) > 0 && w.changes[0].abandoned {
		w.changes = w.changes[1:]
	}
	return w.db.Postgres() && len(w.batches) == 0 && len(w.changes) > 0 && w.changes[0].Kind != nil && w.changes[0].Kind.Shared
}

// next adds the next members to a transaction: a batch if there is one, else the oldest change,
// with others that can be made together with it. An empty result means that the transaction must be committed.
func (w *writer) next(tx *Tx) []*Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !tx.hasBatch {
		if one := pop(&w.batches); one != nil {
			tx.hasBatch = true
			return []*Write{one}
		}
	}
	if tx.isFull() || w.sharedNext() {
		return nil
	}
	first := pop(&w.changes)
	if first == nil {
		return nil
	}
	limit := groupChanges - tx.changes
	if tx.hasBatch || !tx.beside {
		limit = min(limit, maxBunch)
	}
	bunch := append([]*Write{first}, w.popAlike(first, limit-1)...)
	tx.changes += len(bunch)
	return bunch
}

// putBack lets changes wait again, before all others. They will be made one by one.
func (w *writer) putBack(changes []*Write) {
	if len(changes) == 0 {
		return
	}
	for _, one := range changes {
		one.Kind = nil
	}
	w.mu.Lock()
	closed := w.closed
	if !closed {
		w.changes = append(changes, w.changes...)
	}
	w.mu.Unlock()
	if closed {
		answerAll(changes, nil, errClosed)
	}
}

// popAlike removes up to n changes that can be made together with the first one. They overtake
// others, whose callers have no answer yet, so the changes are concurrent. The caller holds the
// mutex.
func (w *writer) popAlike(first *Write, n int) (more []*Write) {
	if first.Kind == nil {
		return nil
	}
	w.changes = slices.DeleteFunc(w.changes, func(one *Write) bool {
		if len(more) >= n || one.abandoned || one.Kind != first.Kind {
			return false
		}
		one.begun = true
		more = append(more, one)
		return true
	})
	return more
}

// pop removes the first write whose caller has not left. The caller holds the mutex.
func pop(queue *[]*Write) *Write {
	for len(*queue) > 0 {
		one := (*queue)[0]
		(*queue)[0] = nil
		*queue = (*queue)[1:]
		if !one.abandoned {
			one.begun = true
			return one
		}
	}
	*queue = nil
	return nil
}

// runSeparately runs writes in separate transactions, after their common transaction failed, so that
// one faulty write does not fail the others.
func (w *writer) runSeparately(rest []*Write) {
	for len(rest) > 0 {
		tx, err := w.begin()
		if err != nil {
			answerAll(rest, nil, err)
			return
		}
		took := false
		again := w.transact(tx, func(tx *Tx) []*Write {
			if took {
				return nil
			}
			took, tx.hasBatch = true, rest[0].Batch
			return rest[:1]
		})
		if len(again) == 0 {
			rest = rest[1:]
		}
	}
}

// refuse fails all waiting writes with an error, while no transaction can begin.
func (w *writer) refuse(err error) {
	w.mu.Lock()
	waiting := append(w.batches, w.changes...)
	w.batches, w.changes = nil, nil
	for _, one := range waiting {
		one.begun = true
	}
	w.mu.Unlock()
	for _, one := range waiting {
		one.answer(nil, err)
	}
}

// close refuses waiting and later writes, and waits for those that have begun.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	running := w.running
	w.mu.Unlock()
	w.refuse(errClosed)
	w.stop()
	if running != nil {
		<-running
	}
}

// transact runs a transaction of the writes that next returns, and notifies their
// callers. If the transaction failed before its commit, for a reason that may be the fault
// of one member, it returns the writes that must run again.
func (w *writer) transact(tx *Tx, next func(tx *Tx) []*Write) (rest []*Write) {
	var members []*Write
	for bunch := next(tx); len(bunch) > 0; bunch = next(tx) {
		members = append(members, bunch...)
		first := bunch[0]
		if err := tx.lock(first.Batch && !first.Sole, first); err != nil {
			var refused *refusedError
			switch {
			case errors.Is(err, ErrRunAgain):
				return members
			case !errors.As(err, &refused) && postgres.RetryNow(err):
				return w.unanswered(members, err)
			}
			// No member is at fault. Each of them would wait as long again.
			answerAll(members, nil, err)
			return nil
		}
		left, culprit, err := tx.run(bunch)
		if err == nil {
			members = slices.DeleteFunc(members, func(one *Write) bool { return slices.Contains(left, one) })
			w.putBack(left)
			continue
		}
		err = errors.Join(err, tx.End(false))
		if culprit != nil && !culprit.mustRepeat(err) {
			culprit.answer(nil, err)
			members = slices.DeleteFunc(members, func(one *Write) bool { return one == culprit })
		}
		return members
	}
	if err := tx.hooks.Committing(tx.ctx); err != nil {
		return w.unanswered(members, errors.Join(err, tx.End(false)))
	}
	if err := tx.End(true); errors.Is(err, errRolledBack) {
		return w.unanswered(members, err)
	} else if err != nil {
		answerAll(members, nil, fmt.Errorf("commit: %w", err))
		return nil
	}
	if now := time.Now(); tx.beside && !tx.hasBatch {
		w.yieldUntil = now.Add(min(yieldFactor*now.Sub(tx.began), yieldMost))
	}
	tx.hooks.Committed()
	answerAll(members, tx, nil)
	boundWAL(w.life, w.db)
	return nil
}

// unanswered returns the members of a transaction that was rolled back which must run again:
// several, because the fault may be that of one, or one whose error RetryNow accepts.
// Otherwise it notifies the caller.
func (w *writer) unanswered(members []*Write, err error) []*Write {
	if len(members) > 1 || len(members) == 1 && members[0].mustRepeat(err) {
		return members
	}
	answerAll(members, nil, err)
	return nil
}

// transactShared runs a transaction of changes of a kind that is Shared, on Postgres. Those that cannot be made
// together wait again, all of them if the transaction fails, unless others would fail likewise.
func (w *writer) transactShared(tx *Tx, bunch []*Write) {
	rest, err := tx.runShared(bunch)
	if err != nil {
		if Transient(err) && !postgres.RetryNow(err) && !errors.Is(err, ErrRunAgain) {
			answerAll(bunch, nil, err)
		} else {
			w.putBack(bunch)
		}
		return
	}
	switch err := tx.End(true); {
	case errors.Is(err, errRolledBack):
		w.putBack(bunch)
	case err != nil:
		answerAll(bunch, nil, fmt.Errorf("commit: %w", err))
	default:
		tx.hooks.Committed()
		answerAll(slices.DeleteFunc(bunch, func(one *Write) bool { return slices.Contains(rest, one) }), tx, nil)
		w.putBack(rest)
	}
}
