package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/lock"
)

// open returns a manager on a Redis inside the process, and a context for the
// example. A program makes one manager and closes it at its end.
func open(cfg lock.Config) (ctx context.Context, locks *lock.Manager, stop func()) {
	rdb, disconnect := connect()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	locks, err := lock.New(rdb, cfg)
	check(err)
	return ctx, locks, func() {
		check(locks.Close(ctx))
		cancel()
		disconnect()
	}
}

// check keeps the examples short; a program handles its errors.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// TryAcquire does not wait: it fails at once if the lock is taken.
func ExampleManager_TryAcquire() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	l, err := locks.TryAcquire(ctx, "nightly-report")
	check(err)
	_, err = locks.TryAcquire(ctx, "nightly-report")
	fmt.Println(errors.Is(err, lock.ErrTaken))
	check(l.Release(ctx))
	// Output:
	// true
}

// Acquire waits in a queue until its context ends or its own wait limit has passed.
func ExampleWithWaitLimit() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	l, err := locks.Acquire(ctx, "invoice-42")
	check(err)
	_, err = locks.Acquire(ctx, "invoice-42", lock.WithWaitLimit(20*time.Millisecond))
	fmt.Println(errors.Is(err, lock.ErrWaitTimeout), ctx.Err())
	check(l.Release(ctx))
	// Output:
	// true <nil>
}

// Do runs a function under the lock and always releases it, even if the function panics.
func ExampleManager_Do() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	err := locks.Do(ctx, "invoice-42", func(ctx context.Context, l *lock.Lock) error {
		// Use ctx for the work: it ends when the lock is lost.
		return errors.New("the printer is out of paper")
	})
	fmt.Println(err)

	_, err = locks.TryAcquire(ctx, "invoice-42")
	fmt.Println("free again:", err == nil)
	// Output:
	// the printer is out of paper
	// free again: true
}

// AcquireAll takes locks in a fixed order, so that two transfers between the same accounts
// in opposite directions cannot deadlock.
func ExampleManager_AcquireAll() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	both, err := locks.AcquireAll(ctx, []string{"account-9", "account-7"})
	check(err)
	for _, l := range both.Locks() {
		fmt.Println(l.Resource())
	}
	// If one is taken, none is kept.
	_, err = locks.AcquireAll(ctx, []string{"account-1", "account-7"}, lock.WithWaitLimit(time.Millisecond))
	fmt.Println(errors.Is(err, lock.ErrTaken), errors.Is(err, lock.ErrWaitTimeout))
	check(both.Release(ctx))
	// Output:
	// account-7
	// account-9
	// false true
}

// errors.Is distinguishes the errors.
func Example_errors() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()
	l, err := locks.Acquire(ctx, "invoice-42")
	check(err)

	left, leave := context.WithCancelCause(ctx)
	leave(errors.New("the buyer left"))
	_, err = locks.Acquire(left, "invoice-42")
	switch {
	case errors.Is(err, lock.ErrTaken):
		fmt.Println("another client has it")
	case errors.Is(err, lock.ErrWaitTimeout):
		// The context's error and its cause are part of it.
		fmt.Println(errors.Is(err, context.Canceled), errors.Is(err, context.Cause(left)))
	default:
		fmt.Println("redis:", err)
	}
	check(l.Release(ctx))
	// Output:
	// true true
}
