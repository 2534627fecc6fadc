package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Errors of this package; compare with errors.Is. All other errors come from Redis or
// the network and are wrapped with the operation.
var (
	// ErrTaken: another client holds the lock or is waiting for it.
	ErrTaken = errors.New("lock: taken")
	// ErrWaitTimeout: the context or the wait limit ended while Acquire waited. The
	// context's error and cause are joined to it.
	ErrWaitTimeout = errors.New("lock: wait ended without the lock")
	// ErrNested: the context of an Acquire or Do already holds the lock, so it would
	// wait for itself. See [WithReentry].
	ErrNested = errors.New("lock: the context already holds the lock")
	// ErrLost: the lock ended before its holder released it. Its key was deleted or
	// overwritten, could not be renewed in time, or had no watchdog.
	ErrLost = errors.New("lock: lost")
	// ErrMaxHold: the lock was held for the time of [WithMaxHold] and has been released.
	ErrMaxHold = errors.New("lock: held for its maximum time")
	// ErrNotHeld: Redis does not, or no longer, hold the lock for this holder. Another
	// client may have held it in the meantime.
	ErrNotHeld = errors.New("lock: not held")
	// ErrForeignKey: one of the resource's keys has a value of another type, so another
	// program uses that name.
	ErrForeignKey = errors.New("lock: key holds another type")
	// ErrNoQuorum: too few of the independent nodes could be reached to decide. Locks
	// taken on the other nodes are released.
	ErrNoQuorum = errors.New("lock: no quorum")
	// ErrReleased: the holder has released the lock.
	ErrReleased = errors.New("lock: released")
	// ErrClosed: the manager was closed.
	ErrClosed = errors.New("lock: manager closed")
	// ErrInvalid: a setting or an argument is invalid. Nothing was done.
	ErrInvalid = errors.New("lock: invalid")
)

// ended returns why ctx ended: its error, and its cause if that is a different one.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return cause
	}
	return errors.Join(err, cause)
}

// opError prefixes an error with the operation and the resource.
func opError(op, resource string, err error) error {
	if resource == "" {
		return fmt.Errorf("lock: %s: %w", op, trimmed{err})
	}
	return fmt.Errorf("lock: %s %q: %w", op, resource, trimmed{err})
}

// trimmed removes the package's name from an error, because the operation in front of
// it already has it.
type trimmed struct{ error }

func (t trimmed) Error() string { return strings.TrimPrefix(t.error.Error(), "lock: ") }
func (t trimmed) Unwrap() error { return t.error }
