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

// Fetched is the result of one Dequeue.
type Fetched struct {
	// Tasks are leased to the caller, in the order of the queue. There may be none.
	Tasks []Leased
	// Next is the time until the next delayed task falls due or the next lease ends;
	// zero means now, and a negative value that there is neither.
	Next time.Duration
	// More reports whether another Dequeue would find tasks now.
	More bool

	// strays is the number of payloads minus the number of tasks. Above 0, a fault has
	// left tasks in no state.
	strays int64
	// expired are the tasks whose lease had expired, without their payloads.
	expired []expired
}

// expired is a task whose lease has expired; dead: it is a dead letter now.
type expired struct {
	task Leased
	dead bool
}

// Dequeue takes ready tasks of up to n (1 to 512) entries, but at least one task if
// there is one, under a lease of Config.Lease. It
// also promotes delayed tasks that are due and reclaims expired leases, a bounded
// number per call. It takes fewer tasks if their payloads exceed 4 MiB together, but
// at least one. If the reply is lost, its tasks stay leased until the lease expires
// and have used an attempt.
// Errors: ErrConfig for n out of bounds, and those of Redis.
func (q *Queue) Dequeue(ctx context.Context, n int) (Fetched, error) {
	return q.dequeue(ctx, n, defaultIdle)
}

// dequeue is Dequeue with a horizon: the longest time that other workers sleep
// without checking the queue. If a task falls due sooner, one of them is woken to
// wait for it.
func (q *Queue) dequeue(ctx context.Context, n int, horizon time.Duration) (Fetched, error) {
	if n < 1 || n > chunkTasks {
		return Fetched{}, fmt.Errorf("dequeue: %w: n is %d, want 1 to %d", ErrConfig, n, chunkTasks)
	}
	token := newToken()
	until := time.Now().Add(q.cfg.Lease)
	reply, err := q.eval(ctx, dequeueScript, n, q.cfg.Lease.Milliseconds(), token, moveBound,
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

// fetchedHead is the number of fields before the tasks in a reply.
const fetchedHead = 5

func parseFetched(reply []string, token string, until time.Time) (f Fetched, err error) {
	if len(reply) < fetchedHead || (len(reply)-fetchedHead)%3 != 0 {
		return Fetched{}, fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	var n [fetchedHead]int64
	for _, i := range []int{1, 2, 4} {
		if n[i], err = strconv.ParseInt(reply[i], 10, 64); err != nil {
			return Fetched{}, fmt.Errorf("%w: %w", ErrReply, err)
		}
	}
	f.More, f.Next = reply[0] == "1", time.Duration(n[1])*time.Millisecond
	f.strays = n[2]
	waits, rest := reply[3], reply[fetchedHead:]
	if n[4] < 0 || n[4] > int64(len(rest)/3) {
		return Fetched{}, fmt.Errorf("%w: %d expired leases in %d fields", ErrReply, n[4], len(reply))
	}
	for range n[4] {
		e := expired{task: Leased{ID: rest[0]}, dead: rest[2] == "1"}
		if err := e.task.parseHead(rest[1]); err != nil {
			return Fetched{}, err
		}
		f.expired, rest = append(f.expired, e), rest[3:]
	}
	f.Tasks = make([]Leased, 0, len(rest)/3)
	ends := make([]time.Time, len(rest)/3)
	var head string
	var t Leased
	for ; len(rest) > 0; rest = rest[3:] {
		// Almost all tasks of a batch have the same head: parse it once.
		if rest[2] != head {
			head = rest[2]
			t.Token = head + ";L" + token
			if err := t.parseHead(head); err != nil {
				return Fetched{}, err
			}
		}
		t.ID, t.Payload, t.end = rest[0], []byte(rest[1]), &ends[len(f.Tasks)]
		*t.end = until
		f.Tasks = append(f.Tasks, t)
	}
	return f, setWaits(f.Tasks, waits)
}

// setWaits sets when the tasks were fetched and how long they had been ready. waits is as
// dequeue.lua writes it; a task without a payload is in it only by its number.
func setWaits(tasks []Leased, waits string) error {
	now, i := time.Now(), 0
	for waits != "" {
		var part string
		part, waits, _ = strings.Cut(waits, ",")
		number, micros, _ := strings.Cut(part, ":")
		last, err := strconv.Atoi(number)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReply, err)
		}
		waited, err := strconv.ParseInt(micros, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReply, err)
		}
		for ; i < min(last, len(tasks)); i++ {
			tasks[i].Waited = time.Duration(waited) * time.Microsecond
		}
	}
	for i := range tasks {
		tasks[i].FetchedAt = now
	}
	return nil
}

// parseHead reads "attempt,priority[,option]*".
func (l *Leased) parseHead(head string) (err error) {
	first, rest, _ := strings.Cut(head, ",")
	second, _, more := strings.Cut(rest, ",")
	l.Attempt, err = strconv.Atoi(first)
	if err == nil {
		l.Priority, err = strconv.Atoi(second)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReply, err)
	}
	l.Options = Options{}
	if more {
		l.Options, err = parseOptions(rest[len(second):])
	}
	return err
}

// newToken returns a random token that no other lease has. crypto/rand.Read never fails.
func newToken() string {
	var b [12]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // documented not to happen
	}
	return hex.EncodeToString(b[:])
}
