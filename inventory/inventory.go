// Package inventory keeps the stock of the items on sale in Redis and sells from it:
// never more than the stock, to each buyer no more than the limit, one order per
// idempotency key, and only inside the sale's window.
//
// An item is sold under its distributed lock. If every request took the lock, the sale
// would be serialised at a few hundred purchases a second. Instead, one goroutine per hot
// item sends the requests that arrived while the previous script was in flight as one
// script (group commit). It keeps the lock across batches; if other processes sell the item
// too, each script holds the lock only while it runs.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"flashsale/lock"
	"flashsale/queue"
)

// Config configures an Inventory. A zero field means its default.
type Config struct {
	// Partitions is the number of hash tags the items are spread over, at most 1024. Default 1.
	Partitions int
	// Lineage is that of the database. Redis records it, and States and Declare return
	// ErrLineage when Redis has another. Default "": it is not recorded.
	Lineage string
	// MaxBatch bounds the purchases of one script, at most 512. Default 256.
	MaxBatch int
	// MaxPending bounds the requests that wait for one item's next script;
	// beyond it Submit returns ErrOverloaded. At most 1,048,576. Default 8192.
	MaxPending int
	// LockIdle is how long a process keeps the lock of an item without requests. Default 5 ms.
	LockIdle time.Duration
	// Patience bounds how long a request may wait for its script's outcome:
	// for the lock, and for a Redis that does not answer. Default 1.5 s.
	Patience time.Duration
	// ConfirmReplicas is the number of replicas that must confirm a batch before its purchases
	// are answered, so that an accepted order survives the loss of its master. Default 0.
	ConfirmReplicas int
	// MarkLife bounds how long "sold out" is answered from memory without
	// asking Redis again. Default 1 s.
	MarkLife time.Duration
	// MoveWait is how long Move waits for each of its two locks. It stops the sale of the first item
	// while it waits for the second lock. Default 100 ms.
	MoveWait time.Duration
	// Observe, if set, returns the functions that observe the Inventory. New passes it the
	// Inventory before anything runs, so that the functions can refer to it; Observe must
	// not use it before New returns. Default: nothing is observed.
	Observe func(v *Inventory) (Observers, error)
	// MayLoad is called before sales are loaded from the database, which deletes what
	// Redis has of them. It returns an error for each item that must not be loaded, which
	// wraps ErrStopped when the database is older than Redis; err refuses all items.
	// Default: all may be loaded.
	MayLoad func(ctx context.Context, items []string) (refused map[string]error, err error)
	// Archive answers requests for sales that have ended and are not loaded. Default nil:
	// a request for a sale that is not loaded loads it, also after its end.
	Archive Archive
	// OnError gets errors that are retried or cannot be returned. Default: ignored.
	OnError func(error)
	// OnBatch gets the size and duration of every script sent. Default: ignored.
	OnBatch func(purchases int, took time.Duration)
	// OnWait gets how long each purchase waited for its batch. Default: ignored.
	OnWait func(waited time.Duration)
	// OnLock gets the size of a batch and how long it waited for its item's lock, 0 if
	// this process held the lock already or its script found it free. Default: ignored.
	OnLock func(purchases int, waited time.Duration)
	// OnAccepted gets the number of orders that a script has accepted, before they are
	// answered. An order of an earlier request with the same key does not count. It must be
	// quick and must not block. Default: ignored.
	OnAccepted func(item string, orders int)
	// HoldLimit bounds the time for which an examination or a change holds an item's
	// lock, including the wait for it. Nothing of the item is sold meanwhile. Default 2 s.
	HoldLimit time.Duration
	// SettleLimit bounds the calls to Redis that follow the commit of a change or of a renaming. The next
	// purchase loads a sale that does not have the change by then. Default 650 ms; only tests set another.
	SettleLimit time.Duration
	// signOfLife is subscription.Listener.SignOfLife; only tests set it.
	signOfLife time.Duration
}

