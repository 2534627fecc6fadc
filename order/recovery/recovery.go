// Package recovery rebuilds sales after Redis has lost data, and carries out the decision of
// an operator when the database has.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/lock"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/queue"
)

// Sellable is the part of the inventory that a recovery uses.
type Sellable interface {
	States(ctx context.Context) ([]inventory.State, error)
	Progress(ctx context.Context, epoch int64, items []string) ([]inventory.Progress, error)
	Invalidator
	Restorer
}

// Restorer reloads the sales into Redis.
type Restorer interface {
	ReloadAll(ctx context.Context, items []inventory.Loadable) (loaded int, err error)
	Built(ctx context.Context, epoch int64) error
	RewriteLogs(ctx context.Context) error
}

// Invalidator invalidates the data in Redis.
type Invalidator interface {
	Void(ctx context.Context, epoch int64, items []string) error
	Declare(ctx context.Context, epoch int64) error
	Adopt(epoch int64)
}

// Locks runs a function while it holds a lock.
type Locks interface {
	Do(ctx context.Context, resource string, fn func(ctx context.Context, l *lock.Lock) error, opts ...lock.Option) error
}

// Config configures a Recovery. All fields but HighWater, Nudges and the functions
// are required.
type Config struct {
	Store *store.Store
	Stock Sellable
	// Locks limits the checks that repair to one process at a time, by the lock Resource,
	// and the loads of the sales to one process, by the lock Resource-load.
	Locks    Locks
	Resource string
	// Expiries are the queues of expiry tasks, one per partition.
	Expiries []*queue.Queue
	// HighWater stops sales of which the database is older than Redis, before any sale is
	// invalidated. Default nil: none is stopped.
	HighWater *store.HighWater
	// Nudges make Run check soon. Default: none.
	Nudges Nudges
	// OnLoss receives a description of the loss before it is repaired.
	OnLoss func(what string)
	// OnRecovered receives the result of every recovery by this process.
	OnRecovered func(r Recovered)
	OnError     func(error)
}

// Recovered is the result of a recovery.
type Recovered struct {
	Epoch int64
	Sales int
	// Expiries is the number of orders for which an expiry task was added.
	Expiries int
	Took     time.Duration
}

// Recovery detects that Redis has lost data or returned with older data, and rebuilds the
// sales from the database and the tasks that survive in the queues. Any number of processes
// may run one; each loss is repaired once.
//
// A loss is detected by an epoch that is missing or differs from the database's, or by a
// sale whose sequence is below the one in the database. A new run id of the server triggers
// a comparison of all sales. The data in Redis is always its state at some earlier instant,
// so a sale whose sequence has reached the database's has lost no order that has a row. If
// Redis lost orders without a row, it lost their units' reservation with them, and the sale
// is correct.
type Recovery struct {
	Config

	// one lets one check run at a time, and callers that arrive meanwhile share the next.
	// It is a channel, so a caller whose ctx ends stops waiting.
	one chan struct{}
	// full counts the checks of all sales that have started.
	full atomic.Int64
	// reload holds the epoch under which the sales must be loaded.
	reload chan int64

	// The rest belongs to the holder of one.
	last  error    // of the last full check
	runs  []string // of the servers, by partition, as last seen
	after string   // the last item of the previous page
}

