// Package worker commits the orders that wait in the queue and expires those that were not
// paid. Its sweeper finishes what a dead process has left behind. It also shows the state
// of the queues and of the workers.
package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/faultpoint"
	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/release"
	"flashsale/order/store"
	"flashsale/order/timeouts"
	"flashsale/queue"
)

// Bounds of the pauses between attempts of the database and the subscription.
const (
	commitRetryMin = 10 * time.Millisecond
	commitRetryMax = 500 * time.Millisecond
)

// Fulfiller handles the tasks of orders: it commits purchases, notifies the API processes
// that wait for them, and expires orders that were not paid in time.
type Fulfiller struct {
	store    *store.Store
	rdb      redis.UniversalClient
	local    *checkout.Waiters
	onError  func(error)
	Releases *release.Releases
	changes  *checkout.ChangeNotifier
	// partitions is the number of partitions of the items.
	partitions int
	Queued     []Membership // one per partition; nil: see invalidateUncounted
	// committed is called with the size of every committed batch.
	committed func(orders int)
}

// NewFulfiller returns a Fulfiller. local is the set of waiting requests of this process,
// or nil in a process without an API. onError receives errors that are retried.
func NewFulfiller(store *store.Store, rdb redis.UniversalClient, local *checkout.Waiters, onError func(error), options ...FulfillerOption) *Fulfiller {
	f := &Fulfiller{store: store, rdb: rdb, local: local, onError: onError, committed: func(int) {}, partitions: 1}
	for _, set := range options {
		set(f)
	}
	f.changes = checkout.NewChangeNotifier(rdb, onError)
	f.Releases = release.NewReleases(store, rdb, f.partitions, nil, onError)
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

// Handle is the queue's batch handler. It commits all purchases in one transaction,
// publishes one message per API process, and then expires orders in one transaction. While
// the database cannot write, it waits and keeps its leases, so the worker claims no more. A
// task that breaks the transaction is found by halving, and only that one fails.
func (f *Fulfiller) Handle(ctx context.Context, leased []queue.Leased) []error {
	faultpoint.Reach("order.leased")
	errs := make([]error, len(leased))
	tasks := make([]order.Task, 0, len(leased))
	index := make([]int, 0, len(leased))
	var due []string
	var dueIndex []int
	for i := range leased {
		l := &leased[i]
		switch l.Type {
		case order.PurchaseType:
			t, err := order.ParseTask(l.ID, l.Payload)
			if err != nil {
				errs[i] = queue.Discard(err)
				continue
			}
			if f.store.HighWater().IsStopped(t.ItemID) {
				errs[i] = queue.Snooze(store.StoppedPause())
				continue
			}
			tasks = append(tasks, t)
			index = append(index, i)
		case order.ExpiryType:
			due = append(due, strings.TrimPrefix(l.ID, order.ExpiryPrefix))
			dueIndex = append(dueIndex, i)
		default:
			errs[i] = fmt.Errorf("%w: %q", errTaskType, l.Type)
		}
	}
	f.fulfil(ctx, tasks, func(i int, err error) { errs[index[i]] = err })
	f.expire(ctx, due, func(i int, err error) { errs[dueIndex[i]] = err })
	return errs
}

// fulfil commits the tasks. say is called for each task that needs more than an
// acknowledgement, with the follow-up or the error.
func (f *Fulfiller) fulfil(ctx context.Context, tasks []order.Task, say func(i int, err error)) {
	if len(tasks) == 0 {
		return
	}
	var out []order.Outcome
	err := f.persist(ctx, func() (err error) {
		out, err = f.store.Commit(ctx, tasks)
		return err
	})
	switch {
	case err == nil:
		faultpoint.Reach("order.committed")
		f.committed(len(tasks))
		missed := f.invalidateUncounted(ctx, tasks)
		untrusted := f.invalidate(ctx, tasks, out)
		f.tell(ctx, tasks, out)
		for i := range tasks {
			switch o := &out[i]; {
			case o.Status == order.StatusRejected && untrusted != nil:
				say(i, untrusted)
			case missed[tasks[i].ID] != nil:
				say(i, missed[tasks[i].ID])
			case o.Status == order.StatusConfirmed && o.ExpiresAt > 0:
				say(i, queue.Then(order.ExpiryTask(&tasks[i], o.ExpiresAt)))
			}
		}
	case store.Transient(err): // only once ctx has ended
		for i := range tasks {
			say(i, queue.Snooze(0))
		}
	case len(tasks) == 1:
		say(0, err)
	default:
		half := len(tasks) / 2
		f.fulfil(ctx, tasks[:half], say)
		f.fulfil(ctx, tasks[half:], func(i int, err error) { say(half+i, err) })
	}
}

// persist retries until the database has committed the rows, or ctx ends.
func (f *Fulfiller) persist(ctx context.Context, try func() error) error {
	for wait := commitRetryMin; ; wait = min(2*wait, commitRetryMax) {
		err := try()
		if err == nil || !store.Transient(err) || ctx.Err() != nil {
			return err
		}
		f.onError(fmt.Errorf("commit batch failed, retrying: %w", err))
		if !pause.For(ctx, wait/2+rand.N(wait/2)) {
			return err
		}
	}
}

// invalidate drops the sales of items of which the database refused an order. The refusal
// shows that Redis has wrong counts, because of lost or old data. If the sale stayed, the
// units taken for the refused order would never be released, and more orders would be
// refused. After an error the refused tasks must be retried. A refused order that was
// rejected as a dead letter before proves nothing about Redis: its units were released
// then.
func (f *Fulfiller) invalidate(ctx context.Context, tasks []order.Task, out []order.Outcome) error {
	var items []string
	for i := range tasks {
		refused := out[i].Status == order.StatusRejected && out[i].Reason != order.ReasonFailed
		if refused && !slices.Contains(items, tasks[i].ItemID) {
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
		f.onError(err)
	}
	return err
}

// tell publishes one message per API process, and one for the feeds. A lost message only
// makes a request wait until its timeout, so errors are only reported.
func (f *Fulfiller) tell(ctx context.Context, tasks []order.Task, out []order.Outcome) {
	messages := make(map[string][]byte)
	changed := f.changes.Due(tasks, out)
	for i := range tasks {
		n := order.Notice{ID: tasks[i].ID, Outcome: out[i]}
		origin := tasks[i].Origin
		switch {
		case f.local != nil && origin == f.local.Origin():
			f.local.Settle(n)
		case origin != "":
			messages[origin] = order.AppendNotice(messages[origin], &n)
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
		sent = f.changes.Add(ctx, p, changed)
		return nil
	})
	f.changes.NoteReceivers(sent)
	if err != nil {
		f.store.HighWater().Commit(revisions)
		f.onError(fmt.Errorf("notify api processes of %d commits: %w", len(tasks), err))
	}
}

// Linger returns how long a queue's worker waits to fill a batch: d if no client waits for
// the commit of these orders, and 0 otherwise.
func Linger(d time.Duration) func([]queue.Leased) time.Duration {
	return func(leased []queue.Leased) time.Duration {
		for i := range leased {
			if order.Awaited(leased[i].Payload) {
				return 0
			}
		}
		return d
	}
}

// Work drains the queues of orders and of expiries until ctx ends, and then finishes the
// tasks that it holds. Both kinds share the workers of cfg: under load, orders, for which
// clients may be waiting, get four times as many as expiries.
func (f *Fulfiller) Work(ctx context.Context, orders, expiries []*queue.Queue, cfg queue.RunConfig) error {
	cfg.OnMissing = f.missing
	sources := make([]queue.Source, 0, len(orders)+len(expiries))
	for _, q := range orders {
		f.Queued = append(f.Queued, q)
		sources = append(sources, queue.Source{Queue: q, Handler: f.Handle, Weight: 4})
	}
	for _, q := range expiries {
		sources = append(sources, queue.Source{Queue: q, Handler: f.Handle, Weight: 1})
	}
	return queue.RunAll(ctx, sources, cfg)
}