func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name string
		v    *int
		def  int
		max  int
	}{
		{"Partitions", &c.Partitions, 1, 1024},
		{"MaxBatch", &c.MaxBatch, 256, 512},
		{"MaxPending", &c.MaxPending, 8192, 1 << 20},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 1 || *f.v > f.max {
			return c, fmt.Errorf("inventory: %s is %d, want 1 to %d", f.name, *f.v, f.max)
		}
	}
	if c.ConfirmReplicas < 0 {
		return c, fmt.Errorf("inventory: ConfirmReplicas is %d, want 0 or more", c.ConfirmReplicas)
	}
	for _, f := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{
		{"LockIdle", &c.LockIdle, 5 * time.Millisecond},
		{"Patience", &c.Patience, 1500 * time.Millisecond},
		{"MarkLife", &c.MarkLife, time.Second},
		{"MoveWait", &c.MoveWait, 100 * time.Millisecond},
		{"HoldLimit", &c.HoldLimit, defaultHoldLimit},
		{"SettleLimit", &c.SettleLimit, defaultSettleLimit},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 0 {
			return c, fmt.Errorf("inventory: %s is %v, want more than 0", f.name, *f.v)
		}
	}
	if c.MayLoad == nil {
		c.MayLoad = func(context.Context, []string) (map[string]error, error) { return nil, nil }
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	if c.OnBatch == nil {
		c.OnBatch = func(int, time.Duration) {}
	}
	if c.OnWait == nil {
		c.OnWait = func(time.Duration) {}
	}
	if c.OnLock == nil {
		c.OnLock = func(int, time.Duration) {}
	}
	if c.OnAccepted == nil {
		c.OnAccepted = func(string, int) {}
	}
	return c, nil
}

// Observers are called when an Inventory detects a change, a loss or a restart. A nil
// function does nothing.
type Observers struct {
	// OnChange is called when an item's terms change, when it has stock again, or when its
	// sale was loaded, on any process. It must be quick and must not block. Changes that
	// happen while the connection to Redis is lost are missed.
	OnChange func(item string)
	// OnLoss is called before a sale is reloaded that is missing, or older than this
	// process has seen it: Redis may have lost more than this sale. rewound is the epoch
	// of an older sale, which proves a loss; 0 for a missing one. OnLoss returns once the
	// loss was examined, and may be called concurrently.
	OnLoss func(ctx context.Context, rewound int64)
	// OnRestart is called before a script is sent to a server that does not have it: the
	// server was restarted since its last sale, or it is another server, possibly with
	// older data. If OnRestart fails, nothing is sold.
	OnRestart func(ctx context.Context) error
	// OnVersion is called after each purchase script that has found the sale loaded, with the
	// item's version in it and the time before the script was sent. It must be quick.
	OnVersion func(item string, version int64, at time.Time)
}

// For returns the Observers themselves, for Observers that do not need the Inventory.
func (o Observers) For(*Inventory) (Observers, error) { return o, nil }

func (o Observers) withDefaults() Observers {
	if o.OnChange == nil {
		o.OnChange = func(string) {}
	}
	if o.OnLoss == nil {
		o.OnLoss = func(context.Context, int64) {}
	}
	if o.OnRestart == nil {
		o.OnRestart = func(context.Context) error { return nil }
	}
	if o.OnVersion == nil {
		o.OnVersion = func(string, int64, time.Time) {}
	}
	return o
}

// Source reads sales from the database and the task queues. Sales are loaded from it, and
// rebuilt when Redis has lost them.
type Source interface {
	// Epoch is the number of the present build of all state in Redis.
	Epoch(ctx context.Context) (int64, error)
	// Queued reads the orders of these items that are in the task queues, dead letters
	// included. It reads each queue once, and finds every order that stays in the queue
	// during the call. The number of orders that it returns is bounded: an item that is
	// missing from the result was not read and needs another call. The first item is
	// never missing.
	Queued(ctx context.Context, items []string) (map[string]Queued, error)
	// Sales reads items in one snapshot of the database that is taken after the call. In
	// the order of items it calls each for every order of an item, committed or queued,
	// and then done with the item's sale, whose Left excludes the units of these orders.
	// queued must have been read before the call, and nothing of an item may be sold
	// between Queued and Sales. An order that was committed in between counts once. Sales
	// returns an error when an item does not exist.
	Sales(ctx context.Context, items []string, queued map[string]Queued, each func(item string, h Holding) error, done func(item string, s Sale) error) error
}

