// Package worker commits the orders that wait in the queue and expires those that were not
// paid. Its sweeper finishes what a dead process has left behind. It also shows the state
// of the queues and of the workers.
package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/faultpoint"
	"flashsale/internal/pause"
	"flashsale/internal/plural"
	"flashsale/internal/tracing"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/release"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
	"flashsale/queue"
)

// Bounds of the pauses between attempts of the database and the subscription.
const (
	commitRetryMin = 10 * time.Millisecond
	commitRetryMax = 500 * time.Millisecond
)

// giveUpAfter is the default of Fulfiller.giveUpAfter. It is twice as long as a write waits for a
// lock of the database, so a database that is only locked is tried several times.
const giveUpAfter = 10 * time.Second

// failingFor is how long a worker counts as failing after it has given up a batch. While orders
// wait, it tries several batches in that time, and none of them takes as long. Without orders, it
// is no longer failing.
const failingFor = 30 * time.Second

// holdFor is how long a failing worker fetches nothing after each attempt, so that others get the
// tasks that it has returned.
const holdFor = 2 * time.Second

// ErrReturned is reported when a worker returns the tasks of a batch to the queue because its writes keep failing.
var ErrReturned = errors.New("order: returned to the queue")

// Fulfiller handles the tasks of orders: it commits purchases, notifies the API processes
// that wait for them, and expires orders that were not paid in time.
type Fulfiller struct {
	store          *store.Store
	rdb            redis.UniversalClient
	local          *checkout.Waiters
	onError        func(error)
	Releaser       *release.Releaser
	changeNotifier *checkout.ChangeNotifier
	// partitions is the number of partitions of the items.
	partitions int
	Queued     []Membership // one per partition; nil: see invalidateUncounted
	// committed is called with the size of every committed batch.
	committed func(orders int)
	steps     Steps
	observer  Observer
	tracer    *tracing.Tracer // nil: no traces
	// giveUpAfter is how long the writes of a batch may fail before its tasks are returned to the
	// queue: the cause may be in this process or on its host, and another worker can write.
	giveUpAfter time.Duration
	gaveUp      atomic.Pointer[time.Time] // when a batch was last given up; nil: a transaction has written since
}

// Observer is notified of what becomes of each order. A nil function is not called.
type Observer struct {
	// Committed gets a committed order, confirmed or rejected.
	Committed func(t *order.Task, out *order.Outcome)
	// Failed gets an order that could not be committed in an attempt.
	Failed func(Failure)
}

// Failure is a failed attempt to commit an order.
type Failure struct {
	OrderID, RequestID string // both empty: the task cannot be read, or its worker died
	TaskID             string
	Attempt            int
	// Dead means that the order's task is now a dead letter; otherwise it is retried.
	Dead bool
	Err  error
}

// Steps observe how long orders take. They are called with the number of orders of a task.
type Steps struct {
	// Queued gets how long a leased task had been ready.
	Queued func(orders int, waited time.Duration)
	// Committed gets the time from the fetch of a task to the commit of its orders.
	Committed func(orders int, took time.Duration)
}

// NewFulfiller returns a Fulfiller. local is the set of waiting requests of this process,
// or nil in a process without an API. onError receives errors that are retried, and ErrReturned.
func NewFulfiller(store *store.Store, rdb redis.UniversalClient, local *checkout.Waiters, onError func(error), options ...FulfillerOption) *Fulfiller {
	f := &Fulfiller{store: store, rdb: rdb, local: local, onError: onError, committed: func(int) {}, partitions: 1, giveUpAfter: giveUpAfter}
	f.steps = Steps{Queued: func(int, time.Duration) {}, Committed: func(int, time.Duration) {}}
	for _, set := range options {
		set(f)
	}
	f.changeNotifier = checkout.NewChangeNotifier(rdb, onError)
	f.Releaser = release.New(store, rdb, f.partitions, nil, onError)
	return f
}

// FulfillerOption sets an optional part of a Fulfiller.
type FulfillerOption func(*Fulfiller)

// WithPartitions sets the number of partitions of the items. Default 1.
func WithPartitions(n int) FulfillerOption {
	return func(f *Fulfiller) { f.partitions = n }
}

// WithCommits makes the Fulfiller report the size of every committed batch.
func WithCommits(fn func(orders int)) FulfillerOption {
	return func(f *Fulfiller) { f.committed = fn }
}

// WithObserver makes the Fulfiller report what becomes of orders.
func WithObserver(o Observer) FulfillerOption {
	return func(f *Fulfiller) { f.observer = o }
}

