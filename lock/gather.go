package lock

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// gatherFrom is the number of concurrent calls that are sent directly. With more, they
	// share runs of the script, because system calls and the start of a script cost more than
	// what the script does.
	gatherFrom = 3
	// gatherLimit is the maximum number of calls in one run. Redis is busy for less than half
	// a millisecond then.
	gatherLimit = 128
	// gatherPatience is how long calls wait for the run before theirs. It bounds the added
	// latency if Redis is far away or a connection hangs.
	gatherPatience = 2 * time.Millisecond
)

// gatherer sends concurrent calls in shared runs of calls.lua once more than gatherFrom
// calls are running.
type gatherer struct {
	node *node

	mu      sync.Mutex
	calls   int  // running calls, including the queued ones
	sharing bool // new calls are queued
	queued  []*queuedCall
	senders int // goroutines that send queued calls, without overdue ones

	slots atomic.Bool // the server refuses keys of several slots in one run
}

// queuedCall is a call that waits for its turn or its reply.
type queuedCall struct {
	call
	ctx   context.Context
	sent  bool // guarded by the gatherer's mu
	reply any  // these are set once done is closed
	err   error
	done  chan struct{} // closed by the sender
}

// run runs one call. If ctx ends while it is queued, it is not sent. A call that was already
// sent then returns the context's error and may still run, but only with a client that ends
// calls with their context. With any other it returns when it has ended, like a call that is
// sent directly, because a clean-up must not run before it.
func (g *gatherer) run(ctx context.Context, c call) (reply any, err error) {
	g.mu.Lock()
	g.calls++
	if g.calls <= gatherFrom && !g.sharing {
		g.mu.Unlock()
		defer g.ended()
		return g.node.runCall(ctx, c)
	}
	g.sharing = true
	q := &queuedCall{call: c, ctx: ctx, done: make(chan struct{})}
	g.queued = append(g.queued, q)
	if g.senders == 0 {
		g.startSender()
	}
	g.mu.Unlock()
	defer g.ended()
	select {
	case <-q.done:
		return q.reply, q.err
	case <-ctx.Done():
		if g.node.obedient || !g.wasSent(q) {
			return nil, ctx.Err()
		}
		<-q.done
		return q.reply, q.err
	}
}

func (g *gatherer) wasSent(q *queuedCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return q.sent
}

func (g *gatherer) ended() {
	g.mu.Lock()
	g.calls--
	g.mu.Unlock()
}

// sending is the state of a run in progress. Guarded by the gatherer's mu.
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

// replace starts another sender in place of one whose run is overdue.
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

// take returns the calls for the next run; none ends the sender.
func (g *gatherer) take() []*queuedCall {
	// The callers that have just got their replies will call again.
	runtime.Gosched()
	g.mu.Lock()
	defer g.mu.Unlock()
	var batch []*queuedCall
	for len(batch) < gatherLimit && len(g.queued) > 0 {
		q := g.queued[0]
		g.queued = g.queued[1:]
		if q.ctx.Err() == nil {
			q.sent = true
			batch = append(batch, q)
		}
	}
	g.sharing = len(batch) > gatherFrom
	if len(batch) == 0 {
		g.queued = nil
		g.senders--
	}
	return batch
}

// send runs the batch, with the latest deadline of its calls: the end of one caller's
// context must not fail the calls of others. If Redis refuses the run, because one of the
// keys is forbidden to the user for example, it has changed nothing, and each call is sent on
// its own.
func (g *gatherer) send(batch []*queuedCall) {
	ctx := context.WithoutCancel(batch[0].ctx)
	until, bounded := batch[0].ctx.Deadline()
	for _, q := range batch[1:] {
		at, ok := q.ctx.Deadline()
		if bounded = bounded && ok; at.After(until) {
			until = at
		}
	}
	if bounded {
		limited, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		ctx = limited
	}
	g.sendTogether(ctx, batch)
	for _, q := range batch {
		close(q.done)
	}
}

func (g *gatherer) sendTogether(ctx context.Context, batch []*queuedCall) {
	if g.slots.Load() {
		g.sendSingly(ctx, batch)
		return
	}
	calls := make([]call, len(batch))
	for i, q := range batch {
		calls[i] = q.call
	}
	replies, err := g.node.runCalls(ctx, calls)
	switch {
	case err == nil:
		for i, q := range batch {
			q.reply = replies[i]
		}
	case unknown(err) || len(batch) == 1:
		for _, q := range batch {
			q.err = err
		}
	default:
		// A server in cluster mode, behind a client that is not: it would refuse nearly every run.
		if redis.HasErrorPrefix(err, "CROSSSLOT") {
			g.slots.Store(true)
		}
		g.sendSingly(ctx, batch)
	}
}

// sendSingly runs each call of the batch on its own, in one pipeline.
func (g *gatherer) sendSingly(ctx context.Context, batch []*queuedCall) {
	cmds := runTogether(ctx, g.node.rdb.Pipeline(), len(batch), func(pipe redis.Scripter, run scriptCall, i int) *redis.Cmd {
		keys, args := g.node.arguments([]call{batch[i].call})
		return run(callsScript, ctx, pipe, keys, args...)
	})
	for i, q := range batch {
		var replies []any
		if replies, q.err = repliesOf(cmds[i], 1); q.err == nil {
			q.reply = replies[0]
		}
	}
}
