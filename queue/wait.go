package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// recallLimit bounds a clean-up command and the wait for a recalled waiter. It is a
// variable because tests on a busy machine raise it.
var recallLimit = time.Second

const (
	// ownListLife is how long the list of a recalled waiter outlives it.
	ownListLife = 10 * time.Second
	// blockSlack is how long after its timeout a blocking pop may return before the
	// connection counts as dead.
	blockSlack = 3 * time.Second
	// maxWait is so long that no caller notices that it ends, and short enough to add to.
	maxWait = 365 * 24 * time.Hour
)

// Wait blocks until the queue wakes a worker or limit has passed. Both return nil;
// call Dequeue then. It occupies one connection of the pool but sends nothing while
// it waits. A wake-up reaches one waiter.
// Errors: the context's cause, promptly, and those of Redis.
func (q *Queue) Wait(ctx context.Context, limit time.Duration) error {
	return q.wait(ctx, limit, false)
}

// wait is Wait; with exact it returns within milliseconds of the limit.
//
// Cancelling a blocking pop through its context closes the connection, which can
// lose a token. Redis does not end the pop on time either, because it checks
// timeouts ten times a second. So each waiter also listens on a list of its own,
// and recall ends the pop with a push to that list.
func (q *Queue) wait(ctx context.Context, limit time.Duration, exact bool) error {
	if ctx.Err() != nil {
		return fmt.Errorf("wait: %w", context.Cause(ctx))
	}
	if limit <= 0 {
		return nil
	}
	limit = min(limit, maxWait)
	// go-redis sends whole seconds.
	timeout := (limit + time.Second - 1).Truncate(time.Second)
	var alarm <-chan time.Time
	if exact || timeout != limit {
		timeout += time.Second
		timer := time.NewTimer(limit)
		defer timer.Stop()
		alarm = timer.C
	}
	w := &waiter{q: q, own: q.keys.own(newToken()), answer: make(chan popped), gone: make(chan struct{})}
	defer close(w.gone)
	go w.block(ctx, timeout)
	var p popped
	select {
	case p = <-w.answer:
	case <-alarm:
		p = w.recall(ctx)
	case <-ctx.Done():
		p = w.recall(ctx)
	}
	if ctx.Err() != nil {
		if p.token {
			q.giveBack(ctx)
		}
		return fmt.Errorf("wait: %w", context.Cause(ctx))
	}
	return p.err
}

// waiter is one blocking pop in progress.
type waiter struct {
	q      *Queue
	own    string        // the list on which only this waiter listens
	answer chan popped   // unbuffered, so that a send succeeds only if wait receives it
	gone   chan struct{} // closed when wait has returned
}

// popped is the result of a blocking pop.
type popped struct {
	token bool // a wake-up token, which must not be lost
	own   bool // the recall
	err   error
}

func (w *waiter) block(ctx context.Context, timeout time.Duration) {
	pop, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout+blockSlack)
	defer cancel()
	reply, err := w.q.rdb.BLPop(pop, timeout, w.own, w.q.keys.wake).Result()
	p := popped{
		token: len(reply) > 0 && reply[0] == w.q.keys.wake,
		own:   len(reply) > 0 && reply[0] == w.own,
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		p.err = fmt.Errorf("wait: %w", err)
	}
	select {
	case w.answer <- p:
	case <-w.gone:
		if p.token {
			w.q.giveBack(ctx)
		}
	}
}

// recall ends the blocking pop and waits until it has ended. If Redis does not
// answer within recallLimit, the pop ends with its own timeout.
func (w *waiter) recall(ctx context.Context) popped {
	clean, cancel := cleanUp(ctx)
	defer cancel()
	keys := append(append([]string(nil), w.q.keys.all...), w.own)
	if err := recallScript.Run(clean, w.q.rdb, keys, ownListLife.Milliseconds()).Err(); err != nil {
		return popped{err: fmt.Errorf("wait: end it: %w", err)}
	}
	select {
	case p := <-w.answer:
		if !p.own {
			// The pop had already ended. If this fails, the list expires.
			if err := w.q.rdb.Del(clean, w.own).Err(); err != nil && p.err == nil {
				p.err = fmt.Errorf("wait: end it: %w", err)
			}
		}
		return p
	case <-clean.Done():
		return popped{err: fmt.Errorf("wait: end it: %w", context.Cause(clean))}
	}
}

// giveBack wakes another worker in place of this one. If it fails, workers check
// the queue within RunConfig.MaxIdle anyway.
func (q *Queue) giveBack(ctx context.Context) {
	clean, cancel := cleanUp(ctx)
	defer cancel()
	if err := q.eval(clean, wakeScript).Err(); err != nil {
		return
	}
}

// pass leaves a wake-up for another worker if tasks are ready, and reports whether
// they are. Otherwise next is the time until a task may be ready, negative if unknown.
func (q *Queue) pass(ctx context.Context) (ready bool, next time.Duration, err error) {
	clean, cancel := cleanUp(ctx)
	defer cancel()
	reply, err := numbers(q.eval(clean, passScript), 2)
	if err != nil {
		return false, 0, fmt.Errorf("pass a wake-up on: %w", err)
	}
	return reply[0] == 1, time.Duration(reply[1]) * time.Millisecond, nil
}

// cleanUp returns a context for work that must be done even if ctx has ended.
func cleanUp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), recallLimit)
}