// WithTracer makes the Fulfiller trace the orders of sampled purchases. A nil tracer traces none.
func WithTracer(t *tracing.Tracer) FulfillerOption {
	return func(f *Fulfiller) { f.tracer = t }
}

// WithSteps makes the Fulfiller report how long orders take. Both functions are required.
func WithSteps(s Steps) FulfillerOption {
	return func(f *Fulfiller) { f.steps = s }
}

// errTaskType says that this program does not support a type of task. A newer version may
// be running beside it.
var errTaskType = errors.New("order: unknown type of task")

// Handle is the queue's batch handler. It commits all purchases in one transaction,
// publishes one message per API process, and then expires orders in one transaction. While
// the database cannot write, it waits and keeps its leases, so the worker fetches no more; after
// giveUpAfter it returns the tasks to the queue. An order that breaks the transaction is found by halving, and only that
// one fails: if its task has others, it continues in a task of its own.
//
// Tasks that are handled again have their own transactions, after those of the others: an order
// that broke one transaction usually breaks the next, too.
func (f *Fulfiller) Handle(ctx context.Context, leased []queue.Leased) []error {
	faultpoint.Reach("order.leased")
	errs := make([]error, len(leased))
	var first, again work
	for i := range leased {
		l, w := &leased[i], &first
		if handledBefore(l) {
			w = &again
		}
		switch {
		case order.IsPurchase(l.Type):
			f.steps.Queued(max(l.Entries, 1), l.Waited)
			errs[i] = w.purchases.add(l, i, f.store.HighWater())
		case l.Type == order.ExpiryType:
			errs[i] = w.expiries.add(l, i)
		default:
			errs[i] = fmt.Errorf("%w: %q", errTaskType, l.Type)
		}
	}
	f.handle(ctx, &first, errs)
	f.handle(ctx, &again, errs)
	return errs
}

// handledBefore reports whether an attempt at a task, or at the parcel from which it was split
// off, has failed or ended with its worker.
func handledBefore(l *queue.Leased) bool { return l.Attempt > 1 || l.Type == order.PurchaseType }

// work is the part of a batch of tasks that shares transactions.
type work struct {
	purchases purchases
	expiries  expiries
}

// handle handles tasks and notes the verdicts on them.
func (f *Fulfiller) handle(ctx context.Context, w *work, errs []error) {
	p := &w.purchases
	f.fulfil(ctx, p.orders, p.results)
	for i := range p.tasks {
		t := &p.tasks[i]
		errs[t.index] = t.verdict(p.orders, p.results)
		f.splitOff(t, p.results)
	}
	f.expire(ctx, w.expiries.ids, func(i int, err error) { w.expiries.setVerdict(errs, i, err) })
}

// purchases are the orders of a batch of tasks.
type purchases struct {
	orders  []order.Task
	results []orderResult // of each order
	tasks   []purchaseTask
}

// orderResult is what becomes of an order after the attempt to commit it.
type orderResult struct {
	leased    *queue.Leased // the order's task
	expiresAt int64         // the order expires then unless it is paid; 0: it does not
	poison    error         // the order itself cannot be committed
	retry     error         // the whole task is to be handled again
}

// purchaseTask is a leased task and where its orders are.
type purchaseTask struct {
	leased   *queue.Leased
	index    int              // in the batch
	from, to int              // of purchases.orders
	accepted []accepted.Order // in that order, and then those that cannot be read
	broken   []error          // of the latter
}

// add adds a task, or returns its verdict if none of its orders can be committed now.
func (p *purchases) add(l *queue.Leased, index int, stopped *store.HighWater) error {
	t := purchaseTask{leased: l, index: index, from: len(p.orders)}
	var unreadable []accepted.Order
	for _, a := range accepted.OrdersOf(l.ID, l.Payload) {
		o, err := order.ParseAccepted(a)
		if err != nil {
			unreadable, t.broken = append(unreadable, a), append(t.broken, err)
			continue
		}
		p.orders, t.accepted = append(p.orders, o), append(t.accepted, a)
	}
	t.to = len(p.orders)
	switch {
	case t.from == t.to:
		return queue.Discard(errors.Join(t.broken...))
	case stopped.IsStopped(p.orders[t.from].ItemID): // all orders of a task are for one item
		p.orders = p.orders[:t.from]
		return queue.Snooze(store.StoppedPause())
	}
	for range t.to - t.from {
		p.results = append(p.results, orderResult{leased: l})
	}
	t.accepted = append(t.accepted, unreadable...)
	p.tasks = append(p.tasks, t)
	return nil
}

