package queue

import (
	"context"
	"fmt"
	"time"
)

// Report is the result of Verify.
type Report struct {
	// Tasks is the number of tasks in a state. One in several states, or one that changed its
	// state during the call, may count twice.
	Tasks int
	// Lost are tasks that have a payload or a record but no state. Repair makes them
	// ready, or drops a record without payload.
	Lost []string
	// Doubled are tasks in several states. Repair keeps the state closest to running.
	Doubled []string
	// Bodiless are waiting or leased tasks without a payload. Repair makes them dead letters.
	Bodiless []string
}

// Clean reports whether Verify found no problem.
func (r Report) Clean() bool { return len(r.Lost)+len(r.Doubled)+len(r.Bodiless) == 0 }

// Verify checks that every task is in exactly one state and has its payload; with
// repair it also repairs the inconsistent ones. It works in small atomic steps, so it
// may run at any time. Inconsistencies come from manual commands, or from a Redis that
// lost a key of the queue. Run repairs automatically when it counts tasks in no state.
// Errors: those of Redis; the report then holds the findings so far.
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
	found  map[string]bool // already reported; an id occurs in several keys
	key    int             // index in verifyKeys
	cursor uint64          // position in that key
}

func newVerifier(q *Queue, repair bool) *verifier {
	v := &verifier{q: q, repair: "0", found: make(map[string]bool)}
	if repair {
		v.repair = "1"
	}
	return v
}

// verifyKeys are the keys that a verifier scans: their numbers, the ids per page, and whether the
// key is the sorted set of a state. It begins with the records, which are small and exist for every
// task that was leased. Redis sends payloads with their ids, so these pages are short.
var verifyKeys = []struct {
	number  int
	perPage int64
	state   bool
}{{5, chunkTasks, false}, {4, 64, false}, {1, chunkTasks, true}, {2, chunkTasks, true}, {3, chunkTasks, true}, {10, chunkTasks, true}}

// done reports whether all keys were scanned.
func (v *verifier) done() bool { return v.key == len(verifyKeys) }

// page checks the ids on the next page of a key.
func (v *verifier) page(ctx context.Context) error {
	key := verifyKeys[v.key]
	name, scan := v.q.keys.all[key.number-1], v.q.rdb.HScan
	if key.state {
		scan = v.q.rdb.ZScan
	}
	pairs, next, err := scan(ctx, name, v.cursor, "", key.perPage).Result()
	if err != nil {
		return fmt.Errorf("verify queue: %w", err)
	}
	ids := make([]string, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		ids = append(ids, pairs[i])
	}
	if err := v.check(ctx, ids, key.state); err != nil {
		return err
	}
	if v.cursor = next; next == 0 {
		v.key++
	}
	return nil
}

var verdicts = map[byte]byte{'k': 'k', 'o': 'o', 's': 's', 'b': 'b'}

// check checks tasks, and counts them if they are those of a state.
func (v *verifier) check(ctx context.Context, ids []string, counts bool) error {
	found, err := byID(ctx, v.q, "verify", verifyScript, []any{v.repair, v.q.cfg.MaxDead}, ids, verdicts)
	for i, letter := range found {
		if letter == 0 {
			break // the call failed here
		}
		if counts {
			v.report.Tasks++
		}
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
	return err
}

const (
	// strayPages is the maximum number of pages that one check for strays reads, and
	// strayEvery the minimum time between two checks.
	strayPages = 16
	strayEvery = time.Second
)

// strays finds tasks that a fault has left in no state, which no worker would ever
// take. Each fetch counts them by comparing the sizes of keys. Tasks are read, in
// pages, only while that count is above zero.
type strays struct {
	check    *verifier
	next     time.Time
	reported int64
}

// look reports n strays to onError, makes ready those that it finds and reports them. The end
// of ctx does not cancel it.
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
	defer cancel()
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
