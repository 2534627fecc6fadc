package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// recallLimit bounds a clean-up command and the wait for a recalled waiter. A variable
// for the tests, whose machine may be busy.
var recallLimit = time.Second

const (
	// ownListLife is how long a recalled waiter's list outlives it.
	ownListLife = 10 * time.Second
	// blockSlack is how much later than its timeout a blocking pop may answer
	// before the connection counts as dead.
	blockSlack = 3 * time.Second
)

// Wait blocks until the queue wakes a worker, or limit has passed, and returns
// nil for both: look with Dequeue. It takes one connection of the pool meanwhile
// and sends nothing. A wake-up goes to one waiter.
// Errors: the context's cause, promptly, and those of Redis.
func (q *Queue) Wait(ctx context.Context, limit time.Duration) error {
	return q.wait(ctx, limit, false)
}

// wait is Wait; with exact it returns within milliseconds of the limit.
//
// A blocking pop can neither be interrupted through its context without losing
// its connection, and with it perhaps a token, nor does Redis end it on time: it
// looks at timeouts ten times a second. So each waiter also listens on a list of
// its own, and whoever wants it back pushes there.
func (q *Queue) wait(ctx context.Context, limit time.Duration, exact bool) error {
	if ctx.Err() != nil {
		return fmt.Errorf("wait: %w", context.Cause(ctx))
	}
	if limit <= 0 {
		return nil
	}
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

// waiter is one blocking pop under way.
type waiter struct {
	q      *Queue
	own    string        // the list on which this waiter alone listens
	answer chan popped   // unbuffered, so that it is known whether anyone took it
	gone   chan struct{} // closed when nobody waits for the answer any more
}

// popped is what a blocking pop ended with.
type popped struct {
	token bool // a wake-up, which must start a worker
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

// recall ends the blocking pop and waits until it has ended. A Redis that does
// not answer is left alone after a second: the pop then ends by its own timeout.
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
			// The pop had ended already. Should this fail, the list's end of life does it.
			if err := w.q.rdb.Del(clean, w.own).Err(); err != nil && p.err == nil {
				p.err = fmt.Errorf("wait: end it: %w", err)
			}
		}
		return p
	case <-clean.Done():
		return popped{err: fmt.Errorf("wait: end it: %w", context.Cause(clean))}
	}
}

// giveBack wakes another worker in this one's place. When it fails, workers look
// by themselves within their longest idle time.
func (q *Queue) giveBack(ctx context.Context) {
	clean, cancel := cleanUp(ctx)
	defer cancel()
	if err := q.run(clean, wakeScript).Err(); err != nil {
		return
	}
}

// pass leaves a wake-up for another worker if there is something to take, and
// says whether; otherwise how long it takes until there is, negative when nothing
// is known of.
func (q *Queue) pass(ctx context.Context) (ready bool, next time.Duration, err error) {
	clean, cancel := cleanUp(ctx)
	defer cancel()
	reply, err := q.run(clean, passScript).Int64Slice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	if err != nil {
		return false, 0, fmt.Errorf("pass a wake-up on: %w", err)
	}
	return reply[0] == 1, time.Duration(reply[1]) * time.Millisecond, nil
}

// cleanUp is a context for what has to be done although ctx has ended.
func cleanUp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), recallLimit)
}
