package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/runner"
	"flashsale/internal/pause"
)

// producers is how many goroutines add tasks.
var producers = []int{1, 16}

const (
	// enqueueTime is how long one measurement takes.
	enqueueTime = 800 * time.Millisecond
	// batchedCall is how many tasks a call of the batched setting adds.
	batchedCall = 100
)

// way is a way to add tasks: a contender and how many a call adds.
type way struct {
	contender
	perCall int
}

func (w way) String() string {
	name := "asynq"
	if w.ours {
		name = "ours"
	}
	if w.perCall > 1 {
		return fmt.Sprintf("%s, %d a call", name, w.perCall)
	}
	return name + ", one a call"
}

// ways lists the ways of the chosen contenders. Their settings do not matter here.
func ways(all []contender) []way {
	var list []way
	if c, ok := pick(all, true); ok {
		list = append(list, way{c, 1}, way{c, batchedCall})
	}
	if c, ok := pick(all, false); ok {
		list = append(list, way{c, 1})
	}
	return list
}

// enqueued is one measurement.
type enqueued struct {
	meter.Usage
	tasks int64
}

func (e enqueued) perSecond() float64 { return float64(e.tasks) / e.Elapsed.Seconds() }

func (b *bench) enqueues(ctx context.Context, all []contender, round int, r *results) error {
	for _, n := range producers {
		for _, w := range runner.Turn(ways(all), round) {
			err := b.with(ctx, w.contender, func(q queueClient) error {
				got, err := b.enqueue(ctx, q, n, w.perCall)
				r.noteEnqueued(w.String(), n, got)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// enqueue lets n producers add tasks without pause.
func (b *bench) enqueue(ctx context.Context, q queueClient, n, perCall int) (result enqueued, err error) {
	var stop atomic.Bool
	counts := make([]counter, n)
	done := runner.Run(n, func(i int) error {
		for index := i << 32; !stop.Load(); index += perCall {
			if err := q.enqueue(ctx, newJobs(index, perCall)); err != nil {
				return err
			}
			counts[i].Add(int64(perCall))
		}
		return nil
	})
	defer func() {
		stop.Store(true)
		err = errors.Join(err, runner.Finish(done))
	}()
	if err := pause.OrCause(ctx, warmUp); err != nil {
		return result, err
	}
	before, err := meter.Read(ctx, b.admin)
	if err != nil {
		return result, err
	}
	result.tasks = -total(counts)
	if err := pause.OrCause(ctx, enqueueTime); err != nil {
		return result, err
	}
	result.tasks += total(counts)
	after, err := meter.Read(ctx, b.admin)
	result.Usage = after.Since(before)
	return result, err
}

// counter fills its cache lines, so that counting does not couple goroutines.
type counter struct {
	atomic.Int64
	_ [120]byte
}

func total(counts []counter) int64 {
	var n int64
	for i := range counts {
		n += counts[i].Load()
	}
	return n
}

// fillers is how many producers fill a queue before the workers start.
const fillers = 16

// fill adds n tasks from index first on, in no order.
func fill(ctx context.Context, q queueClient, first, n, perCall int) error {
	return inParts(n, perCall, func(from, to int) error { return q.enqueue(ctx, newJobs(first+from, to-from)) })
}

// fillWith adds the tasks given, in no order.
func fillWith(ctx context.Context, q queueClient, jobs []job, perCall int) error {
	return inParts(len(jobs), perCall, func(from, to int) error { return q.enqueue(ctx, jobs[from:to]) })
}

// inParts makes the fillers call add concurrently until n tasks are added, in parts of bounded
// size. Each call is bounded by its client's time-outs.
func inParts(n, size int, add func(from, to int) error) error {
	var next atomic.Int64
	return <-runner.Run(fillers, func(int) error {
		for {
			from := int(next.Add(int64(size))) - size
			if from >= n {
				return nil
			}
			if err := add(from, min(from+size, n)); err != nil {
				return err
			}
		}
	})
}