// NewRecovery returns a Recovery.
func NewRecovery(cfg Config) *Recovery {
	if cfg.OnLoss == nil {
		cfg.OnLoss = func(string) {}
	}
	if cfg.OnRecovered == nil {
		cfg.OnRecovered = func(Recovered) {}
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	if cfg.Nudges == nil {
		cfg.Nudges = NewNudges()
	}
	return &Recovery{Config: cfg, one: make(chan struct{}, 1), reload: make(chan int64, 1)}
}

// markPage is how many sales are compared together.
const markPage = 500

// expiryPage is how many expiring orders are read together. A task has at most 256 orders.
const expiryPage = 500

// checkLimit bounds one check, including the wait for another process's check.
const checkLimit = 10 * time.Second

// Nudges notify a Recovery that a connection to Redis is new, and may lead to another
// server, or to the same one after a restart. They are created before the connections and
// the Recovery.
type Nudges chan struct{}

// NewNudges returns Nudges for one Recovery.
func NewNudges() Nudges { return make(chan struct{}, 1) }

// Nudge makes the Recovery check soon. It does not block.
func (n Nudges) Nudge() {
	select {
	case n <- struct{}{}:
	default:
	}
}

// nudgePause groups connections that are opened together, including those of the check
// itself, into one check.
const nudgePause = 50 * time.Millisecond

// Run checks at intervals and after every nudge, and loads the sales after a loss, until
// ctx ends.
func (r *Recovery) Run(ctx context.Context, every time.Duration) {
	var loads sync.WaitGroup
	defer loads.Wait()
	// In its own goroutine: loading a large sale may take so long that Redis loses its data
	// again.
	loads.Go(func() {
		for {
			select {
			case epoch := <-r.reload:
				r.rebuildAlone(ctx, epoch)
			case <-ctx.Done():
				return
			}
		}
	})
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.Nudges:
			if !pause.For(ctx, nudgePause) {
				return
			}
			r.unnudge()
		case <-ctx.Done():
			return
		}
		if err := r.check(ctx, false); err != nil && ctx.Err() == nil {
			r.OnError(fmt.Errorf("check Redis for lost data: %w", err))
		}
	}
}

// unnudge drops a nudge that arrived before the check that follows.
func (r *Recovery) unnudge() {
	select {
	case <-r.Nudges:
	default:
	}
}

// Check compares all of Redis with the database, and invalidates the data in Redis if any
// was lost. After nil, no sale is older than the database's rows were when it was called.
// Run loads the sales that are missing then, or their next purchase does.
func (r *Recovery) Check(ctx context.Context) error { return r.check(ctx, true) }

// Lost is Check for a caller that has found a sale missing. If rewound is not 0, the caller
// has seen a sale of that epoch with a lower sequence than scripts had returned before.
// This proves that the data is older, even if no row is missing from it: a worker may hold
// orders that are in no queue any more, and it checks their sales only under another epoch.
func (r *Recovery) Lost(ctx context.Context, rewound int64) error {
	if rewound == 0 {
		return r.Check(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if err := r.begin(ctx); err != nil {
		return err
	}
	defer r.end()
	return r.checkOnce(ctx, true, rewound)
}

// begin waits until no other check runs, or ctx ends; end lets the next one run.
func (r *Recovery) begin(ctx context.Context) error {
	select {
	case r.one <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for another check: %w", context.Cause(ctx))
	}
}

func (r *Recovery) end() { <-r.one }

func (r *Recovery) check(ctx context.Context, all bool) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	before := r.full.Load()
	if err := r.begin(ctx); err != nil {
		return err
	}
	defer r.end()
	if !all {
		return r.checkOnce(ctx, false, 0)
	}
	// A caller that waited shares the result of a check that began after its call.
	if r.full.Load() > before {
		return r.last
	}
	r.full.Add(1)
	r.last = r.checkOnce(ctx, true, 0)
	return r.last
}

// checkOnce runs one check. If rewound is not 0, the data of that epoch is known to be
// older than it was. The caller holds one.
func (r *Recovery) checkOnce(ctx context.Context, all bool, rewound int64) error {
	loss, err := r.look(ctx, all, rewound)
	if err != nil || loss.what == "" {
		return err
	}
	for {
		err := r.Locks.Do(ctx, r.Resource, func(ctx context.Context, _ *lock.Lock) error {
			// Another process may have repaired it already.
			loss, err := r.look(ctx, true, rewound)
			if err != nil || loss.what == "" {
				return err
			}
			return r.void(ctx, loss)
		})
		// A process that was paused for longer than the lock's TTL checks again: another
		// one may have recovered meanwhile. It may notice the loss only when it releases the lock.
		lost := errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrNotHeld)
		if !lost || !pause.For(ctx, lostPause) {
			return err
		}
	}
}

// lostPause is the pause before a check whose lock was lost is repeated.
const lostPause = 50 * time.Millisecond

// loss is the result of a check.
type loss struct {
	what  string // empty: no loss
	epoch int64  // the database's epoch
	least int64  // the epoch in Redis, if it is higher
}

