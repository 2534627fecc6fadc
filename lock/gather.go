package lock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// gatherFrom is the number of concurrent calls that are sent directly. Those beyond it
	// share pipelines, because at that load system calls dominate the cost.
	gatherFrom = 16
	// gatherLimit is the maximum number of calls in one pipeline.
	gatherLimit = 128
	// gatherPatience is how long calls wait for the pipeline before theirs. It bounds the
	// added latency if Redis is far away or a connection hangs.
	gatherPatience = 2 * time.Millisecond
)

// gatherer sends concurrent script calls in shared pipelines once more than gatherFrom
// calls are running.
type gatherer struct {
	rdb *redis.Client

	mu      sync.Mutex
	calls   int // running calls, including the queued ones
	queued  []*scriptRun
	senders int // goroutines that send queued calls, without overdue ones
}

// scriptRun is one call of a script.
type scriptRun struct {
	ctx    context.Context
	script *redis.Script
	keys   []string
	args   []any
	cmd    *redis.Cmd    // its reply, once done is closed
	done   chan struct{} // closed by the sender
}

// run runs a script like redis.Script's Run. If ctx ends while the call is queued, it is
// not sent; a call that was already sent returns the context's error and may still run.
func (g *gatherer) run(ctx context.Context, script *redis.Script, keys []string, args ...any) *redis.Cmd {
	g.mu.Lock()
	g.calls++
	if g.calls <= gatherFrom {
		g.mu.Unlock()
		defer g.ended()
		return script.Run(ctx, g.rdb, keys, args...)
	}
	r := &scriptRun{ctx: ctx, script: script, keys: keys, args: args, done: make(chan struct{})}
	g.queued = append(g.queued, r)
	if g.senders == 0 {
		g.startSender()
	}
	g.mu.Unlock()
	defer g.ended()
	select {
	case <-r.done:
		return r.cmd
	case <-ctx.Done():
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(ctx.Err())
		return cmd
	}
}

func (g *gatherer) ended() {
	g.mu.Lock()
	g.calls--
	g.mu.Unlock()
}

// sending is the state of a pipeline in progress. Guarded by the gatherer's mu.
type sending struct{ back, replaced bool }

// startSender starts a goroutine that sends until the queue is empty. The caller holds
// mu.
func (g *gatherer) startSender() {
	g.senders++
	go func() {
		for batch := g.take(); len(batch) > 0; batch = g.take() {
			var s sending
			overdue := time.AfterFunc(gatherPatience, func() { g.replace(&s) })
			g.send(batch)
			overdue.Stop()
			g.mu.Lock()
			s.back = true
			g.mu.Unlock()
			if s.replaced {
				return
			}
		}
	}()
}

// replace starts another sender in place of one whose pipeline is overdue.
func (g *gatherer) replace(s *sending) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.back {
		return
	}
	s.replaced = true
	g.senders--
	if len(g.queued) > 0 {
		g.startSender()
	}
}

// take returns the calls for the next pipeline; none ends the sender.
func (g *gatherer) take() []*scriptRun {
	g.mu.Lock()
	defer g.mu.Unlock()
	var batch []*scriptRun
	for len(batch) < gatherLimit && len(g.queued) > 0 {
		r := g.queued[0]
		g.queued = g.queued[1:]
		if r.ctx.Err() == nil {
			batch = append(batch, r)
		}
	}
	if len(batch) == 0 {
		g.queued = nil
		g.senders--
	}
	return batch
}

// send runs the batch in one pipeline, with the latest deadline of its calls: the end of
// one caller's context must not fail the calls of others.
func (g *gatherer) send(batch []*scriptRun) {
	ctx := context.WithoutCancel(batch[0].ctx)
	until, bounded := batch[0].ctx.Deadline()
	for _, r := range batch[1:] {
		at, ok := r.ctx.Deadline()
		if bounded = bounded && ok; at.After(until) {
			until = at
		}
	}
	if bounded {
		limited, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		ctx = limited
	}
	cmds := runTogether(ctx, g.rdb.Pipeline(), len(batch), func(pipe redis.Scripter, run scriptCall, i int) *redis.Cmd {
		r := batch[i]
		return run(r.script, ctx, pipe, r.keys, r.args...)
	})
	for i, r := range batch {
		r.cmd = cmds[i]
		close(r.done)
	}
}

// scriptCall is EvalSha or Eval of a script.
type scriptCall func(*redis.Script, context.Context, redis.Scripter, []string, ...any) *redis.Cmd

// runTogether runs n scripts in one round trip, and repeats those that Redis does not
// know in a second one: a pipeline does not fall back from EVALSHA to EVAL.
func runTogether(ctx context.Context, pipe redis.Pipeliner, n int, call func(redis.Scripter, scriptCall, int) *redis.Cmd) []*redis.Cmd {
	cmds := make([]*redis.Cmd, n)
	missing := make([]int, n)
	for i := range missing {
		missing[i] = i
	}
	for _, run := range []scriptCall{(*redis.Script).EvalSha, (*redis.Script).Eval} {
		for _, i := range missing {
			cmds[i] = call(pipe, run, i)
		}
		// err is the first error of the commands. A command that was not sent has no
		// error of its own.
		_, err := pipe.Exec(ctx)
		var unknown []int
		for _, i := range missing {
			if err != nil && cmds[i].Err() == nil && cmds[i].Val() == nil {
				cmds[i].SetErr(err)
			}
			if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
				unknown = append(unknown, i)
			}
		}
		if missing = unknown; len(missing) == 0 {
			break
		}
	}
	return cmds
}
