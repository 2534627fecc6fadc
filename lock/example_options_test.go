package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/lock"
)

// A lock without watchdog ends with its TTL, unless its holder extends it.
func ExampleWithTTL() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	l, err := locks.Acquire(ctx, "import", lock.WithTTL(3*time.Second), lock.WithoutWatchdog())
	check(err)
	<-l.Context().Done()
	fmt.Println(context.Cause(l.Context()))
	// Output:
	// lock: lost
}

// The holder extends a lock without watchdog itself.
func ExampleLock_Extend() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	l, err := locks.Acquire(ctx, "import", lock.WithTTL(5*time.Second), lock.WithoutWatchdog())
	check(err)
	for range 3 { // chunks of the import
		check(l.Extend(ctx, time.Minute))
	}
	fmt.Println(time.Until(l.ValidUntil()) > 50*time.Second)
	check(l.Release(ctx))
	// Output:
	// true
}

// The watchdog renews a lock for as long as its process runs. A maximum hold ends it if the
// work hangs.
func ExampleWithMaxHold() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	err := locks.Do(ctx, "import", func(ctx context.Context, l *lock.Lock) error {
		<-ctx.Done() // work that hangs
		return nil
	}, lock.WithMaxHold(50*time.Millisecond))
	fmt.Println(errors.Is(err, lock.ErrMaxHold))
	// Output:
	// true
}

// A function re-enters a lock that its caller holds through the context: without a call to
// Redis and with the same fencing token.
func ExampleWithReentry() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	save := func(ctx context.Context) (fence int64, err error) {
		err = locks.Do(ctx, "order-17", func(_ context.Context, l *lock.Lock) error {
			fence = l.Fence()
			return nil
		}, lock.WithReentry())
		return fence, err
	}
	err := locks.Do(ctx, "order-17", func(ctx context.Context, l *lock.Lock) error {
		fence, err := save(ctx)
		fmt.Println("the same:", fence == l.Fence())
		return err
	})
	check(err)
	// Output:
	// the same: true
}

// Holders and waiters have metadata that Inspect shows.
func ExampleManager_Inspect() {
	ctx, locks, stop := open(lock.Config{Metadata: "host a"})
	defer stop()

	l, err := locks.Acquire(ctx, "invoice-42")
	check(err)
	info, err := locks.Inspect(ctx, "invoice-42")
	check(err)
	fmt.Println(info.Held, info.Holder.Metadata)
	fmt.Println(info.Fence == l.Fence(), info.Remaining > 0, info.Waiters)
	check(l.Release(ctx))
	// Output:
	// true host a
	// true true 0
}
