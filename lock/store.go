package lock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// store is where a manager keeps its locks: one Redis, or several independent
// ones of which a majority decides.
type store interface {
	// queues says whether waiters stand in a queue and are handed the lock.
	queues() bool
	// bounded says that a call ends with its context.
	bounded() bool
	// acquire takes the lock for a, keeps its place in the queue if it waits,
	// or says that the lock is another's. It may repeat a call that got no
	// answer, which with the same token changes nothing.
	acquire(ctx context.Context, a *attempt) (reply, error)
	// release gives up what a token has. member is its entry in the queue, ""
	// if it can have none. held is false when the token did not hold the lock.
	release(ctx context.Context, k *keys, token, member string) (held, handed bool, err error)
	// extend makes a lock last at least ttl from now.
	extend(ctx context.Context, h *holding, ttl time.Duration) extension
	// extendAll is extend for many locks, with the answers in their order.
	extendAll(ctx context.Context, locks []*holding, ttl time.Duration) []extension
	// reasons says why the locks were taken by force, "" for those that were not
	// or of which it cannot be told.
	reasons(ctx context.Context, locks []*holding) []string
	// inspect lists up to so many waiters.
	inspect(ctx context.Context, k *keys, waiters int) (Info, error)
	// forceRelease takes the lock from whoever holds it. from is the token it was
	// taken from, "" for a key of another program.
	forceRelease(ctx context.Context, k *keys, reason string) (held bool, from string, handed bool, err error)
}

// reply is what came of asking for a lock.
type reply struct {
	held     bool
	fence    int64
	lapse    time.Duration // while not held: until the lock may expire
	repaired bool
	nowUS    int64 // the clock of Redis when the script ran, microseconds; 0 with several nodes
}

// extension is what came of extending a lock. Without an error and not held,
// the lock is no more ours.
type extension struct {
	held   bool
	absent bool // nobody holds it there; told by a node of a quorum
	err    error
}

// unknown says whether err leaves open if Redis ran the script: it is neither
// Redis's own answer nor one of ours.
func unknown(err error) bool {
	if err == nil {
		return false
	}
	var answer redis.Error
	return !errors.As(err, &answer) && !errors.Is(err, ErrForeignKey) &&
		!errors.Is(err, ErrClosed) && !errors.Is(err, ErrTaken)
}
