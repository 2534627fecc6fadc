package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/queue"
)

// Sellable is what a recovery needs of the inventory.
type Sellable interface {
	States(ctx context.Context) ([]inventory.State, error)
	Marks(ctx context.Context, epoch int64, items []string) ([]inventory.Mark, error)
	Voider
	Restorer
}

// Restorer makes Redis whole again.
type Restorer interface {
	ReloadAll(ctx context.Context, items []inventory.Loadable) (loaded int, err error)
	Built(ctx context.Context, epoch int64) error
	RewriteLogs(ctx context.Context) error
}

// Voider declares what Redis holds void.
type Voider interface {
	Void(ctx context.Context, epoch int64, items []string) error
	Declare(ctx context.Context, epoch int64) error
	Adopt(epoch int64)
}

// Doer runs a function while a lock is held.
type Doer interface {
	Do(ctx context.Context, resource string, fn func(ctx context.Context, l *lock.Lock) error, opts ...lock.Option) error
}

// Adder adds tasks to a queue.
type Adder interface {
	Enqueue(ctx context.Context, tasks ...queue.Task) ([]queue.Status, error)
}

// RecoveryConfig configures a Recovery. All but the functions are required.
type RecoveryConfig struct {
	Store *Store
	Stock Sellable
	// Locks let one process recover at a time, by the lock Resource, and one load
	// the sales afterwards, by the lock Resource-load.
	Locks    Doer
	Resource string
	// Expiries are the queues of orders that expire, one per partition.
	Expiries []Adder
	// HighWater is asked to stop sales of which the database is older than Redis
	// before any sale is declared void. Default nil: none is stopped.
	HighWater *HighWater
	// Nudges make Run check soon. Default: none.
	Nudges Nudges
	// OnLoss hears what was found, before anything is done about it.
	OnLoss func(what string)
	// OnRecovered learns of every recovery of this process: how many sales it
	// loaded, how many orders will expire again in time, and how long all took.
	OnRecovered func(r Recovered)
	OnError     func(error)
}

// Recovered is what a recovery did.
type Recovered struct {
	Epoch int64
	Sales int
	// Expiries are the orders whose task to expire was missing.
	Expiries int
	Took     time.Duration
}

// Recovery notices that Redis has lost data or has come back with older data,
// and builds what is sold from again: out of the database and of what survives in
// the queues. Any number of processes may run one; they do it once.
//
// What tells: an epoch that is missing or is not the database's; a sale that has
// come less far than the database has seen it; another run of the server is the
// occasion to compare all sales. Redis's data is at all times what it was at some
// earlier instant, so a sale that has come as far as the database's rows has lost
// none of their orders. What Redis lost of orders that are not rows is lost, with
// the units taken for them, and nothing is wrong with the sale.
type Recovery struct {
	RecoveryConfig

	// one lets one check run at a time, and those who come meanwhile share the next.
	// A channel, so that who has no more time need not wait for it.
	one chan struct{}
	// full counts the checks of all sales that have begun.
	full atomic.Int64
	// reload says that the sales are to be loaded, and under which epoch.
	reload chan int64

	// The rest belongs to who holds one.
	last  error    // of the last full check
	runs  []string // of the servers, by partition, as last seen
	after string   // the last item of the page before
}

// NewRecovery returns a Recovery.
func NewRecovery(cfg RecoveryConfig) *Recovery {
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
	return &Recovery{RecoveryConfig: cfg, one: make(chan struct{}, 1), reload: make(chan int64, 1)}
}

// markPage is how many sales are compared at a time.
const markPage = 500

// checkLimit bounds one check, the wait for another process's included.
const checkLimit = 10 * time.Second

// Nudges tell a Recovery that a connection to Redis is new, and may lead to another server,
// or to the same one after a restart. They exist before the connections and the Recovery.
type Nudges chan struct{}

// NewNudges returns Nudges for one Recovery.
func NewNudges() Nudges { return make(chan struct{}, 1) }