// look compares Redis with the database: the epochs, and the progress of a page of sales,
// or of all. It always reads the database first, so Redis contains everything that was read
// there unless it has lost data.
func (r *Recovery) look(ctx context.Context, all bool, rewound int64) (loss, error) {
	epoch, err := r.Store.Epoch(ctx)
	if err != nil {
		return loss{}, err
	}
	states, err := r.Stock.States(ctx)
	if err != nil {
		return loss{}, err
	}
	found := loss{epoch: epoch}
	runs := make([]string, len(states))
	for p, s := range states {
		runs[p] = s.RunID
		all = all || len(r.runs) <= p || r.runs[p] != s.RunID
		switch {
		case s.Epoch == 0:
			found.what = fmt.Sprintf("partition %d has lost its data, or is new", p)
		case s.Epoch > epoch:
			found.what = fmt.Sprintf("partition %d has epoch %d, the database %d", p, s.Epoch, epoch)
			found.least = max(found.least, s.Epoch)
		case s.Epoch < epoch && found.what == "":
			found.what = fmt.Sprintf("partition %d has epoch %d, the database %d", p, s.Epoch, epoch)
		}
	}
	if rewound == epoch && found.what == "" {
		found.what = fmt.Sprintf("a sale of epoch %d is older than a process has seen it", epoch)
	}
	if found.what != "" {
		return found, nil
	}
	behind, err := r.behind(ctx, epoch, all)
	if err != nil {
		return loss{}, err
	}
	if behind != "" {
		found.what = behind
		return found, nil
	}
	if haveRestarted(r.runs, states) {
		if err := r.Stock.RewriteLogs(ctx); err != nil {
			return loss{}, err
		}
	}
	r.runs = runs
	r.Stock.Adopt(epoch)
	if unbuilt(states, epoch) { // the process that should load the sales may have died
		r.order(epoch)
	}
	return loss{}, nil
}

// freshly is the uptime below which a server, on a process's first check, may have been
// restarted together with the process.
const freshly = time.Minute

// haveRestarted reports whether a server has a new run id, or started shortly before this
// process did.
func haveRestarted(before []string, now []inventory.State) bool {
	for p, s := range now {
		if len(before) > p && before[p] != s.RunID || len(before) == 0 && s.Uptime >= 0 && s.Uptime < freshly {
			return true
		}
	}
	return false
}

// behind finds a sale whose sequence is below the one in the database.
func (r *Recovery) behind(ctx context.Context, epoch int64, all bool) (string, error) {
	after := r.after
	if all {
		after = ""
	}
	for {
		rows, err := reached(ctx, r.Store, after, markPage)
		if err != nil {
			return "", err
		}
		items := make([]string, len(rows))
		for i := range rows {
			items[i] = rows[i].ID
		}
		progress, err := r.Stock.Progress(ctx, epoch, items)
		if err != nil {
			return "", err
		}
		for i, m := range progress {
			switch row := &rows[i]; {
			case !m.Loaded:
			case m.Sequence < row.Sequence:
				return fmt.Sprintf("the sale of %s has sequence %d, the database %d", row.ID, m.Sequence, row.Sequence), nil
			case m.Version < row.Version:
				return fmt.Sprintf("the sale of %s has version %d, the item %d", row.ID, m.Version, row.Version), nil
			}
		}
		if len(rows) < markPage {
			r.after = ""
			return "", nil
		}
		after = rows[len(rows)-1].ID
		if !all {
			r.after = after
			return "", nil
		}
	}
}

// void first raises the epoch in the database: from then on, loads and releases treat sales
// of earlier epochs as invalid, even if this process dies. Then it invalidates the sales in
// Redis. Redis records the new epoch only when no sale of an earlier one is left, so if
// this process dies before, the next check repeats the work.
//
// The epoch is also raised if Redis has a lower one. Another process may have raised it and
// died, or Redis had reached the database's epoch and has returned with older data again:
// then workers may hold orders of exactly this epoch.
func (r *Recovery) void(ctx context.Context, found loss) error {
	if r.HighWater != nil {
		if err := r.HighWater.Check(ctx); err != nil {
			return err
		}
	}
	r.OnLoss(found.what)
	epoch, err := raiseEpochTo(ctx, r.Store, found.epoch, found.least)
	if err != nil {
		return err
	}
	// Before the sales are dropped, so that this process loads them under the new epoch.
	r.Stock.Adopt(epoch)
	after := ""
	for {
		ids, err := r.Store.ItemIDs(ctx, after, markPage)
		if err != nil {
			return err
		}
		if err := r.Stock.Void(ctx, epoch, ids); err != nil {
			return err
		}
		if len(ids) < markPage {
			break
		}
		after = ids[len(ids)-1]
	}
	if err := r.Stock.Declare(ctx, epoch); err != nil {
		return err
	}
	r.order(epoch)
	return nil
}

