// Package queue is a durable task queue on Redis sorted sets: delivery at least
// once, leases instead of locks, and no polling.
//
// A task is in one of four sorted sets (ready, delayed, leased, dead), or in a
// fifth where done tasks are kept; its payload is in a hash. Taking a task gives
// it a lease; a worker that dies lets the lease run out and whoever dequeues next
// takes the task over. Every change is one script, so a task is never in two
// states or in none. Time is the Redis server's.
//
// Keys share one hash tag, so a queue lives in one slot of a cluster.
// [EnqueueLua] lets another script of that slot add tasks atomically.
//
// The client given to [New] should have MaxRetries: -1 and
// ContextTimeoutEnabled: true; every operation may be repeated by the caller
// after an unknown outcome.
package queue

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Config configures a queue. The zero value of a field means its default;
// anything out of bounds is an error of [New].
type Config struct {
	// Prefix begins every key and includes a hash tag: "fs:{p0}:q:orders:". Required.
	Prefix string
	// Lease is how long a dequeued task belongs to its taker unless extended.
	// Default 10 s, at least 50 ms; under 1 s is meant for tests.
	Lease time.Duration
	// MaxAttempts is how many times a task is delivered before it is dead. Default 20.
	MaxAttempts int
	// BackoffBase and BackoffMax bound the delay after a failed attempt: a random
	// time up to BackoffBase * 2^(attempt-1), at most BackoffMax. Defaults 250 ms and 1 min.
	BackoffBase, BackoffMax time.Duration
	// MaxLength bounds ready, delayed and leased tasks together. Default 1,000,000.
	MaxLength int
	// MaxDead bounds the dead letters; the oldest go first, with their bodies. Default 10,000.
	MaxDead int
	// KeepDone is how long a task that was acknowledged can still be looked at, in
	// the state StateDone, with payload and attempts; its id is refused as long as it
	// is kept, and its unique key is free. Those that are too old go, a bounded number
	// at a time, when workers look for tasks and when others are acknowledged. Each
	// process of a queue needs the same value. Up to a year. Default 0: not at all.
	KeepDone time.Duration
	// MaxDone goes with KeepDone and bounds how many are kept; the oldest go first.
	// They do not count for MaxLength. Default 10,000.
	MaxDone int
	// MaxLeased bounds how many tasks are leased at once, by all workers on all
	// processes together; each process of a queue needs the same value. Default 0: no bound.
	MaxLeased int
	// Rate bounds how many tasks are taken per second, by all workers on all
	// processes together, on average: a queue that was idle lets Burst of them
	// through at once. 0.000001 to 100,000; each process of a queue needs the same
	// value. A task that comes back and is taken again counts again, also where its
	// attempt is uncounted, because its handler may have begun. Default 0: no bound.
	//
	// It is enforced by the generic cell rate algorithm (ITU-T I.371) on the Redis server's clock.
	Rate float64
	// Burst goes with Rate: 1 to 1,000,000, and what a month lets through at most.
	// Default a second's worth, at least 1.
	Burst int
	// Followers is the queue to which the tasks that follow others are added, by
	// Complete and by Then, in the same step: for what is due much later, so that it
	// does not count for this queue's MaxLength. Its keys must have the same hash tag.
	// Each process of a queue needs the same. Default: the queue itself.
	Followers *Queue
}

const (
	minLease      = 50 * time.Millisecond
	maxLease      = 24 * time.Hour
	maxBackoff    = 30 * 24 * time.Hour
	chunkTasks    = 512  // tasks per script call, which bounds how long one script runs
	moveBound     = 256  // due tasks promoted, and expired leases reclaimed, per dequeue
	maxReason     = 4096 // bytes of a failure's reason that are kept
	defaultIdle   = 5 * time.Second
	maxPriority   = 9
	maxID         = 255 // bytes; dequeue.lua relies on it
	maxAttemptCap = 1_000_000
)

// Queue is one named queue. It is safe for concurrent use and holds nothing
// that has to be closed.
type Queue struct {
	rdb  redis.UniversalClient
	cfg  Config
	keys keys

	limits, done []any // of the configuration, as the scripts take them

	followers *Queue
	both      []string // the keys of the queue and of its followers
}

// New validates the configuration and returns the queue. It does not talk to Redis.
// Errors: ErrConfig.
func New(rdb redis.UniversalClient, cfg Config) (*Queue, error) {
	if rdb == nil {
		return nil, fmt.Errorf("%w: no redis client", ErrConfig)
	}
	if err := cfg.validateLimits(); err != nil {
		return nil, err
	}
	if err := cfg.validateDone(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	k, err := newKeys(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	q := &Queue{rdb: rdb, cfg: cfg, keys: k, limits: cfg.limitArgs(), done: cfg.doneArgs()}
	q.followers = q
	if f := cfg.Followers; f != nil {
		if hashTag(f.keys.prefix) != hashTag(k.prefix) {
			return nil, fmt.Errorf("%w: Followers has the prefix %q, want the hash tag of %q", ErrConfig, f.keys.prefix, k.prefix)
		}
		q.followers = f
	}
	q.both = append(append([]string(nil), k.all...), q.followers.keys.all...)
	return q, nil
}

func (c Config) withDefaults() Config {
	setDefault(&c.Lease, 10*time.Second)
	setDefault(&c.MaxAttempts, 20)
	setDefault(&c.BackoffBase, 250*time.Millisecond)
	setDefault(&c.BackoffMax, max(time.Minute, c.BackoffBase))
	setDefault(&c.MaxLength, 1_000_000)
	setDefault(&c.MaxDead, 10_000)
	if c.KeepDone > 0 {
		setDefault(&c.MaxDone, defaultMaxDone)
	}
	if c.Rate > 0 {
		setDefault(&c.Burst, defaultBurst(c.Rate))
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Lease < minLease || c.Lease > maxLease:
		return fmt.Errorf("%w: Lease %v, want %v to %v", ErrConfig, c.Lease, minLease, maxLease)
	case c.MaxAttempts < 1 || c.MaxAttempts > maxAttemptCap:
		return fmt.Errorf("%w: MaxAttempts %d, want 1 to %d", ErrConfig, c.MaxAttempts, maxAttemptCap)
	case c.BackoffBase < time.Millisecond:
		return fmt.Errorf("%w: BackoffBase %v, want at least 1ms", ErrConfig, c.BackoffBase)
	case c.BackoffMax < c.BackoffBase || c.BackoffMax > maxBackoff:
		return fmt.Errorf("%w: BackoffMax %v, want BackoffBase (%v) to %v", ErrConfig, c.BackoffMax, c.BackoffBase, maxBackoff)
	case c.MaxLength < 1:
		return fmt.Errorf("%w: MaxLength %d, want at least 1", ErrConfig, c.MaxLength)
	case c.MaxDead < 1:
		return fmt.Errorf("%w: MaxDead %d, want at least 1", ErrConfig, c.MaxDead)
	}
	return nil
}

// setDefault gives a setting left at its zero value its default.
func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
