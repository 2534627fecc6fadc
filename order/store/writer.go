package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"flashsale/inventory"
	"flashsale/order/store/postgres"
	"flashsale/order/timeouts"
)

const (
	// writeQueue bounds the changes that wait for the writer: about a second's work.
	writeQueue = 8192
	// groupChanges is the maximum number of changes in one transaction.
	groupChanges = 256
	// maxBunch is how many payments, or cancellations, are made by the same statements at most.
	maxBunch = 40
)

// errClosed says that the store was closed before the write began.
var errClosed = fmt.Errorf("order: the database is closed: %w", sql.ErrConnDone)

// errQueueFull says that too many changes wait for the database. Nothing was changed.
var errQueueFull = fmt.Errorf("order: too many changes wait for the database: %w", inventory.ErrOverloaded)

// writer runs writes of a store, one transaction after the other. All writes that wait
// when a transaction begins join it, so the disk is synced once for all of them. A batch of
// orders precedes all changes, and the time of the changes that join it is bounded: many
// payments do not stop a sale. A store on Postgres has two writers, one for batches and one
// for changes.
//
// There is no timer, and no goroutine while nothing is waiting.
type writer struct {
	store *Store
	limit int // of the changes that wait

	mu      sync.Mutex
	batches []*write      // of orders; at most one per worker
	changes []*write      // all other writes
	running chan struct{} // closed when the goroutine ends; nil: not running
	closed  bool
	stop    context.CancelFunc // cancels the wait for the connection
	life    context.Context
}

// write is one unit of work. A transaction contains all of it or nothing.
type write struct {
	ctx     context.Context // of its statements
	fn      func(ctx context.Context, g *group) error
	isBatch bool     // of orders
	sole    bool     // a batch that excludes others
	items   []string // of a batch
	tries   int      // how often it has failed for the state of the database
	// A payment or a cancellation that can be made together with others of its kind; nil: it is
	// none.
	pay    *payment
	cancel *cancellation

	begun     bool // guarded by the writer's mutex
	abandoned bool // its caller has left before it began; guarded likewise

	// Set before done is closed.
	err      error
	panicked any
	group    *group
	done     chan struct{}
}

func newWriter(s *Store) *writer {
	life, stop := context.WithCancel(context.Background()) //nolint:forbidigo // it lives as long as the store
	return &writer{store: s, limit: writeQueue, life: life, stop: stop}
}

// batch runs fn for a batch of orders of these items, and waits for its commit even if ctx ends.
// On Postgres, batches of several processes run concurrently, unless one is sole.
func (w *writer) batch(ctx context.Context, sole bool, items []string, fn func(ctx context.Context, g *group) error) error {
	ctx = context.WithoutCancel(ctx)
	_, err := w.do(ctx, &w.batches, &write{ctx: ctx, fn: fn, isBatch: true, sole: sole, items: items})
	return err
}

// change runs own.fn. If ctx ends before it has begun, it never runs, and the error is that
// of ctx. A change that has begun is finished, because the outcome of a cancelled
// transaction is unknown. fn may run twice; the writes of a failed run are rolled back. The
// returned group is the one that committed the change.
func (w *writer) change(ctx context.Context, own *write) (*group, error) {
	// A statement whose context can end costs a goroutine.
	own.ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, timeouts.Write)
	defer cancel()
	return w.do(ctx, &w.changes, own)
}

// do queues a write and waits for it. Its fn runs on the writer's goroutine.
func (w *writer) do(ctx context.Context, queue *[]*write, own *write) (*group, error) {
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
	return own.group, own.err
}

func (w *writer) enqueue(ctx context.Context, queue *[]*write, own *write) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return errClosed
	case len(*queue) >= w.limit:
		return errQueueFull
	}
	*queue = append(*queue, own)
	if w.running == nil {
		w.running = make(chan struct{})
		go w.run(w.running)
	}
	return nil
}

// withdraw reports whether the write has not begun. Then it never will.
func (w *writer) withdraw(own *write) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	own.abandoned = !own.begun
	return own.abandoned
}

// run writes until nothing is waiting.
func (w *writer) run(ended chan struct{}) {
	defer close(ended)
	for w.hasWaiting() {
		g, err := w.begin()
		if err != nil {
			w.refuse(err)
			continue
		}
		if bunch := w.popPayments(); len(bunch) > 0 {
			w.pay(g, bunch)
			continue
		}
		w.runSeparately(w.transact(g, w.next))
	}
}

// begin begins a transaction.
func (w *writer) begin() (*group, error) {
	// Each commit that is abandoned keeps a session of the server, so no other begins meanwhile.
	if err := w.store.Replicated(w.life); err != nil {
		return nil, err
	}
	g, err := begin(w.life, w.store)
	if err != nil && postgres.RetryNow(err) {
		g, err = begin(w.life, w.store) // a new connection was lost
	}
	return g, err
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

// withTimeout returns a change with a timeout for its statements.
func withTimeout(limit time.Duration, fn func(ctx context.Context, g *group) error) *write {
	return &write{fn: func(ctx context.Context, g *group) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return fn(ctx, g)
	}}
}

// popPayments removes the oldest changes if they are payments, on Postgres: there they have transactions of
// their own, because they need another lock than other changes.
func (w *writer) popPayments() []*write {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.paymentNext() {
		return nil
	}
	first := pop(&w.changes)
	return append([]*write{first}, w.popAlike(first, groupChanges-1)...)
}

// paymentNext reports whether a payment on Postgres is the oldest change. The caller holds the mutex.
func (w *writer) paymentNext() bool {
	for len(w.changes) > 0 && w.changes[0].abandoned {
		w.changes = w.changes[1:]
	}
	return w.store.Postgres() && len(w.batches) == 0 && len(w.changes) > 0 && w.changes[0].pay != nil
}