// Queued are the orders of one item that are in the task queue.
type Queued struct {
	// Orders may contain an order twice.
	Orders   []Holding
	Sequence int64 // the highest of them; see [Sale]
}

// Sale is the live state of an item on sale.
type Sale struct {
	Left         int64 // units that can be bought
	PerUserLimit int64 // units one buyer may hold
	OpensAt      time.Time
	ClosesAt     time.Time // zero: no end
	Control      string    // "open", "paused" or "closed"
	Version      int64
	// Sequence is the highest sequence of this sale in the database. Each script that
	// takes or returns units raises the sale's sequence by one, and payloads carry it. A
	// Source may return a lower sequence than the sale has reached.
	Sequence int64
}

// Holding is one order as the sale stores it.
type Holding struct {
	Buyer          string
	IdempotencyKey string
	OrderID        string // without a colon
	Quantity       int64
	// Counts means that its units are taken; false for a refused or released
	// order, of which only the idempotency key is stored.
	Counts bool
}

// Inventory sells. It is safe for concurrent use.
type Inventory struct {
	cfg    Config
	keys   keys
	rdb    redis.UniversalClient
	locks  *lock.Manager
	queues []*queue.Queue
	source Source
	epoch  atomic.Int64
	clocks []scriptClock // by partition
	// subscribed says that the subscription to stock changes is up.
	subscribed atomic.Bool

	mu        sync.RWMutex
	sellers   map[string]*seller
	floors    floors // of sellers that have ended
	closed    bool
	running   sync.WaitGroup
	observers Observers
	// background counts the goroutines that run until stop; the sellers end before them.
	background sync.WaitGroup
	warming    singleflight.Group // loads by Warm, by item
	// life ends with stop, which interrupts calls to Redis at shutdown; the sellers drain
	// first.
	life context.Context
	stop context.CancelFunc
}

// New returns an Inventory that enqueues orders into queues, one per
// partition. ctx bounds the start, not the Inventory's life.
// Errors: ErrPartitions, ErrLayout; a configuration out of bounds; that of Config.Observe;
// Redis or the database is unavailable.
func New(ctx context.Context, rdb redis.UniversalClient, locks *lock.Manager, queues []*queue.Queue, source Source, cfg Config) (*Inventory, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(queues) != cfg.Partitions {
		return nil, fmt.Errorf("inventory: %d queues for %d partitions", len(queues), cfg.Partitions)
	}
	v := &Inventory{
		cfg: cfg, keys: keys{cfg.Partitions}, rdb: rdb, locks: locks, queues: queues, source: source,
		sellers: make(map[string]*seller),
		clocks:  make([]scriptClock, cfg.Partitions),
	}
	if err := CheckPartitions(ctx, rdb, cfg.Partitions); err != nil {
		return nil, err
	}
	epoch, err := source.Epoch(ctx)
	if err != nil {
		return nil, err
	}
	v.epoch.Store(epoch)
	v.life, v.stop = context.WithCancel(context.WithoutCancel(ctx))
	if cfg.Observe != nil {
		if v.observers, err = cfg.Observe(v); err != nil {
			v.stop()
			return nil, err
		}
	}
	v.observers = v.observers.withDefaults()
	v.background.Go(v.listen)
	return v, nil
}

// Partition returns the partition of an item.
func (v *Inventory) Partition(item string) int { return v.keys.partition(item) }

// LockInfo returns the state of an item's lock. Errors: those of lock.Manager.Inspect.
func (v *Inventory) LockInfo(ctx context.Context, item string) (lock.Info, error) {
	return v.locks.Inspect(ctx, v.keys.lock(item))
}

// defaultHoldLimit is the default of Config.HoldLimit.
const defaultHoldLimit = 2 * time.Second

