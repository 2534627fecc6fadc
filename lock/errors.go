package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// What can go wrong, told apart with errors.Is. Errors that are none of these
// come from Redis or the network and are wrapped with the operation.
var (
	// ErrTaken says that another holds the lock or is before us in its queue.
	ErrTaken = errors.New("lock: taken")
	// ErrWaitTimeout says that the context or the wait limit ended while Acquire
	// waited. The context's error and cause are joined to it.
	ErrWaitTimeout = errors.New("lock: wait ended without the lock")
	// ErrNested says that the context of an Acquire or Do holds the lock already,
	// so that the wait would be for itself. See [WithReentry].
	ErrNested = errors.New("lock: the context already holds the lock")
	// ErrLost says that the lock ended before its holder released it: its key
	// was deleted, overwritten or taken by [Manager.ForceRelease], could not be
	// renewed in time, or was not to be renewed.
	ErrLost = errors.New("lock: lost")
	// ErrMaxHold says that the lock was held for as long as [WithMaxHold] allows,
	// and has been given back.
	ErrMaxHold = errors.New("lock: held for its maximum time")
	// ErrNotHeld says that Redis does not hold the lock for this holder (any
	// more): another may have held it meanwhile.
	ErrNotHeld = errors.New("lock: not held")
	// ErrForeignKey says that one of the resource's keys holds a value of
	// another type, so something else uses that name.
	ErrForeignKey = errors.New("lock: key holds another type")
	// ErrNoQuorum says that too few of the independent nodes, or of the replicas
	// that [Config] asks for, could be reached to decide. What was taken on the
	// others is given back.
	ErrNoQuorum = errors.New("lock: no quorum")
	// ErrReleased says that the holder has released the lock.
	ErrReleased = errors.New("lock: released")
	// ErrClosed says that the manager was closed.
	ErrClosed = errors.New("lock: manager closed")
	// ErrInvalid says that a setting or an argument cannot work. Nothing was done.
	ErrInvalid = errors.New("lock: invalid")
)

// ended returns why ctx ended: its error, and its cause where that says more.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return cause
	}
	return errors.Join(err, cause)
}

// opError is an error with the operation and the resource before it.
func opError(op, resource string, err error) error {
	if resource == "" {
		return fmt.Errorf("lock: %s: %w", op, trimmed{err})
	}
	return fmt.Errorf("lock: %s %q: %w", op, resource, trimmed{err})
}

// trimmed shows an error of this package without the package's name, which the
// operation before it has said already.
type trimmed struct{ error }

func (t trimmed) Error() string { return strings.TrimPrefix(t.error.Error(), "lock: ") }
func (t trimmed) Unwrap() error { return t.error }
