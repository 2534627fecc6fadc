package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// contender is a queue library in one setting.
type contender struct {
	// name is its name in tables and flags.
	name string
	// ours reports whether it is the library of this repository.
	ours bool
	// best says that it is the setting for phases that need only one of each library.
	best bool
	// perCall is how many tasks a call of enqueue adds, unless the phase decides.
	perCall int
	// open makes a client with connections of its own for the queue of that name.
	open func(addr, name string) (queueClient, error)
}

// queueClient is the client of one process.
type queueClient interface {
	// enqueue adds tasks, in one call where the library can.
	enqueue(ctx context.Context, jobs []job) error
	// start starts the workers, and returns immediately. stop ends them after the running
	// handlers, and returns their errors.
	start(ctx context.Context, h handler) (stop func() error, err error)
	// left counts the tasks in any state.
	left(ctx context.Context) (int, error)
	close() error
}

// handler processes tasks, given by their index, and returns an error per task; nil when all
// succeeded. A task that failed has to run again after retryDelay.
type handler func(ctx context.Context, batch []int) []error

// errTask is the error of a task that has to fail.
var errTask = errors.New("meant to fail")

// job is one task. Its payload holds its index.
type job struct {
	id      string
	payload []byte
	due     time.Time // zero: now
}

const (
	// payloadSize is the size of every payload, in bytes.
	payloadSize = 100
	// concurrency is how many handler calls run concurrently, as in asynq's own benchmark.
	concurrency = 10
	// retryDelay is when a failed task has to run again.
	retryDelay = 10 * time.Millisecond
	// poolSize is enough for concurrent calls of all goroutines of a phase.
	poolSize = 128
)

func newJob(index int) job {
	payload := make([]byte, payloadSize)
	binary.BigEndian.PutUint64(payload, uint64(index))
	return job{id: "task-" + strconv.Itoa(index), payload: payload}
}

// newJobs makes the tasks from first on.
func newJobs(first, n int) []job {
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = newJob(first + i)
	}
	return jobs
}

// indexOf reads a payload.
func indexOf(payload []byte) (int, error) {
	if len(payload) != payloadSize {
		return 0, fmt.Errorf("a payload has %d bytes, want %d", len(payload), payloadSize)
	}
	return int(binary.BigEndian.Uint64(payload)), nil
}

// contenders lists all contenders, ours first.
func contenders() []contender {
	return []contender{
		ourContender("ours-batch1", 1),
		ourContender("ours-batch64", 64),
		asynqContender("asynq", false),
		asynqContender("asynq-tuned", true),
	}
}

// choose returns the contenders with the names given, separated by commas; all
// of them for "".
func choose(names string) ([]contender, error) {
	all := contenders()
	if names == "" {
		return all, nil
	}
	known := make([]string, 0, len(all))
	for _, c := range all {
		known = append(known, c.name)
	}
	var chosen []contender
	for name := range strings.SplitSeq(names, ",") {
		found := false
		for _, c := range all {
			if c.name == strings.TrimSpace(name) {
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

// pick returns the best of the chosen settings of a library, in any order.
func pick(all []contender, ours bool) (one contender, found bool) {
	for _, c := range all {
		if c.ours == ours && (!found || c.best) {
			one, found = c, true
		}
	}
	return one, found
}

// goRedis is the client of all contenders, with the same options.
func goRedis(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                  addr,
		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
		PoolSize:              poolSize,
	})
}
