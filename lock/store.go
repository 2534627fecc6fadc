package lock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// store keeps the locks of a manager: on one Redis, or on several independent nodes of
// which a majority decides.
type store interface {
	// acquire takes the lock for a, keeps its place in the queue if it waits, or reports
	// that the lock is taken. It may repeat a call without a reply, because a repeat with
	// the same token changes nothing.
	acquire(ctx context.Context, a *attempt) (reply, error)
	// release removes the lock and the queue entry of a token. member is that entry, ""
	// if there can be none. held is false if the token did not hold the lock.
	release(ctx context.Context, k *keys, token, member string) (held, handed bool, err error)
	// extend makes a lock last at least ttl from now.
	extend(ctx context.Context, h *holding, ttl time.Duration) extension
	// extendAll is extend for many locks, with the results in their order.
	extendAll(ctx context.Context, locks []*holding, ttl time.Duration) []extension
	// inspect reads the lock and up to this number of waiters.
	inspect(ctx context.Context, k *keys, waiters int) (Info, error)
}

// reply is the result of acquire.
type reply struct {
	held     bool
	fence    int64
	expires  time.Duration // if not held: time until the lock may expire; 0 with several nodes
	repaired bool
	nowUS    int64 // clock of Redis when the script ran, microseconds; 0 with several nodes
}

// extension is the result of extending a lock. If err is nil and held is false, the
// lock is lost.
type extension struct {
	held   bool
	absent bool // the key does not exist; only from a node of a quorum
	err    error
}

// unknown reports whether err leaves open whether Redis ran the script: it is neither a
// reply of Redis nor an error of this package.
func unknown(err error) bool {
	if err == nil {
		return false
	}
	var answer redis.Error
	return !errors.As(err, &answer) && !errors.Is(err, ErrForeignKey) &&
		!errors.Is(err, ErrClosed) && !errors.Is(err, ErrTaken)
}