// next adds the next members to a transaction: a batch if there is one, else the oldest change,
// with others that can be made together with it. An empty result means that the transaction must be committed.
func (w *writer) next(g *group) []*write {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !g.hasBatch {
		if one := pop(&w.batches); one != nil {
			g.hasBatch = true
			return []*write{one}
		}
	}
	if g.isFull() || w.paymentNext() {
		return nil
	}
	first := pop(&w.changes)
	if first == nil {
		return nil
	}
	bunch := append([]*write{first}, w.popAlike(first, min(maxBunch, groupChanges-g.changes)-1)...)
	g.changes += len(bunch)
	return bunch
}

// putBack lets payments wait again, before all other changes. They will be recorded one by one, while
// nothing else writes.
func (w *writer) putBack(payments []*write) {
	if len(payments) == 0 {
		return
	}
	for _, one := range payments {
		one.pay = nil
	}
	w.mu.Lock()
	closed := w.closed
	if !closed {
		w.changes = append(payments, w.changes...)
	}
	w.mu.Unlock()
	if closed {
		answerAll(payments, nil, errClosed)
	}
}

// popAlike removes up to n changes that can be made together with the first one. They overtake
// others, whose callers have no answer yet, so the changes are concurrent. The caller holds the
// mutex.
func (w *writer) popAlike(first *write, n int) (more []*write) {
	if first.pay == nil && first.cancel == nil {
		return nil
	}
	w.changes = slices.DeleteFunc(w.changes, func(one *write) bool {
		if len(more) >= n || one.abandoned || (one.pay == nil) != (first.pay == nil) || (one.cancel == nil) != (first.cancel == nil) {
			return false
		}
		one.begun = true
		more = append(more, one)
		return true
	})
	return more
}

// pop removes the first write whose caller has not left. The caller holds the mutex.
func pop(queue *[]*write) *write {
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
func (w *writer) runSeparately(rest []*write) {
	for len(rest) > 0 {
		g, err := w.begin()
		if err != nil {
			answerAll(rest, nil, err)
			return
		}
		took := false
		again := w.transact(g, func(*group) []*write {
			if took {
				return nil
			}
			took = true
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

func (own *write) answer(g *group, err error) {
	if err != nil {
		own.err = err
	}
	own.group = g
	close(own.done)
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
func (w *writer) transact(g *group, next func(g *group) []*write) (rest []*write) {
	var members []*write
	for bunch := next(g); len(bunch) > 0; bunch = next(g) {
		members = append(members, bunch...)
		first := bunch[0]
		if err := g.lock(first.isBatch && !first.sole, first.items...); err != nil {
			// No member is at fault. Each of them would wait as long again.
			if err = errors.Join(err, g.end(false)); postgres.RetryNow(err) {
				return w.unanswered(members, err)
			}
			answerAll(members, nil, err)
			return nil
		}
		if err := g.compareServer(); err != nil {
			if errors.Is(err, errMarked) && !first.isBatch {
				return members // changes check themselves which sales are stopped
			}
			answerAll(members, nil, err)
			return nil
		}
		culprit, err := g.run(bunch)
		if err == nil {
			continue
		}
		err = errors.Join(err, g.end(false))
		if culprit != nil && !culprit.mustRepeat(err) {
			culprit.answer(nil, err)
			members = slices.DeleteFunc(members, func(one *write) bool { return one == culprit })
		}
		return members
	}
	if err := g.writeEvents(); err != nil {
		return w.unanswered(members, errors.Join(err, g.end(false)))
	}
	if err := g.end(true); errors.Is(err, errRolledBack) {
		return w.unanswered(members, err)
	} else if err != nil {
		answerAll(members, nil, fmt.Errorf("commit: %w", err))
		return nil
	}
	w.store.Announce(g.box)
	answerAll(members, g, nil)
	boundWAL(w.life, w.store)
	return nil
}

// unanswered returns the members of a transaction that was rolled back which must run again:
// several, because the fault may be that of one, or one whose error RetryNow accepts.
// Otherwise it notifies the caller.
func (w *writer) unanswered(members []*write, err error) []*write {
	if len(members) > 1 || len(members) == 1 && members[0].mustRepeat(err) {
		return members
	}
	answerAll(members, nil, err)
	return nil
}

// pay records payments together, on Postgres. Those for which that is not possible wait again, all of them if
// the transaction fails, unless others would fail likewise.
func (w *writer) pay(g *group, payments []*write) {
	rest, err := g.payTogether(payments)
	if err != nil {
		if Transient(err) && !postgres.RetryNow(err) && !errors.Is(err, errMarked) {
			answerAll(payments, nil, err)
		} else {
			w.putBack(payments)
		}
		return
	}
	switch err := g.end(true); {
	case errors.Is(err, errRolledBack):
		w.putBack(payments)
	case err != nil:
		answerAll(payments, nil, fmt.Errorf("commit: %w", err))
	default:
		w.store.Announce(g.box)
		answerAll(slices.DeleteFunc(payments, func(one *write) bool { return slices.Contains(rest, one) }), g, nil)
		w.putBack(rest)
	}
}

// writeTries bounds the runs of a write that fails for reasons that pass at once.
const writeTries = 3

// mustRepeat reports whether the write must run again after an error: because of a concurrent
// transaction, or because the connection was lost before the commit.
func (own *write) mustRepeat(err error) bool {
	if own.tries++; own.tries >= writeTries {
		return false
	}
	return postgres.RetryNow(err)
}

func answerAll(members []*write, g *group, err error) {
	for _, one := range members {
		one.answer(g, err)
	}
}
