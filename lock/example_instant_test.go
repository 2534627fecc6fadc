package lock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/lock"
)

// A script that needs the lock only while it runs does not have to acquire it, unless
// another caller holds it.
func ExampleManager_InstantKeys() {
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

	addPoints := redis.NewScript(lock.InstantLua + `
		local fence = lock_instant(KEYS[1], KEYS[2], KEYS[3])
		if not fence then return -1 end
		lock_instant_end(KEYS[3], fence)
		return redis.call('INCRBY', KEYS[4], ARGV[1])`)
	const account = "{account-8}"
	lockKey, waitersKey, fenceKey := locks.InstantKeys(account)
	add := func() {
		n, err := addPoints.Run(ctx, rdb, []string{lockKey, waitersKey, fenceKey, account + ":points"}, 10).Int()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n)
	}

	add()
	l, err := locks.Acquire(ctx, account)
	if err != nil {
		fmt.Println(err)
		return
	}
	add() // refused: the lock is held
	if err := l.Release(ctx); err != nil {
		fmt.Println(err)
	}
	add()
	// Output:
	// 10
	// -1
	// 20
}
