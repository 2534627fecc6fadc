package lock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Manager takes locks for one process. It is safe for concurrent use. Whatever the
// number of locks, it runs at most one renewal loop (while locks are held) and one
// subscription (from the first contended lock on).
type Manager struct {
	store    store
	queues   bool // waiters form a queue and are handed the lock
	bounded  bool // a call of the store ends with its context
	cfg      Config
	defaults settings // for an acquire without options
	id       string   // part of every token and of the channel's name

	// life is the context of the loops; stop ends it.
	life    context.Context
	stop    context.CancelFunc
	closing chan struct{}  // closed when Close begins
	gone    chan struct{}  // closed when everything has ended
	work    sync.WaitGroup // loops, running acquires, clean-ups
	wake    wakeup
	dog     watchdog

	// waiting counts the acquires that wait for a lock that another holds.
	waiting atomic.Int64

	mu       sync.Mutex
	closed   bool
	drained  bool // Close no longer waits for new background work
	held     map[*holding]struct{}
	closeErr error // valid once gone is closed
}

// New returns a manager on rdb. Configure rdb with MaxRetries -1, because the manager
// repeats calls itself where that is safe, and with ContextTimeoutEnabled, without
// which calls outlast their contexts by the client's own timeouts. Single Redis,
// Sentinel and Cluster clients work; a Ring does not, because it distributes
// publish/subscribe by channel. New makes no call. Close ends the manager and leaves
// rdb open. The error is ErrInvalid.
func New(rdb redis.UniversalClient, cfg Config) (*Manager, error) {
	if err := checkClient(rdb); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	switch {
	case cfg.NodeTimeout != 0:
		return nil, fmt.Errorf("%w config: NodeTimeout is for NewQuorum", ErrInvalid)
	case cfg.Poll > cfg.Liveness:
		return nil, fmt.Errorf("%w config: Poll %s exceeds Liveness %s, waiters would count as dead", ErrInvalid, cfg.Poll, cfg.Liveness)
	}
	m := makeManager(cfg)
	m.store, m.queues, m.bounded = newNode(rdb, cfg), true, obeysContext(rdb)
	if cfg.Poll == 0 {
		m.wake = newWakeup(rdb)
	}
	return m, nil
}

func makeManager(cfg Config) *Manager {
	m := &Manager{
		cfg:      cfg,
		defaults: settings{ttl: cfg.TTL, meta: metaSuffix(cfg.Metadata)},
		id:       rand.Text(),
		closing:  make(chan struct{}),
		gone:     make(chan struct{}),
		held:     make(map[*holding]struct{}),
		dog:      newWatchdog(),
	}
	if cfg.Poll > 0 {
		m.id = pollingMark + m.id
	}
	//nolint:forbidigo // the loops belong to the manager and outlive every caller; a caller's values (its trace) must not leak into them
	m.life, m.stop = context.WithCancel(context.Background())
	return m
}

func checkClient(rdb redis.UniversalClient) error {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("%w argument: no redis client", ErrInvalid)
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return fmt.Errorf("%w argument: a Ring's publish/subscribe does not reach every waiter", ErrInvalid)
	}
	return nil
}

// newToken returns a unique name for one holding.
func (m *Manager) newToken() string {
	if m.wake.mute.Load() {
		return pollingMark + m.id + "." + rand.Text()
	}
	return m.id + "." + rand.Text()
}

// GuardKeys returns the keys that a script passes to lock_guard (see [GuardLua]); both
// must be in its KEYS. They are empty for an invalid name.
func (m *Manager) GuardKeys(resource string) (lockKey, waitersKey string) {
	lockKey, waitersKey, _ = m.InstantKeys(resource)
	return lockKey, waitersKey
}

// InstantKeys returns the keys that a script passes to lock_instant (see [InstantLua]); all
// must be in its KEYS. They are empty for an invalid name.
func (m *Manager) InstantKeys(resource string) (lockKey, waitersKey, fenceKey string) {
	k, err := keysOf(m.cfg.Prefix, resource)
	if err != nil {
		return "", "", ""
	}
	return k[keyLock], k[keyWaiters], k[keyFence]
}