// Nudge makes the Recovery check soon. It does not wait.
func (n Nudges) Nudge() {
	select {
	case n <- struct{}{}:
	default:
	}
}

// nudgePause lets connections that are opened together be one occasion to check,
// those of the check itself among them.
const nudgePause = 50 * time.Millisecond

// Run checks after every interval and every nudge, and loads the sales after a
// loss, until ctx ends.
func (r *Recovery) Run(ctx context.Context, every time.Duration) {
	var loads sync.WaitGroup
	defer loads.Wait()
	// Apart from the checks: a large sale takes longer than Redis may take to lose
	// its data once more.
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

// unnudge forgets the nudges up to now, which the check that follows is for.
func (r *Recovery) unnudge() {
	select {
	case <-r.Nudges:
	default:
	}
}

// Check compares all of Redis with the database, and declares what it holds void
// if it has lost anything. After nil, no sale is left that is older than the
// database's rows were when it was called; the sales that are missing then are
// loaded by Run, or by their next purchase.
func (r *Recovery) Check(ctx context.Context) error { return r.check(ctx, true) }

// Lost is Check for who has found a sale gone, or seen one of the epoch rewound,
// unless that is 0, stand at less than its scripts had told before. The latter is
// proof of older data, also where no row is missing from it: a worker may hold
// orders that are in no queue any more, and only under another epoch does it look
// after them.
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
	// Who waited shares what another has found since: it began after both came.
	if r.full.Load() > before {
		return r.last
	}
	r.full.Add(1)
	r.last = r.checkOnce(ctx, true, 0)
	return r.last
}

// checkOnce is one check. The data of the epoch rewound, if there is one, is known
// to be older than it was. The caller holds one.
func (r *Recovery) checkOnce(ctx context.Context, all bool, rewound int64) error {
	loss, err := r.look(ctx, all, rewound)
	if err != nil || loss.what == "" {
		return err
	}
	for {
		err := r.Locks.Do(ctx, r.Resource, func(ctx context.Context, _ *lock.Lock) error {
			// Another process may have been quicker.
			loss, err := r.look(ctx, true, rewound)
			if err != nil || loss.what == "" {
				return err
			}
			return r.void(ctx, loss)
		})
		// A process that did not run for longer than the lock's TTL looks again: another
		// one may have recovered meanwhile.
		if !errors.Is(err, lock.ErrLost) || !pause.For(ctx, lostPause) {
			return err
		}
	}
}

// lostPause is between two tries of a check whose lock was lost.
const lostPause = 50 * time.Millisecond

// loss is what a look has found.
type loss struct {
	what  string // empty: nothing
	epoch int64  // the database's
	least int64  // the epoch that Redis knows, if it is the higher one
}

// look compares Redis with the database: the epochs, and the marks of a page of
// sales, or of all of them. The database is always read first, so that what it
// knows is in a Redis that is whole.
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
	if restarted(r.runs, states) {
		if err := r.Stock.RewriteLogs(ctx); err != nil {
			return loss{}, err
		}
	}
	r.runs = runs
	r.Stock.Adopt(epoch)
	if unbuilt(states, epoch) { // who was to load the sales may have died
		r.order(epoch)
	}
	return loss{}, nil
}

// freshly is up to what age a server that a process meets for the first time may
// have been restarted for the reason that the process was.
const freshly = time.Minute

// restarted reports whether a server has another run than before, or began its
// run shortly before this process did.
func restarted(before []string, now []inventory.State) bool {
	for p, s := range now {
		if len(before) > p && before[p] != s.RunID || len(before) == 0 && s.Uptime >= 0 && s.Uptime < freshly {
			return true
		}
	}
	return false
}

