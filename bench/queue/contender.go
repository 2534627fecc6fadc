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
	// name is how tables and flags call it.
	name string
	// ours says whose library it is.
	ours bool
	// best says that it is the setting to take where one of each library is enough.
	best bool
	// perCall is how many tasks a call of enqueue adds where a phase leaves that open.
	perCall int
	// open makes a client with connections of its own for the queue of that name.
	open func(addr, name string) (queueClient, error)
}

// queueClient is what one process works with.
type queueClient interface {
	// enqueue adds tasks, in one call where the library can.
	enqueue(ctx context.Context, jobs []job) error
	// start begins to work on the queue, and returns at once. stop ends that
	// after the handlers under way, and returns what went wrong meanwhile.
	start(ctx context.Context, h handler) (stop func() error, err error)
	// left counts the tasks in any state.
	left(ctx context.Context) (int, error)
	close() error
}

// handler works on tasks, named by their index, and says per task how it went;
// nil when all are done. A task that failed is to run again after retryDelay.
type handler func(ctx context.Context, batch []int) []error

// errTask is the failure of a task that is meant to fail.
var errTask = errors.New("meant to fail")

// job is one task. Its payload holds its index.
type job struct {
	id      string
	payload []byte
	due     time.Time // zero: now
}

const (
	// payloadSize is that of every task, in bytes.
	payloadSize = 100
	// concurrency is how many handler calls run at once, which is what asynq's
	// own benchmark takes.
	concurrency = 10
	// retryDelay is when a failed task is to run again.
	retryDelay = 10 * time.Millisecond
	// poolSize is enough for all goroutines of a phase to call at the same time.
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

// contenders lists everyone, ours first.
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

// pick returns the best chosen setting of a library, whatever the order.
func pick(all []contender, ours bool) (one contender, found bool) {
	for _, c := range all {
		if c.ours == ours && (!found || c.best) {
			one, found = c, true
		}
	}
	return one, found
}

// goRedis is everyone's client, with the same options.
func goRedis(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                  addr,
		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
		PoolSize:              poolSize,
	})
}
