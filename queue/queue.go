// Package queue is a durable task queue on Redis sorted sets: delivery at least
// once, leases instead of locks, and no polling.
//
// A task is in one of four sorted sets (ready, delayed, leased, dead), and its
// payload is in a hash. Dequeuing a task gives it a lease. When a worker dies, its
// leases expire, and the next worker that dequeues takes over the tasks. Every
// change is one script, so a task is always in exactly one state. All times are
// those of the Redis server's clock.
//
// All keys share one hash tag, so a queue lives in one slot of a cluster.
// [EnqueueLua] lets another script in that slot add tasks atomically.
//
// The client given to [New] should have MaxRetries: -1 and
// ContextTimeoutEnabled: true. Callers may repeat any operation whose outcome is
// unknown.
package queue

import (
	"context"
	_ "embed" // for the script fragments
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// Config configures a queue. The zero value of a field selects its default;
// [New] rejects values out of bounds.
type Config struct {
	// Prefix begins every key and includes a hash tag: "fs:{p0}:q:orders:". Required.
	Prefix string
	// Lease is how long a dequeued task belongs to its worker unless it is extended.
	// Default 10 s, at least 50 ms and at most 24 h; less than 1 s is meant for tests.
	Lease time.Duration
	// MaxAttempts is how many times a task is delivered before it becomes a dead letter, at
	// most 1,000,000. Default 20.
	MaxAttempts int
	// BackoffBase and BackoffMax bound the delay after a failed attempt: a random
	// time up to BackoffBase * 2^(attempt-1), at most BackoffMax. BackoffBase is at least
	// 1 ms, default 250 ms; BackoffMax is at least BackoffBase and at most 30 days, default
	// 1 min or BackoffBase, whichever is more.
	BackoffBase, BackoffMax time.Duration
	// MaxLength bounds the entries of ready, delayed and leased tasks together; an
	// ordinary task is one entry. Default 1,000,000.
	MaxLength int
	// MaxDead bounds the dead letters; the oldest are dropped first, with their payloads. After it was lowered, each
	// script that adds dead letters drops up to 512 more than it adds. Default 10,000.
	MaxDead int
	// Followers is the queue to which Complete and Then add follow-up tasks. A
	// separate queue keeps tasks that are due much later from counting towards this
	// queue's MaxLength. Its keys must have the same hash tag, and every process must
	// configure the same one. Default: the queue itself.
	Followers *Queue
}

const (
	minLease      = 50 * time.Millisecond
	maxLease      = 24 * time.Hour
	maxBackoff    = 30 * 24 * time.Hour
	chunkTasks    = 512     // tasks per script call, which bounds how long one script runs
	moveBound     = 256     // due tasks promoted, and expired leases reclaimed, per dequeue
	maxReason     = 4096    // bytes kept of a failure's reason
	maxFetched    = 4 << 20 // bytes of payload per dequeue, unless a single task has more
	defaultIdle   = 5 * time.Second
	maxPriority   = 9
	maxID         = 255 // bytes; dequeue.lua relies on it
	maxAttemptCap = 1_000_000
)

// Queue is one named queue. It is safe for concurrent use and needs no closing.
type Queue struct {
	rdb  redis.UniversalClient
	cfg  Config
	keys keys

	followers *Queue
	both      []string // the keys of the queue and of its followers
}

// New validates the configuration and returns the queue. It does not talk to Redis.
// Errors: ErrConfig.
func New(rdb redis.UniversalClient, cfg Config) (*Queue, error) {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("%w: no redis client", ErrConfig)
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	k, err := newKeys(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	q := &Queue{rdb: rdb, cfg: cfg, keys: k}
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

// Prefix is the prefix of the queue's keys; see [Config].
func (q *Queue) Prefix() string { return q.keys.prefix }

// MaxLength is the bound on the entries of ready, delayed and leased tasks, the
// argument of queue_room in [EnqueueLua].
func (q *Queue) MaxLength() int { return q.cfg.MaxLength }

// eval runs a script with the queue's keys.
func (q *Queue) eval(ctx context.Context, s *redis.Script, args ...any) *redis.Cmd {
	return s.Run(ctx, q.rdb, q.keys.all, args...)
}

func (c Config) withDefaults() Config {
	setDefault(&c.Lease, 10*time.Second)
	setDefault(&c.MaxAttempts, 20)
	setDefault(&c.BackoffBase, 250*time.Millisecond)
	setDefault(&c.BackoffMax, max(time.Minute, c.BackoffBase))
	setDefault(&c.MaxLength, 1_000_000)
	setDefault(&c.MaxDead, 10_000)
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

// setDefault sets a zero value to its default.
func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
