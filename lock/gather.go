package lock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// gatherer sends scripts that are called at the same time together, in one
// pipeline, because beside a Redis that is near the system calls cost most. A
// call that finds nothing under way goes out by itself at once; those that come
// while it is under way wait for it to return, and then go out together. A timer
// is for those behind a call that hangs only.
type gatherer struct {
	rdb *redis.Client

	mu     sync.Mutex
	flight int       // number of the call or pipeline whose return is waited for
	busy   bool      // it is under way
	since  time.Time // when it was sent
	near   nearness
	queued []*scriptRun
	timer  *time.Timer // calls overdue; set while somebody is queued
}

const (
	// gatherLimit is the most that one pipeline carries.
	gatherLimit = 128
	// gatherBelow is how long the way to Redis and back may take for gathering
	// to pay. Beyond it, waiting for another's answer would double the time.
	gatherBelow = 2 * time.Millisecond
	// gatherPatience is how long calls wait for one that does not return, as on
	// a connection that hangs, before the next go out by themselves.
	gatherPatience = 20 * time.Millisecond
)

// nearness estimates how long the way to Redis and back takes: the shortest
// call of the last one to two seconds, because under load all others also tell
// of the time they waited for a processor.
type nearness struct {
	since     time.Time
	now, last time.Duration // the shortest of this second and of the one before
}

func (n *nearness) note(at time.Time, took time.Duration) {
	if at.Sub(n.since) > time.Second {
		n.since, n.last, n.now = at, n.now, took
		return
	}
	n.now = min(n.now, took)
}

func (n *nearness) far() bool { return min(n.now, n.last) > gatherBelow }

// scriptRun is one call of a script.
type scriptRun struct {
	ctx    context.Context
	script *redis.Script
	keys   []string
	args   []any
	cmd    *redis.Cmd // its answer, once turn has told
	// turn tells the caller once: nil that cmd is there, a batch to send that,
	// its own call being one of it.
	turn chan *pipeline
	gone bool // its caller has stopped waiting; guarded by the gatherer's mu
}

// run runs a script like redis.Script's Run. A call that waits for its turn
// when ctx ends was not sent; one that is under way then returns the context's
// error, and may still run.
func (g *gatherer) run(ctx context.Context, script *redis.Script, keys []string, args ...any) *redis.Cmd {
	now := time.Now()
	g.mu.Lock()
	if far := g.near.far(); far || !g.busy || now.Sub(g.since) > gatherPatience {
		flight := 0 // one that nobody waits for
		if !far {
			flight = g.takeOff(now)
		}
		g.mu.Unlock()
		defer g.landed(flight, now)
		return script.Run(ctx, g.rdb, keys, args...)
	}
	r := &scriptRun{ctx: ctx, script: script, keys: keys, args: args, turn: make(chan *pipeline, 1)}
	g.queued = append(g.queued, r)
	if len(g.queued) == 1 {
		g.watch(gatherPatience)
	}
	g.mu.Unlock()
	select {
	case batch := <-r.turn:
		if batch != nil {
			g.send(ctx, batch, r)
		}
		return r.cmd
	case <-ctx.Done():
		return g.leave(ctx, r)
	}
}

// leave takes a call whose context has ended out of the queue. If it was asked
// to lead meanwhile, another of its batch is.
func (g *gatherer) leave(ctx context.Context, r *scriptRun) *redis.Cmd {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.gone = true
	g.queued = slices.DeleteFunc(g.queued, (*scriptRun).left)
	select {
	case batch := <-r.turn:
		if batch == nil {
			return r.cmd // the answer came this very moment
		}
		batch.runs = slices.DeleteFunc(batch.runs, (*scriptRun).left)
		switch {
		case len(batch.runs) > 0:
			leader(batch.runs).turn <- batch
		case batch.flight == g.flight:
			g.next()
		}
	default:
	}
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(ctx.Err())
	return cmd
}

func (r *scriptRun) left() bool { return r.gone }

// takeOff makes the next flight the one that is waited for; one before it that
// hangs is waited for no more. The caller holds mu.
func (g *gatherer) takeOff(now time.Time) int {
	g.flight++
	g.busy, g.since = true, now
	return g.flight
}

// landed is called when a call or pipeline has returned. If it is the one that
// calls have gathered behind, they go out.
func (g *gatherer) landed(flight int, sent time.Time) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.near.note(now, now.Sub(sent))
	if flight == g.flight {
		g.next()
	}
}

// pipeline is calls that go out together.
type pipeline struct {
	flight int
	runs   []*scriptRun
}

// next has one of the queued send them, if there are any. The caller holds mu.
func (g *gatherer) next() {
	if len(g.queued) == 0 {
		g.busy = false
		return
	}
	flight := g.takeOff(time.Now())
	n := min(len(g.queued), gatherLimit)
	batch := slices.Clone(g.queued[:n])
	g.queued = slices.Delete(g.queued, 0, n)
	leader(batch).turn <- &pipeline{flight, batch}
}

// watch has overdue called after so long. The caller holds mu.
func (g *gatherer) watch(after time.Duration) {
	if g.timer == nil {
		g.timer = time.AfterFunc(after, g.overdue)
		return
	}
	g.timer.Reset(after)
}

// overdue sends the queued calls although those before them have not returned,
// if they are out for too long.
func (g *gatherer) overdue() {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queued) == 0 {
		return
	}
	if left := g.since.Add(gatherPatience).Sub(now); left > 0 {
		g.watch(left)
		return
	}
	g.next()
	if len(g.queued) > 0 {
		g.watch(gatherPatience)
	}
}

// leader is the call that may wait longest: the pipeline is bounded by its context.
func leader(batch []*scriptRun) *scriptRun {
	best := batch[0]
	until, bounded := best.ctx.Deadline()
	for _, r := range batch[1:] {
		at, ok := r.ctx.Deadline()
		if bounded && (!ok || at.After(until)) {
			best, until, bounded = r, at, ok
		}
	}
	return best
}

// send runs the batch in one pipeline, and a second one for scripts that Redis
// does not know. own is the caller's call among them.
func (g *gatherer) send(ctx context.Context, batch *pipeline, own *scriptRun) {
	defer g.landed(batch.flight, time.Now())
	// The others' calls must not fail because the one who sends them was cancelled.
	deadline, bounded := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	if bounded {
		until, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		ctx = until
	}
	unsent, run := batch.runs, (*redis.Script).EvalSha
	for range 2 {
		pipe := g.rdb.Pipeline()
		for _, r := range unsent {
			r.cmd = run(r.script, ctx, pipe, r.keys, r.args...)
		}
		_, err := pipe.Exec(ctx)
		var missing []*scriptRun
		for _, r := range unsent {
			// A pipeline that could not be sent leaves some without an answer.
			if err != nil && r.cmd.Err() == nil && r.cmd.Val() == nil {
				r.cmd.SetErr(err)
			}
			if redis.HasErrorPrefix(r.cmd.Err(), "NOSCRIPT") {
				missing = append(missing, r)
				continue
			}
			r.answered(own)
		}
		unsent, run = missing, (*redis.Script).Eval
		if len(missing) == 0 {
			return
		}
	}
	for _, r := range unsent {
		r.answered(own)
	}
}

// answered tells the caller that its answer is there, unless it is the one who
// got it.
func (r *scriptRun) answered(own *scriptRun) {
	if r != own {
		r.turn <- nil
	}
}
