package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Report is what Verify found.
type Report struct {
	// Tasks is how many ids were looked at; one that moved meanwhile may count twice.
	Tasks int
	// Lost are tasks that have a body or a record and are in no state. Repair
	// makes them ready, or drops the record that has no body.
	Lost []string
	// Doubled are tasks in several states. Repair keeps the one closest to running.
	Doubled []string
	// Bodiless are tasks that wait or are leased without a body. Repair makes them dead letters.
	Bodiless []string
}

// Clean says that nothing was found.
func (r Report) Clean() bool { return len(r.Lost)+len(r.Doubled)+len(r.Bodiless) == 0 }

// Verify looks at every task and checks that it is in exactly one state and has
// what it needs; with repair it repairs what it finds. It works in small atomic
// steps, so it may run at any time. Such findings come from commands given by
// hand, or a Redis that lost a key of the queue. Run does this automatically when it
// finds that tasks are in no state.
// Errors: those of Redis; the report then says what was found so far.
func (q *Queue) Verify(ctx context.Context, repair bool) (Report, error) {
	v := newVerifier(q, repair)
	for !v.done() {
		if err := v.page(ctx); err != nil {
			return v.report, err
		}
	}
	return v.report, nil
}

type verifier struct {
	q      *Queue
	repair string
	report Report
	found  map[string]bool // reported already: an id is met in several keys
	key    int             // of verifyKeys, and the cursor in it
	cursor uint64
}

func newVerifier(q *Queue, repair bool) *verifier {
	v := &verifier{q: q, repair: "0", found: make(map[string]bool)}
	if repair {
		v.repair = "1"
	}
	return v
}

// verifyKeys are the numbers of the keys that a verifier goes through, records
// first: they are small, and every task that was leased has one.
var verifyKeys = []int{5, 4, 1, 2, 3, 8}

// verifyBodies is how many payloads are read in a page. Redis sends them with their ids.
const verifyBodies = 64

// done says that all keys were gone through.
func (v *verifier) done() bool { return v.key == len(verifyKeys) }

// page checks the ids of the next page of a hash or sorted set. A small one is one page.
func (v *verifier) page(ctx context.Context) error {
	number := verifyKeys[v.key]
	name := v.q.keys.all[number-1]
	var page *redis.ScanCmd
	switch number {
	case 4:
		page = v.q.rdb.HScan(ctx, name, v.cursor, "", verifyBodies)
	case 5:
		page = v.q.rdb.HScan(ctx, name, v.cursor, "", chunkTasks)
	default:
		page = v.q.rdb.ZScan(ctx, name, v.cursor, "", chunkTasks)
	}
	pairs, next, err := page.Result()
	if err != nil {
		return fmt.Errorf("verify queue: %w", err)
	}
	ids := make([]string, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		ids = append(ids, pairs[i])
	}
	for chunk := range slices.Chunk(ids, chunkTasks) {
		if err := v.check(ctx, chunk); err != nil {
			return err
		}
	}
	if v.cursor = next; next == 0 {
		v.key++
	}
	return nil
}

var verdicts = map[byte]byte{'k': 'k', 'o': 'o', 's': 's', 'b': 'b'}

func (v *verifier) check(ctx context.Context, ids []string) error {
	args := []any{v.repair, v.q.cfg.MaxDead}
	for _, id := range ids {
		args = append(args, id)
	}
	found, err := letters(v.q.run(ctx, verifyScript, args...), len(ids), verdicts)
	if err != nil {
		return fmt.Errorf("verify %d tasks: %w", len(ids), err)
	}
	v.report.Tasks += len(ids)
	for i, letter := range found {
		if letter == 'k' || v.found[ids[i]] {
			continue
		}
		v.found[ids[i]] = true
		switch letter {
		case 'o':
			v.report.Lost = append(v.report.Lost, ids[i])
		case 's':
			v.report.Doubled = append(v.report.Doubled, ids[i])
		case 'b':
			v.report.Bodiless = append(v.report.Bodiless, ids[i])
		}
	}
	return nil
}

const (
	// strayPages bounds how many pages of tasks are checked for strays at once, and
	// strayEvery how often.
	strayPages = 16
	strayEvery = time.Second
)

// strays searches for tasks that a fault has left in no state, which no worker would
// ever take. Each fetch counts them without looking at any. Only while there are
// some, tasks are checked, in pages.
type strays struct {
	check    *verifier
	next     time.Time
	reported int64
}

// look reports n strays to onError, makes those it finds ready and reports them.
func (s *strays) look(ctx context.Context, q *Queue, n int64, onError func(error)) {
	if n <= 0 {
		*s = strays{}
		return
	}
	if n != s.reported {
		s.reported = n
		onError(fmt.Errorf("%w: %d of them", ErrTaskLost, n))
	}
	if time.Now().Before(s.next) {
		return
	}
	for range strayPages {
		if s.check == nil || s.check.done() {
			s.check = newVerifier(q, true)
		}
		err := s.check.page(ctx)
		if lost := s.check.report.Lost; len(lost) > 0 {
			onError(fmt.Errorf("%w: %q are ready again", ErrTaskLost, lost))
		}
		s.check.report, s.check.found = Report{}, make(map[string]bool)
		if err != nil {
			onError(err)
			break
		}
		if s.check.done() {
			break
		}
	}
	s.next = time.Now().Add(strayEvery)
}
