package lock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Config holds the settings of a [Manager]. The zero value is usable.
type Config struct {
	// Prefix of the keys of resources without a hash tag; default "lock:".
	Prefix string
	// TTL is how long a lock outlives a holder that died, and the longest time
	// a holder cut off from Redis goes on; default 10 s, at least 10 ms, whole
	// milliseconds. The watchdog renews at a third of it.
	TTL time.Duration
	// ClaimTTL is how long a waiter that was handed the lock has to claim it;
	// default 1 s or TTL, whichever is less; at least 10 ms, at most TTL.
	ClaimTTL time.Duration
	// Liveness is how often a waiter shows that it is alive; default 1 s, at
	// least 10 ms. One that was silent for two and a half times as long is
	// passed over.
	Liveness time.Duration
	// Grace is the TTL given to a lock key that has none, which a program left
	// that took the lock with SETNX and may still be alive; default TTL, at
	// least 10 ms.
	Grace time.Duration
	// CallTimeout bounds a call to Redis that must end although its caller has
	// stopped waiting, such as a release; default 2 s.
	CallTimeout time.Duration
	// Observer is told what happens. The zero value hears nothing.
	Observer Observer
}

// Observer is a set of functions called as things happen, any of which may be
// nil. They run on the path of the event, so they must be quick, and must not
// call the manager.
type Observer struct {
	// Acquired reports a lock taken after so long a wait.
	Acquired func(resource string, waited time.Duration)
	// HandedOver reports that a release passed the lock to a waiter directly.
	HandedOver func(resource string)
	// Lost reports a lock that ended before it was released.
	Lost func(resource string)
	// Repaired reports a lock key without TTL that was given one.
	Repaired func(resource string)
}

const minTTL = 10 * time.Millisecond

// withDefaults fills in what was left out and checks the result.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.TTL, 10*time.Second)
	setDefault(&c.ClaimTTL, min(time.Second, c.TTL))
	setDefault(&c.Liveness, time.Second)
	setDefault(&c.Grace, c.TTL)
	setDefault(&c.CallTimeout, 2*time.Second)
	if c.Prefix == "" {
		c.Prefix = "lock:"
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"TTL", c.TTL}, {"ClaimTTL", c.ClaimTTL}, {"Liveness", c.Liveness}, {"Grace", c.Grace}, {"CallTimeout", c.CallTimeout}} {
		if d.value < minTTL {
			return c, fmt.Errorf("%w config: %s is %s, it must be at least %s", ErrInvalid, d.name, d.value, minTTL)
		}
		if d.value%time.Millisecond != 0 {
			return c, fmt.Errorf("%w config: %s is %s, it must be whole milliseconds", ErrInvalid, d.name, d.value)
		}
	}
	if c.ClaimTTL > c.TTL {
		return c, fmt.Errorf("%w config: ClaimTTL %s exceeds TTL %s", ErrInvalid, c.ClaimTTL, c.TTL)
	}
	if _, err := keysOf(c.Prefix, "x"); err != nil {
		return c, fmt.Errorf("%w config: Prefix %q breaks the hash tag", ErrInvalid, c.Prefix)
	}
	return c, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// Manager takes locks for one process. It is safe for concurrent use. Whatever
// the number of locks it runs at most one renewal loop (while locks are held)
// and one subscription (from the first contended lock on).
type Manager struct {
	rdb  redis.UniversalClient
	cfg  Config
	args scriptArgs
	id   string // part of every waiter's entry, and of the channel's name

	// life is the context of the loops; stop ends it.
	life    context.Context
	stop    context.CancelFunc
	closing chan struct{}  // closed when Close begins
	gone    chan struct{}  // closed when everything has ended
	work    sync.WaitGroup // loops, acquires under way, clean-ups
	wake    wakeup
	dog     watchdog

	mu       sync.Mutex
	closed   bool
	held     map[*Lock]struct{}
	closeErr error // valid once gone is closed
}

// New returns a manager on rdb, which should be configured with MaxRetries -1
// (the scripts repeat themselves where that is safe) and ContextTimeoutEnabled.
// Single Redis, Sentinel and Cluster clients work; a Ring does not, because its
// publish/subscribe is spread by channel. New makes no call; Close ends the
// manager, and leaves rdb open. The error is ErrInvalid.
func New(rdb redis.UniversalClient, cfg Config) (*Manager, error) {
	if rdb == nil {
		return nil, fmt.Errorf("%w argument: no redis client", ErrInvalid)
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return nil, fmt.Errorf("%w argument: a Ring's publish/subscribe does not reach every waiter", ErrInvalid)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	// In a cluster PUBLISH counts the receivers of one node only.
	_, single := rdb.(*redis.Client)
	m := &Manager{
		rdb:     rdb,
		cfg:     cfg,
		args:    newScriptArgs(cfg, single),
		id:      rand.Text(),
		closing: make(chan struct{}),
		gone:    make(chan struct{}),
		held:    make(map[*Lock]struct{}),
		wake:    newWakeup(),
		dog:     newWatchdog(),
	}
	//nolint:forbidigo // the loops belong to the manager and outlive every caller; a caller's values (its trace) must not leak into them
	m.life, m.stop = context.WithCancel(context.Background())
	return m, nil
}

// GuardKeys returns the keys a script passes to lock_guard (see [GuardLua]);
// both belong into its KEYS. They are empty for a name no lock can have.
func (m *Manager) GuardKeys(resource string) (lockKey, waitersKey string) {
	k, err := keysOf(m.cfg.Prefix, resource)
	if err != nil {
		return "", ""
	}
	return k.lock, k.waiters
}

// Close releases all locks held, ends waiting acquires with ErrClosed, gives up
// their places and stops the loops. It returns when all that is done, or with
// the context's cause when ctx ends first, while the rest goes on. The error
// joins those of the releases. A second call waits for the first.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	if !m.closed {
		m.closed = true
		close(m.closing)
		go m.shutDown(context.WithoutCancel(ctx))
	}
	m.mu.Unlock()
	select {
	case <-m.gone:
		return m.closeErr
	case <-ctx.Done():
		return fmt.Errorf("lock: close: %w", ended(ctx))
	}
}

// closeParallel is how many locks Close releases at a time.
const closeParallel = 8

func (m *Manager) shutDown(ctx context.Context) {
	locks := make(chan *Lock)
	errs := make([]error, closeParallel)
	var releasing sync.WaitGroup
	for i := range errs {
		releasing.Go(func() {
			for l := range locks {
				// A lock that ended before is nothing that Close failed to do.
				if err := l.Release(ctx); err != nil && !errors.Is(err, ErrNotHeld) {
					errs[i] = errors.Join(errs[i], err)
				}
			}
		})
	}
	for _, l := range m.snapshot() {
		locks <- l
	}
	close(locks)
	releasing.Wait()
	m.stop()
	m.work.Wait()
	m.closeErr = errors.Join(errs...)
	close(m.gone)
}

// snapshot lists the locks held.
func (m *Manager) snapshot() []*Lock {
	m.mu.Lock()
	defer m.mu.Unlock()
	locks := make([]*Lock, 0, len(m.held))
	for l := range m.held {
		locks = append(locks, l)
	}
	return locks
}

// begin counts something that Close has to wait for; work.Done ends it. It
// fails once Close has begun, so that the count cannot rise from zero then.
func (m *Manager) begin() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.work.Add(1)
	return nil
}

// cleanUp returns a context for work that must be done although ctx ended.
func (m *Manager) cleanUp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), m.cfg.CallTimeout)
}