// order makes Run load the sales. One request loads all, so one is enough. The caller holds
// one.
func (r *Recovery) order(epoch int64) {
	select {
	case <-r.reload:
	default:
	}
	r.reload <- epoch
}

// unbuilt reports whether no process has completely loaded the sales of this epoch.
func unbuilt(states []inventory.State, epoch int64) bool {
	for _, s := range states {
		if s.Built != epoch {
			return true
		}
	}
	return false
}

// loadLease is how long a process that has died keeps others from loading the sales. A
// shorter one could expire while the load delays its extension.
const loadLease = 5 * time.Second

// rebuildAlone loads the sales unless another process has done it while this one waited for
// its turn. A waiting process takes over from one that dies.
func (r *Recovery) rebuildAlone(ctx context.Context, epoch int64) {
	err := r.Locks.Do(ctx, r.Resource+"-load", func(held context.Context, _ *lock.Lock) error {
		states, err := r.Stock.States(held)
		if err != nil || !unbuilt(states, epoch) || states[0].Epoch != epoch { // another loss has its own load
			return err
		}
		r.rebuild(held, epoch)
		if held.Err() != nil {
			return context.Cause(held) // the next check that finds unbuilt sales loads the rest
		}
		return r.Stock.Built(held, epoch)
	}, lock.WithTTL(loadLease))
	if err != nil && ctx.Err() == nil {
		r.OnError(fmt.Errorf("load sales after a loss: %w", err))
	}
}

// rebuild loads the sales that have not ended, and restores the tasks of orders that will
// expire. The next purchase, or the sweeper, does what fails here.
func (r *Recovery) rebuild(ctx context.Context, epoch int64) {
	begun := time.Now()
	done := Recovered{Epoch: epoch}
	items, err := onSale(ctx, r.Store)
	if err != nil {
		r.OnError(fmt.Errorf("load sales after a loss: %w", err))
	}
	if done.Sales, err = r.Stock.ReloadAll(ctx, items); err != nil {
		r.OnError(fmt.Errorf("load sales after a loss: %w", err))
	}
	done.Took = time.Since(begun)
	if done.Expiries, err = r.expiries(ctx); err != nil {
		r.OnError(fmt.Errorf("schedule expiries after a loss: %w", err))
	}
	r.OnRecovered(done)
}

// expiries adds the missing expiry tasks: one, under its former id, for the orders that were committed from one task. An
// existing task is a duplicate by its id, and is not added.
func (r *Recovery) expiries(ctx context.Context) (added int, err error) {
	var last expiring
	var full error
	for {
		rows, err := readExpiring(ctx, r.Store, last, expiryPage)
		if err != nil {
			return added, err
		}
		more := len(rows) == expiryPage
		if more {
			rows = wholeTasks(rows)
		}
		byPartition := make([][]queue.Task, len(r.Expiries))
		for _, group := range byTask(rows) {
			first := &group[0] // it expires first
			ids := make([]string, len(group))
			for i := range group {
				ids[i] = group[i].ID
			}
			p := inventory.PartitionOf(first.ItemID, len(r.Expiries))
			byPartition[p] = append(byPartition[p], order.ExpiryTask(accepted.TaskOf(first.ID), first.ItemID, first.ExpiresAt, ids...))
		}
		for p, tasks := range byPartition {
			if len(tasks) == 0 {
				continue
			}
			status, err := r.Expiries[p].Enqueue(ctx, tasks...)
			if errors.Is(err, queue.ErrFull) {
				full = err // the sweeper expires these orders later
			} else if err != nil {
				return added, err
			}
			for i, s := range status {
				if s == queue.StatusOK {
					added += tasks[i].Entries
				}
			}
		}
		if !more {
			return added, full
		}
		last = rows[len(rows)-1]
	}
}
