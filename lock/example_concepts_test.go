package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/lock"
)

// openServer is open for examples that use the server directly. Its keys expire only when
// the example calls FastForward.
func openServer(cfg lock.Config) (ctx context.Context, server *miniredis.Miniredis, rdb *redis.Client, locks *lock.Manager, stop func()) {
	server = miniredis.NewMiniRedis()
	check(server.Start())
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	locks, err := lock.New(rdb, cfg)
	check(err)
	return ctx, server, rdb, locks, func() {
		check(locks.Close(ctx))
		cancel()
		check(rdb.Close())
		server.Close()
	}
}

// SETNX and then EXPIRE are two commands. A client that dies between them leaves
// a key without TTL, and the lock is never free again. Acquire sets the key and
// its TTL in one script.
func Example_setnxThenExpire() {
	ctx, _, rdb, locks, stop := openServer(lock.Config{TTL: 10 * time.Second})
	defer stop()

	check(rdb.SetNX(ctx, "naive", "1", 0).Err()) // and the client dies here
	fmt.Println("naive lock expires:", rdb.PTTL(ctx, "naive").Val() > 0)

	l, err := locks.Acquire(ctx, "invoice-42")
	check(err)
	fmt.Println("this lock expires in:", rdb.PTTL(ctx, "lock:{invoice-42}:lock").Val())
	check(l.Release(ctx))
	// Output:
	// naive lock expires: false
	// this lock expires in: 10s
}

// A release compares the token and deletes the key in one script. A holder whose
// lock has expired therefore cannot delete the lock of the next holder.
func ExampleLock_Release() {
	ctx, server, _, locks, stop := openServer(lock.Config{TTL: 5 * time.Second})
	defer stop()

	slow, err := locks.Acquire(ctx, "invoice-42")
	check(err)
	server.FastForward(5 * time.Second) // the holder stalls, and its key expires
	next, err := locks.Acquire(ctx, "invoice-42")
	check(err)

	err = slow.Release(ctx)
	fmt.Println("late release:", errors.Is(err, lock.ErrNotHeld))
	held, err := next.Held(ctx)
	check(err)
	fmt.Println("next holder keeps the lock:", held)
	check(next.Release(ctx))
	// Output:
	// late release: true
	// next holder keeps the lock: true
}

// A waiter joins a queue in Redis and sleeps on a subscription. The release hands
// the lock to the first waiter and publishes one message, in one script: there is
// no polling, and no newcomer can take the lock in between.
func ExampleManager_Acquire() {
	handedOver := 0
	ctx, locks, stop := open(lock.Config{Observer: lock.Observer{
		HandedOver: func(string) { handedOver++ },
	}})
	defer stop()

	first, err := locks.Acquire(ctx, "invoice-42")
	check(err)
	second := make(chan *lock.Lock)
	go func() {
		l, err := locks.Acquire(ctx, "invoice-42")
		check(err)
		second <- l
	}()
	for waiters := int64(0); waiters == 0; {
		info, err := locks.Inspect(ctx, "invoice-42")
		check(err)
		waiters = info.Waiters
	}

	check(first.Release(ctx))
	l := <-second
	fmt.Println("handovers:", handedOver, "fence rises:", l.Fence() > first.Fence())
	check(l.Release(ctx))
	// Output:
	// handovers: 1 fence rises: true
}

// Held asks Redis whether a lock is still held; Manager.Held lists what this
// process holds, without a call.
func ExampleLock_Held() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	l, err := locks.Acquire(ctx, "invoice-42")
	check(err)
	held, err := l.Held(ctx)
	check(err)
	fmt.Println("held:", held, "by this process:", len(locks.Held()))

	check(l.Release(ctx))
	held, err = l.Held(ctx)
	check(err)
	fmt.Println("held:", held, "by this process:", len(locks.Held()))
	// Output:
	// held: true by this process: 1
	// held: false by this process: 0
}

// The watchdog renews the lock at a third of its TTL, so the work may take longer
// than the TTL.
func ExampleLock_ValidUntil() {
	ctx, locks, stop := open(lock.Config{TTL: 3 * time.Second})
	defer stop()

	l, err := locks.Acquire(ctx, "import")
	check(err)
	first := l.ValidUntil()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for l.Context().Err() == nil && !l.ValidUntil().After(first) {
		<-tick.C // the work
	}
	fmt.Println("renewed:", l.ValidUntil().After(first))
	check(l.Release(ctx))
	// Output:
	// renewed: true
}
