package queue

import (
	"context"
	"fmt"

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
// what it needs; with repair it mends what it finds. It works in small atomic
// steps, so it may run beside everything else. Such findings come from commands
// given by hand, or a Redis that lost a key of the queue.
// Errors: those of Redis; the report then says what was found so far.
func (q *Queue) Verify(ctx context.Context, repair bool) (Report, error) {
	v := &verifier{q: q, repair: "0", found: make(map[string]bool)}
	if repair {
		v.repair = "1"
	}
	k := q.keys.all
	for _, hash := range []string{k[3], k[4]} {
		err := v.scan(ctx, func(cursor uint64) *redis.ScanCmd { return q.rdb.HScan(ctx, hash, cursor, "", chunkTasks) })
		if err != nil {
			return v.report, err
		}
	}
	for _, key := range stateKeys {
		err := v.scan(ctx, func(cursor uint64) *redis.ScanCmd { return q.rdb.ZScan(ctx, k[key-1], cursor, "", chunkTasks) })
		if err != nil {
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
}

// scan checks the ids of one hash or sorted set, which come in pairs with their values.
func (v *verifier) scan(ctx context.Context, page func(cursor uint64) *redis.ScanCmd) error {
	for cursor := uint64(0); ; {
		pairs, next, err := page(cursor).Result()
		if err != nil {
			return fmt.Errorf("verify queue: %w", err)
		}
		var ids []string
		for i := 0; i < len(pairs); i += 2 {
			ids = append(ids, pairs[i])
		}
		for len(ids) > 0 {
			n := min(len(ids), chunkTasks)
			if err := v.check(ctx, ids[:n]); err != nil {
				return err
			}
			ids = ids[n:]
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
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