// behind searches for a sale that has come less far than the database says.
func (r *Recovery) behind(ctx context.Context, epoch int64, all bool) (string, error) {
	after := r.after
	if all {
		after = ""
	}
	for {
		rows, err := r.Store.reached(ctx, after, markPage)
		if err != nil {
			return "", err
		}
		items := make([]string, len(rows))
		for i := range rows {
			items[i] = rows[i].ID
		}
		marks, err := r.Stock.Marks(ctx, epoch, items)
		if err != nil {
			return "", err
		}
		for i, m := range marks {
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

// void raises the epoch in the database first: from then on a sale of an earlier
// one is void to who loads or releases, whatever becomes of this process. Then
// Redis is told, and only when no sale of an earlier epoch is left does it say
// that its data is of the new one: who dies before that leaves the work to the next.
//
// It is raised also when Redis knows a lower one. Somebody may have raised it and
// died, or Redis was of the database's epoch already and has come back once more
// as it was before: then workers may hold orders of just this epoch.
func (r *Recovery) void(ctx context.Context, found loss) error {
	if r.HighWater != nil {
		if err := r.HighWater.Check(ctx); err != nil {
			return err
		}
	}
	r.OnLoss(found.what)
	epoch, err := r.Store.raiseEpoch(ctx, found.epoch, found.least)
	if err != nil {
		return err
	}
	// Before the sales are dropped: what this process loads from here on is new.
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

// order lets Run load the sales. One order to load all is enough. The caller
// holds one.
func (r *Recovery) order(epoch int64) {
	select {
	case <-r.reload:
	default:
	}
	r.reload <- epoch
}

// unbuilt reports whether nobody has loaded the sales of this epoch to the end.
func unbuilt(states []inventory.State, epoch int64) bool {
	for _, s := range states {
		if s.Built != epoch {
			return true
		}
	}
	return false
}

// loadLease is for how long a process that has died keeps others from loading the
// sales in its place. A shorter one could end while the load keeps this process
// from extending it.
const loadLease = 5 * time.Second

// rebuildAlone loads the sales unless another process has done it by the time that
// it is this one's turn. Who waits here takes over from a process that dies.
func (r *Recovery) rebuildAlone(ctx context.Context, epoch int64) {
	err := r.Locks.Do(ctx, r.Resource+"-load", func(held context.Context, _ *lock.Lock) error {
		states, err := r.Stock.States(held)
		if err != nil || !unbuilt(states, epoch) || states[0].Epoch != epoch { // another loss is another load
			return err
		}
		r.rebuild(held, epoch)
		if held.Err() != nil {
			return context.Cause(held) // the rest is for who notices next
		}
		return r.Stock.Built(held, epoch)
	}, lock.WithTTL(loadLease))
	if err != nil && ctx.Err() == nil {
		r.OnError(fmt.Errorf("load sales after a loss: %w", err))
	}
}

// rebuild loads the sales that have not ended, and notes again which orders are to
// lapse. What fails is left to the next purchase, and to the sweeper.
func (r *Recovery) rebuild(ctx context.Context, epoch int64) {
	begun := time.Now()
	done := Recovered{Epoch: epoch}
	items, err := r.Store.onSale(ctx)
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

// expiries adds the tasks of orders to expire that are missing. One that is there
// is a duplicate, by its id.
func (r *Recovery) expiries(ctx context.Context) (added int, err error) {
	var last expiring
	var full error
	for {
		rows, err := r.Store.expiring(ctx, last, markPage)
		if err != nil {
			return added, err
		}
		byPartition := make([][]queue.Task, len(r.Expiries))
		for i := range rows {
			row := &rows[i]
			p := inventory.PartitionOf(row.ItemID, len(r.Expiries))
			byPartition[p] = append(byPartition[p], expiryTask(&task{ID: row.ID, ItemID: row.ItemID}, row.ExpiresAt))
		}
		for p, tasks := range byPartition {
			if len(tasks) == 0 {
				continue
			}
			status, err := r.Expiries[p].Enqueue(ctx, tasks...)
			if errors.Is(err, queue.ErrFull) {
				full = err // the sweeper expires these orders, later
			} else if err != nil {
				return added, err
			}
			for _, s := range status {
				if s == queue.StatusOK {
					added++
				}
			}
		}
		if len(rows) < markPage {
			return added, full
		}
		last = rows[len(rows)-1]
	}
}
