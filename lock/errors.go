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
	// ErrWaitTimeout says that the context ended while Acquire waited. The
	// context's error and cause are joined to it.
	ErrWaitTimeout = errors.New("lock: wait ended without the lock")
	// ErrLost says that the lock ended before its holder released it: its key
	// was deleted or overwritten, or could not be renewed in time.
	ErrLost = errors.New("lock: lost")
	// ErrNotHeld says that Redis does not hold the lock for this holder (any
	// more): another may have held it meanwhile.
	ErrNotHeld = errors.New("lock: not held")
	// ErrForeignKey says that one of the resource's keys holds a value of
	// another type, so something else uses that name.
	ErrForeignKey = errors.New("lock: key holds another type")
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
	return fmt.Errorf("lock: %s %q: %w", op, resource, trimmed{err})
}

// trimmed shows an error of this package without the package's name, which the
// operation before it has said already.
type trimmed struct{ error }

func (t trimmed) Error() string { return strings.TrimPrefix(t.error.Error(), "lock: ") }
func (t trimmed) Unwrap() error { return t.error }
