package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/internal/pause"
)

const (
	// shallow is the smaller number of pending tasks; the larger is deepFactor
	// times the tasks of a run.
	shallow    = 1_000
	deepFactor = 10
	// depthTime is how long a measurement takes.
	depthTime = 2 * time.Second
)

// depth is the throughput of workers that add a task for each one they finish, so that the
// number of pending tasks stays constant.
type depth struct {
	meter.Usage
	tasks int64
}

func (d depth) perSecond() float64 { return float64(d.tasks) / d.Elapsed.Seconds() }

// depths measures a short queue and a long one in turn, both on the same Redis, each through
// its own client.
func (b *bench) depths(ctx context.Context, all []contender, r *results) error {
	for _, ours := range []bool{true, false} {
		c, ok := pick(all, ours)
		if !ok || !ours && !b.opts.depthAsynq {
			continue
		}
		if err := b.depthsOf(ctx, c, r.of[c.name]); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return b.flush(ctx)
}

func (b *bench) depthsOf(ctx context.Context, c contender, r *result) (err error) {
	if err := b.flush(ctx); err != nil {
		return err
	}
	r.deep = b.opts.tasks * deepFactor
	var pools [2]*pool
	defer func() {
		for _, p := range pools {
			if p != nil {
				err = errors.Join(err, p.q.close())
			}
		}
	}()
	for i, n := range []int{shallow, r.deep} {
		fmt.Fprintf(b.progress, "depth: %s, %d pending\n", c.name, n)
		if pools[i], err = b.openPool(ctx, c, n); err != nil {
			return err
		}
	}
	for round := range b.opts.rounds {
		for i := range pools {
			at := (i + round) % len(pools)
			got, err := b.steady(ctx, pools[at])
			if err != nil {
				return err
			}
			r.depth[at] = append(r.depth[at], got)
		}
	}
	for _, p := range pools {
		o, err := p.check(ctx)
		if err != nil {
			return err
		}
		r.depthOutcome = r.depthOutcome.plus(o)
	}
	return nil
}

// pool is a queue with a constant number of tasks.
type pool struct {
	q       queueClient
	perCall int
	pending int
	ran     []atomic.Bool // by index; later tasks are not tracked
	next    atomic.Int64  // the index of the next task
	handled atomic.Int64
	again   atomic.Int64 // runs of tasks that had run already
	wrong   complaints
}

// trackedRuns is how many tasks beyond the initial ones a pool tracks.
const trackedRuns = 4_000_000

func (b *bench) openPool(ctx context.Context, c contender, n int) (*pool, error) {
	q, err := c.open(b.addr, queueName())
	if err != nil {
		return nil, err
	}
	p := &pool{q: q, perCall: c.perCall, pending: n, ran: make([]atomic.Bool, n+trackedRuns)}
	p.next.Store(int64(n))
	// The fillers use the largest calls that are allowed.
	if err := fill(ctx, q, 0, n, max(c.perCall, batchedCall)); err != nil {
		return nil, errors.Join(err, q.close())
	}
	return p, nil
}

// handle finishes tasks and adds as many new ones.
func (p *pool) handle(ctx context.Context, batch []int) []error {
	first := int(p.next.Add(int64(len(batch)))) - len(batch)
	if err := p.q.enqueue(ctx, newJobs(first, len(batch))); err != nil {
		p.wrong.add(err)
	}
	for _, index := range batch {
		if index < len(p.ran) && p.ran[index].Swap(true) {
			p.again.Add(1)
		}
	}
	p.handled.Add(int64(len(batch)))
	return nil
}

func (b *bench) steady(ctx context.Context, p *pool) (result depth, err error) {
	stop, err := p.q.start(ctx, p.handle)
	if err != nil {
		return result, fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, stop(), p.wrong.err()) }()
	if err := pause.OrCause(ctx, warmUp); err != nil {
		return result, err
	}
	result.tasks = -p.handled.Load()
	result.Usage, err = b.use(ctx, func() error { return pause.OrCause(ctx, depthTime) })
	result.tasks += p.handled.Load()
	return result, err
}

// check compares the runs with the expected ones.
func (p *pool) check(ctx context.Context) (outcome, error) {
	left, err := p.q.left(ctx)
	if err != nil {
		return outcome{}, err
	}
	// Each run added a task, so as many should be pending as at the beginning.
	return outcome{missing: int64(p.pending - left), duplicates: p.again.Load()}, nil
}
