package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/lock"
)

// A process can list the locks that it holds and release all of them, for example before it
// stops accepting work.
func ExampleManager_ReleaseAll() {
	ctx, locks, stop := open(lock.Config{})
	defer stop()

	for _, name := range []string{"b", "c", "a"} {
		_, err := locks.Acquire(ctx, name)
		check(err)
	}
	for _, l := range locks.Held() {
		fmt.Println(l.Resource())
	}
	check(locks.ReleaseAll(ctx))
	fmt.Println(len(locks.Held()))
	// Output:
	// a
	// b
	// c
	// 0
}

// Without publish/subscribe, waiters poll. They are still served in the order of arrival.
func ExampleConfig_poll() {
	ctx, locks, stop := open(lock.Config{Poll: 10 * time.Millisecond})
	defer stop()

	l, err := locks.Acquire(ctx, "invoice-42")
	check(err)
	served := make(chan error)
	go func() {
		served <- locks.Do(ctx, "invoice-42", func(context.Context, *lock.Lock) error { return nil })
	}()
	check(l.Release(ctx))
	fmt.Println(<-served)
	// Output:
	// <nil>
}

// The observer counts events for the program's metrics.
func ExampleObserver() {
	var acquired, lost atomic.Int64
	ctx, locks, stop := open(lock.Config{Observer: lock.Observer{
		Acquired: func(string, time.Duration) { acquired.Add(1) },
		Lost:     func(string, error) { lost.Add(1) },
	}})
	defer stop()

	for range 3 {
		l, err := locks.Acquire(ctx, "invoice-42")
		check(err)
		check(l.Release(ctx))
	}
	fmt.Println(acquired.Load(), lost.Load())
	// Output:
	// 3 0
}

// A key without TTL, left by a program that took the lock with SETNX and crashed, does not
// block forever: it gets a TTL, during which a holder that is still alive can finish.
func ExampleConfig_grace() {
	server := miniredis.NewMiniRedis()
	check(server.Start())
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	defer rdb.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	locks, err := lock.New(rdb, lock.Config{Grace: 30 * time.Second})
	check(err)
	defer func() { check(locks.Close(ctx)) }()

	check(rdb.SetNX(ctx, "lock:{invoice-42}:lock", "1", 0).Err())
	_, err = locks.TryAcquire(ctx, "invoice-42")
	fmt.Println(errors.Is(err, lock.ErrTaken), rdb.PTTL(ctx, "lock:{invoice-42}:lock").Val())

	server.FastForward(30 * time.Second)
	l, err := locks.TryAcquire(ctx, "invoice-42")
	check(err)
	check(l.Release(ctx))
	// Output:
	// true 30s
}

// If another program uses a name, the error is immediate and the key is not changed.
func ExampleManager_Acquire_foreignKey() {
	rdb, disconnect := connect()
	defer disconnect()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	locks, err := lock.New(rdb, lock.Config{})
	check(err)
	defer func() { check(locks.Close(ctx)) }()

	check(rdb.RPush(ctx, "{jobs}:lock", "a job").Err())
	_, err = locks.Acquire(ctx, "{jobs}")
	fmt.Println(errors.Is(err, lock.ErrForeignKey))
	fmt.Println(err)
	// Output:
	// true
	// lock: acquire "{jobs}": key holds another type
}

// Locks on a majority of independent nodes survive the loss of a minority.
func ExampleNewQuorum() {
	var nodes []redis.UniversalClient
	var stops []func()
	for range 3 {
		rdb, stop := connect()
		nodes, stops = append(nodes, rdb), append(stops, stop)
	}
	defer stops[0]()
	defer stops[1]()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	locks, err := lock.NewQuorum(nodes, lock.Config{})
	check(err)
	defer func() { check(locks.Close(ctx)) }()

	stops[2]() // one of the nodes goes down
	l, err := locks.Acquire(ctx, "invoice-42")
	check(err)
	info, err := locks.Inspect(ctx, "invoice-42")
	check(err)
	fmt.Println("nodes:", info.Nodes)
	check(l.Release(ctx))
	// Output:
	// nodes: 2
}