// Held lists the locks that this manager holds by its local state, sorted by resource:
// one handle of each.
func (m *Manager) Held() []*Lock {
	var locks []*Lock
	for _, h := range m.snapshot() {
		h.mu.Lock()
		if h.state == stateHeld && len(h.handles) > 0 {
			locks = append(locks, h.handles[0])
		}
		h.mu.Unlock()
	}
	slices.SortFunc(locks, func(a, b *Lock) int { return cmp.Compare(a.h.resource, b.h.resource) })
	return locks
}

// Waiting returns the number of acquires of this manager that wait for a lock which another
// holder has.
func (m *Manager) Waiting() int { return int(m.waiting.Load()) }

// ReleaseAll releases every lock that this manager holds, with all handles, eight
// concurrently. The error joins those of the releases; a lock that had already ended
// is no error. Locks acquired during the call may stay held. After Close the error is
// ErrClosed.
func (m *Manager) ReleaseAll(ctx context.Context) error {
	if err := m.begin(); err != nil {
		return opError("release all", "", err)
	}
	defer m.work.Done()
	return m.releaseAll(ctx)
}

// releaseParallel is the number of locks that releaseAll releases concurrently.
const releaseParallel = 8

func (m *Manager) releaseAll(ctx context.Context) error {
	locks := make(chan *holding)
	errs := make([]error, releaseParallel)
	var releasing sync.WaitGroup
	for i := range errs {
		releasing.Go(func() {
			for h := range locks {
				// A lock that had already ended needs no release.
				if err := h.release(ctx, nil); err != nil && !errors.Is(err, ErrNotHeld) {
					errs[i] = errors.Join(errs[i], opError("release", h.resource, err))
				}
			}
		})
	}
	for _, h := range m.snapshot() {
		locks <- h
	}
	close(locks)
	releasing.Wait()
	return errors.Join(errs...)
}

// Close releases all held locks, ends waiting acquires with ErrClosed, removes them
// from their queues and stops the loops. It returns when all of that is done. If ctx
// ends first, as is usual after SIGTERM, Close still waits up to Config.CallTimeout
// for the releases, which have their own context, and then returns the context's
// cause. The error joins those of the releases. A second call waits for the first.
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
	}
	more, cancel := m.cleanUp(ctx)
	defer cancel()
	select {
	case <-m.gone:
		return m.closeErr
	case <-more.Done():
	}
	return fmt.Errorf("lock: close: %w", ended(ctx))
}

func (m *Manager) shutDown(ctx context.Context) {
	m.closeErr = m.releaseAll(ctx)
	m.stop()
	m.mu.Lock()
	m.drained = true
	m.mu.Unlock()
	m.work.Wait()
	close(m.gone)
}

// snapshot lists the held locks.
func (m *Manager) snapshot() []*holding {
	m.mu.Lock()
	defer m.mu.Unlock()
	locks := make([]*holding, 0, len(m.held))
	for h := range m.held {
		locks = append(locks, h)
	}
	return locks
}

// begin registers work that Close waits for; work.Done ends it. It fails once Close
// has begun, so that the count cannot rise from zero during the wait.
func (m *Manager) begin() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.work.Add(1)
	return nil
}

// background runs fn on a goroutine that Close waits for.
func (m *Manager) background(fn func()) {
	m.mu.Lock()
	drained := m.drained
	if !drained {
		m.work.Add(1)
	}
	m.mu.Unlock()
	go func() {
		if !drained {
			defer m.work.Done()
		}
		fn()
	}()
}

// surrender releases, in the background, a lock that was held for its maximum time. If
// that fails, the key expires with its TTL.
func (m *Manager) surrender(h *holding) {
	if m.begin() != nil {
		return // Close releases it
	}
	defer m.work.Done()
	m.unwatch(h)
	m.work.Go(func() { _, _ = m.free(m.life, h.resource, &h.keys, h.token, "") }) //nolint:errcheck // see above
}

// free releases the lock and the queue entry of a token, even if ctx has ended.
func (m *Manager) free(ctx context.Context, resource string, k *keys, token, member string) (held bool, err error) {
	ctx, cancel := m.cleanUp(ctx)
	defer cancel()
	held, handed, err := m.store.release(ctx, k, token, member)
	if handed {
		m.cfg.Observer.HandedOver(resource)
	}
	return held, err
}

// cleanUp returns a context for work that must be done even if ctx has ended.
func (m *Manager) cleanUp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), m.cfg.CallTimeout)
}
