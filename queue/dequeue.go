package queue

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Fetched is what one Dequeue took.
type Fetched struct {
	// Tasks are leased to the caller, in the order in which they were to be taken. They may be none.
	Tasks []Leased
	// Next is how long it takes until the next delayed task or lease end falls
	// due; negative when there is none. Zero means now.
	Next time.Duration
	// More says that another Dequeue would find tasks now.
	More bool

	birth string // of the queue: random, and another one after Redis lost everything
	takes int64  // how many calls have taken tasks since; never less unless Redis went back in time
	// strays is how many more payloads than tasks there are. Above 0 a fault has left
	// tasks in no state.
	strays int64
}

// Dequeue takes up to n (1 to 512) ready tasks under a lease of Config.Lease. It
// also promotes what fell due and reclaims expired leases, a bounded number per
// call. It takes fewer than n tasks where their payloads are more than 4 MiB together,
// though at least one. A reply that gets lost costs those tasks a lease and an attempt.
// Errors: ErrConfig for n out of bounds, and those of Redis.
func (q *Queue) Dequeue(ctx context.Context, n int) (Fetched, error) {
	return q.dequeue(ctx, n, defaultIdle)
}

// dequeue is Dequeue; horizon is how long other workers may sleep without
// having looked at the queue, and so which due times one of them must be told of.
func (q *Queue) dequeue(ctx context.Context, n int, horizon time.Duration) (Fetched, error) {
	if n < 1 || n > chunkTasks {
		return Fetched{}, fmt.Errorf("dequeue: %w: n is %d, want 1 to %d", ErrConfig, n, chunkTasks)
	}
	token := newToken()
	until := time.Now().Add(q.cfg.Lease)
	reply, err := q.run(ctx, dequeueScript, n, q.cfg.Lease.Milliseconds(), token, moveBound,
		q.cfg.MaxAttempts, q.cfg.MaxDead, ceilMillis(horizon), maxFetched).StringSlice()
	if err != nil {
		return Fetched{}, fmt.Errorf("dequeue: %w", err)
	}
	f, err := parseFetched(reply, token, until)
	if err != nil {
		return Fetched{}, fmt.Errorf("dequeue: %w", err)
	}
	return f, nil
}

// fetchedHead is how many fields come before the tasks.
const fetchedHead = 5

func parseFetched(reply []string, token string, until time.Time) (Fetched, error) {
	if len(reply) < fetchedHead || (len(reply)-fetchedHead)%3 != 0 {
		return Fetched{}, fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	next, err := strconv.ParseInt(reply[1], 10, 64)
	if err != nil {
		return Fetched{}, fmt.Errorf("%w: %w", ErrReply, err)
	}
	f := Fetched{More: reply[0] == "1", Next: time.Duration(next) * time.Millisecond}
	if f.takes, err = strconv.ParseInt(reply[3], 10, 64); err != nil {
		return Fetched{}, fmt.Errorf("%w: %w", ErrReply, err)
	}
	if f.strays, err = strconv.ParseInt(reply[4], 10, 64); err != nil {
		return Fetched{}, fmt.Errorf("%w: %w", ErrReply, err)
	}
	f.birth = reply[2]
	reply = reply[fetchedHead:]
	f.Tasks = make([]Leased, 0, len(reply)/3)
	holds := make([]hold, len(reply)/3)
	var head, value string
	var attempt, priority int
	var options Options
	for ; len(reply) > 0; reply = reply[3:] {
		// Almost all tasks of a batch are at the same attempt: parse it once.
		if reply[2] != head {
			head = reply[2]
			value = head + ";L" + token
			if attempt, priority, options, err = parseHead(head); err != nil {
				return Fetched{}, err
			}
		}
		f.Tasks = append(f.Tasks, Leased{
			ID: reply[0], Payload: []byte(reply[1]), Attempt: attempt, Token: value,
			Priority: priority, Options: options, LeaseUntil: until, hold: &holds[len(f.Tasks)],
		})
	}
	return f, nil
}

// parseHead reads "attempt,priority[,option]*".
func parseHead(head string) (attempt, priority int, o Options, err error) {
	first, rest, _ := strings.Cut(head, ",")
	second, _, more := strings.Cut(rest, ",")
	attempt, err = strconv.Atoi(first)
	if err == nil {
		priority, err = strconv.Atoi(second)
	}
	if err != nil {
		return 0, 0, o, fmt.Errorf("%w: %w", ErrReply, err)
	}
	if more {
		o, err = parseOptions(rest[len(second):])
	}
	return attempt, priority, o, err
}

// newToken is random, so that no lease is ever taken for another. crypto/rand.Read never fails.
func newToken() string {
	var b [12]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // documented not to happen
	}
	return hex.EncodeToString(b[:])
}

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
