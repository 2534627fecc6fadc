package queue

import (
	"context"
	_ "embed" // for the script fragments
	"fmt"

	"github.com/redis/go-redis/v9"
)

var enqueueStatus = map[byte]Status{'K': StatusOK, 'D': StatusDuplicate, 'F': StatusFull}

// Enqueue adds tasks in the given order and returns a status for each. Up to 512
// tasks are added in one atomic step; more take several steps, in order.
//
// Errors: ErrInvalidTask, with nothing written; ErrFull if at least one task has
// StatusFull; otherwise those of Redis, with StatusUnknown from the failing step
// on. Repeating the call is safe: a task that was added is then a duplicate. If it
// was completed in the meantime it is added and handled again, which an idempotent
// handler tolerates.
func (q *Queue) Enqueue(ctx context.Context, tasks ...Task) ([]Status, error) {
	for i := range tasks {
		if err := tasks[i].validate(); err != nil {
			return make([]Status, len(tasks)), fmt.Errorf("enqueue: %w", err)
		}
	}
	status, err := each("enqueue", tasks, enqueueStatus, func(chunk []Task) *redis.Cmd {
		args := append(make([]any, 0, 1+5*len(chunk)), q.cfg.MaxLength)
		for i := range chunk {
			args = chunk[i].args(args)
		}
		return q.eval(ctx, enqueueScript, args...)
	})
	if err == nil {
		err = refused("enqueue", status)
	}
	return status, err
}

// refused returns ErrFull if the queue had no room for some of the tasks, else nil.
func refused(op string, status []Status) error {
	n := count(status, StatusFull)
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w: no capacity for %d of %s", op, ErrFull, n, countTasks(len(status)))
}

// EnqueueLua is a script fragment that adds tasks from inside another script, so
// that the caller's own change and the resulting task are one atomic step.
// Prepend it to the composing script, put [Queue.EnqueueKeys] anywhere in its
// KEYS, and pass the number of keys that precede them as o:
//
//	queue_room(o, max_length)    how many entries may still be added (a read);
//	                             max_length is [Queue.MaxLength], passed in ARGV
//	queue_known(o, n, ids)       known[i] is true if ids[i] already exists (a read)
//	queue_add(o, now_us, n, ids, payloads [, priorities [, options]])
//	                             adds ids[1..n] in order and wakes a worker
//	queue_wake(o)                wakes a worker
//
// now_us is the Redis TIME in microseconds, as a number. queue_add makes no
// checks: the composing script must call queue_room before its first write, and
// queue_known too unless its ids are always new. All keys must be in one hash slot.
//
// Do not modify the variable.
//
//go:embed lua/fragment_enqueue.lua
var EnqueueLua string

// enqueueKeys is the number of keys, from the front of keys.all, that EnqueueLua uses.
const enqueueKeys = 8

// EnqueueKeys returns the keys of [EnqueueLua], in the order it expects.
func (q *Queue) EnqueueKeys() []string {
	return append([]string(nil), q.keys.all[:enqueueKeys]...)
}