// verdict returns what the queue is to do with a task. If some of its orders have failed and
// others have not, those are split off: they get tasks of their own.
func (t *purchaseTask) verdict(orders []order.Task, results []orderResult) error {
	var expire []string
	var expiresAt int64
	var apart []queue.Task
	for i := t.from; i < t.to; i++ {
		switch o := &results[i]; {
		case o.retry != nil:
			return o.retry
		case o.poison != nil && len(t.accepted) == 1:
			return o.poison
		case o.poison != nil:
			apart = append(apart, single(t.accepted[i-t.from]))
		case o.expiresAt > 0:
			expire = append(expire, orders[i].ID)
			if expiresAt == 0 || o.expiresAt < expiresAt {
				expiresAt = o.expiresAt
			}
		}
	}
	for i := range t.broken {
		apart = append(apart, single(t.accepted[t.to-t.from+i]))
	}
	var next []queue.Task
	if len(expire) > 0 {
		next = []queue.Task{order.ExpiryTask(t.leased.ID, orders[t.from].ItemID, expiresAt, expire...)}
	}
	switch {
	case len(apart) > 0:
		return queue.Split(apart, next...)
	case len(next) > 0:
		return queue.Then(next...)
	}
	return nil
}

func single(a accepted.Order) queue.Task {
	id, payload := accepted.SingleTask(a)
	return queue.Task{ID: id, Payload: payload}
}

// fulfil commits orders and notes their results.
func (f *Fulfiller) fulfil(ctx context.Context, tasks []order.Task, results []orderResult) {
	if len(tasks) == 0 {
		return
	}
	var out []order.Outcome
	err := f.persist(ctx, func() (wrote bool, err error) {
		out, err = f.store.Commit(ctx, tasks) // raises at least the revisions of the items
		return true, order.About(err, tasks)
	})
	switch {
	case err == nil:
		at := time.Now()
		faultpoint.Reach("order.committed")
		f.committed(len(tasks))
		f.measure(results, at)
		f.observe(tasks, out)
		if f.tracer != nil {
			f.trace(tasks, results, out, at)
		}
		unchecked := f.invalidateUncounted(ctx, tasks)
		notInvalidated := f.invalidate(ctx, tasks, out)
		f.notify(ctx, tasks, out, at)
		for i := range tasks {
			switch o := &out[i]; {
			case o.Status == order.StatusRejected && notInvalidated != nil:
				results[i].retry = notInvalidated
			case unchecked[tasks[i].ID] != nil:
				results[i].retry = unchecked[tasks[i].ID]
			case o.Status == order.StatusConfirmed:
				results[i].expiresAt = o.ExpiresAt
			}
		}
	case errors.Is(err, store.ErrServerChanged), database.Transient(err):
		for i := range tasks {
			results[i].retry = queue.Return(err)
		}
	case len(tasks) == 1:
		results[0].poison = err
		if f.tracer != nil {
			f.traceFailure(&tasks[0], results[0].leased, err)
		}
	default:
		half := len(tasks) / 2
		f.fulfil(ctx, tasks[:half], results[:half])
		f.fulfil(ctx, tasks[half:], results[half:])
	}
}

// measure reports how long the commit of these orders took.
func (f *Fulfiller) measure(results []orderResult, at time.Time) {
	for from := 0; from < len(results); {
		l, to := results[from].leased, from+1
		for to < len(results) && results[to].leased == l {
			to++
		}
		f.steps.Committed(to-from, at.Sub(l.FetchedAt))
		from = to
	}
}

// persist retries until the database has committed the rows, or ctx ends, or the writes have
// failed for giveUpAfter. A failing worker tries once. Tasks of the first write on another server
// are fetched again, because their sales may be stopped now. After a transient error the tasks are
// to be returned to the queue. try reports whether its transaction has written anything: one that
// only reads, such as the expiry of orders that are paid, succeeds although the disk refuses writes.
func (f *Fulfiller) persist(ctx context.Context, try func() (wrote bool, err error)) error {
	began := time.Now()
	for wait := commitRetryMin; ; wait = min(2*wait, commitRetryMax) {
		wrote, err := try()
		if err == nil {
			if wrote {
				f.gaveUp.Store(nil)
			}
			return nil
		}
		if errors.Is(err, store.ErrServerChanged) || !database.Transient(err) || ctx.Err() != nil {
			return err
		}
		if now := time.Now(); f.Failing() || now.Sub(began) >= f.giveUpAfter {
			f.gaveUp.Store(&now)
			f.onError(fmt.Errorf("commit batch failed: %w: %w", ErrReturned, err))
			return err
		}
		f.onError(fmt.Errorf("commit batch failed, retrying: %w", err))
		if !pause.Jittered(ctx, wait) {
			return err
		}
	}
}