// underLock runs fn under the item's lock, with a context that ends with the lock. If the
// loss of the lock has interrupted fn, the error is ErrUnavailable.
func (v *Inventory) underLock(ctx context.Context, item string, fn func(ctx context.Context, l *lock.Lock) error, opts ...lock.Option) error {
	l, err := v.locks.Acquire(ctx, v.keys.lock(item), opts...)
	if err != nil {
		return fmt.Errorf("hold item %s: %w: %w", item, ErrUnavailable, err)
	}
	held := l.Context() // it ends with ctx as well
	defer v.release(ctx, l, item)
	err = fn(held, l)
	// A wait that ends with the context may return its cause, ErrLost, instead.
	// The time of the call may be over as well; only a caller that has left gets no other error.
	if (errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrLost)) && !errors.Is(ctx.Err(), context.Canceled) {
		if lost := context.Cause(held); lost != nil {
			return fmt.Errorf("item %s: %w: %w: %w", item, ErrUnavailable, lost, err)
		}
	}
	return err
}

// releaseWait is how long a caller waits for the release of an item's lock. The release takes longer only while
// Redis does not respond.
const releaseWait = 100 * time.Millisecond

// release releases an item's lock. It returns after releaseWait at the latest, and then the release goes
// on in the background.
func (v *Inventory) release(ctx context.Context, l *lock.Lock, item string) {
	done := make(chan struct{})
	release := func() {
		defer close(done)
		if err := l.Release(ctx); err != nil {
			v.cfg.OnError(fmt.Errorf("release item %s: %w", item, err))
		}
	}
	v.mu.Lock()
	closed := v.closed
	if !closed {
		v.background.Go(release)
	}
	v.mu.Unlock()
	if closed {
		release()
		return
	}
	select {
	case <-done:
	case <-time.After(releaseWait):
	}
}

// Submit hands a request to the goroutine that sells its item. A refusal that
// needs no Redis is returned immediately, and Done is then not called:
// ErrSoldOut or a QuantityError while the item is known to be sold out, ErrOverloaded
// when too many requests wait or the Inventory is closed, ErrQuantity for a quantity that
// would raise the stock, and an error for a payload with a line break.
func (v *Inventory) Submit(r *Request) error {
	if r.Quantity < 1 {
		return ErrQuantity
	}
	if strings.IndexByte(r.Payload, '\n') >= 0 {
		return errPayload
	}
	if r.since = r.SubmittedAt; r.since.IsZero() {
		r.since = time.Now()
	}
	for {
		s, err := v.seller(r.ItemID)
		if err != nil {
			return err
		}
		if err := s.refusal(r.Buyer, r.IdempotencyKey, r.Quantity, r.since); err != nil {
			return err
		}
		retry, err := s.add(r)
		if !retry {
			return err
		}
	}
}

// Purchase submits a request and waits for its outcome. When ctx ends first the
// outcome is unknown.
func (v *Inventory) Purchase(ctx context.Context, r *Request) (Outcome, error) {
	done := make(chan Outcome, 1)
	r.Done = func(o Outcome) { done <- o }
	if err := v.Submit(r); err != nil {
		return Outcome{Err: err}, nil //nolint:nilerr // a refusal is an outcome
	}
	select {
	case o := <-done:
		return o, nil
	case <-ctx.Done():
		return Outcome{}, context.Cause(ctx)
	}
}

func (v *Inventory) seller(item string) (*seller, error) {
	v.mu.RLock()
	s := v.sellers[item]
	closed := v.closed
	v.mu.RUnlock()
	if closed {
		return nil, ErrOverloaded
	}
	if s != nil {
		return s, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, ErrOverloaded
	}
	if s := v.sellers[item]; s != nil {
		return s, nil
	}
	s = newSeller(v, item)
	s.floor.Store(v.floors.take(item))
	v.sellers[item] = s
	v.running.Add(1)
	go s.run()
	return s, nil
}

// Close refuses new requests, sends the pending ones, and releases the items' locks. It
// returns when all is done or ctx ends.
func (v *Inventory) Close(ctx context.Context) error {
	v.mu.Lock()
	v.closed = true
	for _, s := range v.sellers {
		s.retire()
	}
	v.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.running.Wait()
		v.stop()
		v.background.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		v.stop()
		return fmt.Errorf("inventory: close: %w", context.Cause(ctx))
	}
}
