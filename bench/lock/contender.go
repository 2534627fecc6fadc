package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// contender is a lock library in one setting.
type contender interface {
	// name is its name in tables and flags.
	name() string
	// waitsOnly says that the setting changes only how it waits, so that it is left out of
	// phases without waiters.
	waitsOnly() bool
	// manager represents one process: it has its own client, whose connections have the name
	// of the process.
	manager(addr, process string) (locker, error)
}

// locker acquires locks for one process.
type locker interface {
	// acquire waits for the lock until ctx ends; the error is then one of ctx's.
	// The end of ctx does not end a lock that was acquired with a deadline.
	acquire(ctx context.Context, resource string) (release func(context.Context) error, err error)
	close(ctx context.Context) error
}

const (
	oursName = "ours"
	// ttl is given to the libraries that take one; those with a default keep it.
	ttl = 10 * time.Second
	// tunedRetry is the pause between attempts in the tuned settings.
	tunedRetry = 5 * time.Millisecond
	// poolSize is enough for concurrent calls of all goroutines of a phase.
	poolSize = 128
)

// contenders lists all contenders, ours first.
func contenders() []contender {
	return []contender{
		ours{},
		redislockContender{},
		redislockContender{tuned: true},
		redsyncContender{},
		redsyncContender{tuned: true},
		rueidislockContender{},
		rueidislockContender{tuned: true},
	}
}

// choose returns the contenders with the names given, separated by commas; all
// of them for "".
func choose(names string) ([]contender, error) {
	all := contenders()
	if names == "" {
		return all, nil
	}
	var chosen []contender
	for name := range strings.SplitSeq(names, ",") {
		known := make([]string, 0, len(all))
		found := false
		for _, c := range all {
			known = append(known, c.name())
			if c.name() == strings.TrimSpace(name) {
				chosen = append(chosen, c)
				found = true
			}
		}
		if !found {
			return nil, fmt.Errorf("no contender %q, there are %s", name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// goRedis is the client of all contenders that use go-redis, with the same options.
func goRedis(addr, process string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                  addr,
		ClientName:            process,
		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
		PoolSize:              poolSize,
	})
}
