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

// connect returns a client of a Redis inside the process, so that the examples run
// anywhere; a program connects to its own.
func connect() (rdb *redis.Client, stop func()) {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	return rdb, func() {
		if err := rdb.Close(); err != nil {
			panic(err)
		}
		server.Close()
	}
}

// Wait for a lock, work while it is held, release it.
func Example() {
	rdb, stop := connect()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	locks, err := lock.New(rdb, lock.Config{TTL: 5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		if err := locks.Close(ctx); err != nil {
			fmt.Println(err)
		}
	}()

	l, err := locks.Acquire(ctx, "invoice-42")
	if err != nil {
		fmt.Println(err)
		return
	}
	// Use l.Context() for the work: it ends if the lock is lost.
	fmt.Println("held:", l.Context().Err() == nil)

	if _, err := locks.TryAcquire(ctx, "invoice-42"); errors.Is(err, lock.ErrTaken) {
		fmt.Println(err)
	}
	if err := l.Release(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(context.Cause(l.Context()))
	// Output:
	// held: true
	// lock: try "invoice-42": taken
	// lock: released
}

// A script that begins with the guard changes nothing for a caller that lost the lock
// without noticing.
func ExampleManager_GuardKeys() {
	rdb, stop := connect()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	locks, err := lock.New(rdb, lock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		if err := locks.Close(ctx); err != nil {
			fmt.Println(err)
		}
	}()

	addPoints := redis.NewScript(lock.GuardLua + `
		if lock_guard(KEYS[1], KEYS[2], ARGV[1]) < 0 then return -1 end
		return redis.call('INCRBY', KEYS[3], ARGV[2])`)
	// A hash tag keeps the lock and the data it protects in one slot.
	const account = "{account-7}"
	lockKey, waitersKey := locks.GuardKeys(account)

	l, err := locks.Acquire(ctx, account)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		n, err := addPoints.Run(ctx, rdb, []string{lockKey, waitersKey, account + ":points"}, l.GuardValue(), 10).Int()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n)
		if err := l.Release(ctx); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 10
	// -1
}
