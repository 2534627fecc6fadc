package queue

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
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