// Failing reports whether this worker has given up a batch in the last 30 seconds, and no
// transaction has written anything since. Such a worker does not commit orders, although it fetches them.
func (f *Fulfiller) Failing() bool {
	at := f.gaveUp.Load()
	return at != nil && time.Since(*at) < failingFor
}

// hold is queue.RunConfig.Hold.
func (f *Fulfiller) hold() time.Duration {
	if !f.Failing() {
		return 0
	}
	return holdFor/2 + rand.N(holdFor/2)
}

// invalidate drops the sales of items of which the database refused an order. The refusal
// shows that Redis has wrong counts, because of lost or old data. If the sale stayed, the
// units taken for the refused order would never be released, and more orders would be
// refused. After an error the refused tasks must be retried. A refused order that was
// rejected as a dead letter before proves nothing about Redis: its units were released
// then.
func (f *Fulfiller) invalidate(ctx context.Context, tasks []order.Task, out []order.Outcome) error {
	var items []string
	var refused []order.Task
	for i := range tasks {
		if out[i].Status != order.StatusRejected || out[i].Reason == order.ReasonFailed {
			continue
		}
		refused = append(refused, tasks[i])
		if !slices.Contains(items, tasks[i].ItemID) {
			items = append(items, tasks[i].ItemID)
		}
	}
	if len(items) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Notify)
	defer cancel()
	err := inventory.Invalidate(ctx, f.rdb, f.partitions, items)
	if err != nil {
		f.onError(order.About(err, refused))
	}
	return err
}

// notify publishes one message per API process, and one for the feeds. A lost message only
// makes a request wait until its timeout, so errors are only reported. at is when the orders
// were committed.
func (f *Fulfiller) notify(ctx context.Context, tasks []order.Task, out []order.Outcome, at time.Time) {
	messages := make(map[string][]byte)
	changed := f.changeNotifier.Due(tasks, out)
	for i := range tasks {
		n := order.Notice{ID: tasks[i].ID, Outcome: out[i]}
		origin := tasks[i].Origin
		switch {
		case f.local != nil && origin == f.local.Origin():
			f.local.Settle(n, at)
		case origin != "":
			m := messages[origin]
			if m == nil && tasks[i].RequestID != "" {
				m = order.AppendCommittedAt(m, f.store.Now().Add(-time.Since(at)).UnixMicro())
			}
			messages[origin] = order.AppendNotice(m, &n)
		}
	}
	revisions := f.store.HighWater().Take()
	if len(messages) == 0 && len(changed) == 0 && len(revisions) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Notify)
	defer cancel()
	var sent []*redis.IntCmd
	_, err := f.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		// First, so that the revision is recorded before an order is announced or its task
		// is removed.
		f.store.HighWater().Add(ctx, p, revisions)
		for origin, m := range messages {
			p.Publish(ctx, order.ChannelOf(origin), m)
		}
		sent = f.changeNotifier.Add(ctx, p, changed)
		return nil
	})
	f.changeNotifier.NoteReceivers(sent)
	if err != nil {
		f.store.HighWater().Committed(revisions)
		f.onError(fmt.Errorf("notify api processes of %s: %w", plural.Count(len(tasks), "commit"), order.About(err, tasks)))
	}
}

// Linger returns how long a queue's worker waits to fill a batch: d if no client waits for
// the commit of these orders, and 0 otherwise.
func Linger(d time.Duration) func([]queue.Leased) time.Duration {
	return func(leased []queue.Leased) time.Duration {
		for i := range leased {
			for _, a := range accepted.OrdersOf(leased[i].ID, leased[i].Payload) {
				if order.Awaited(a.Payload) {
					return 0
				}
			}
		}
		return d
	}
}

// Work drains the queues of orders and of expiries until ctx ends, and then finishes the
// tasks that it holds. Both kinds share the workers of cfg: under load, orders, for which
// clients may be waiting, get four times as many as expiries.
func (f *Fulfiller) Work(ctx context.Context, orders, expiries []*queue.Queue, cfg queue.RunConfig) error {
	cfg.OnMissing, cfg.OnFailure, cfg.Hold = f.missing, f.failed, f.hold
	sources := make([]queue.Source, 0, len(orders)+len(expiries))
	for _, q := range orders {
		f.Queued = append(f.Queued, accepted.NewOrders(q))
		sources = append(sources, queue.Source{Queue: q, Handler: f.Handle, Weight: 4})
	}
	for _, q := range expiries {
		sources = append(sources, queue.Source{Queue: q, Handler: f.Handle, Weight: 1})
	}
	return queue.RunAll(ctx, sources, cfg)
}
