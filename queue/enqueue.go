package queue

import (
	"context"
	_ "embed" // for the script fragments
	"fmt"
)

var enqueueStatus = map[byte]Status{'K': StatusOK, 'D': StatusDuplicate, 'F': StatusFull}

// Enqueue adds tasks in the order given and says per task what became of it. A
// task is written whole or not at all. Calls of up to 512 tasks are one atomic
// step; longer ones are several, in order.
//
// Errors: ErrInvalidTask, with nothing written; ErrFull when the queue had no room
// for at least one task, which has StatusFull; otherwise those of Redis, where
// the statuses from the failing step on are StatusUnknown. Repeating the call is
// safe: what was added is then a duplicate, unless it was done meanwhile; then it
// is added and handled again, which an idempotent handler tolerates.
func (q *Queue) Enqueue(ctx context.Context, tasks ...Task) ([]Status, error) {
	for i := range tasks {
		if err := tasks[i].validate(); err != nil {
			return make([]Status, len(tasks)), fmt.Errorf("enqueue: %w", err)
		}
	}
	out := make([]Status, 0, len(tasks))
	for from := 0; from < len(tasks); from += chunkTasks {
		chunk := tasks[from:min(from+chunkTasks, len(tasks))]
		args := make([]any, 0, 1+5*len(chunk))
		args = append(args, q.cfg.MaxLength)
		for _, t := range chunk {
			args = t.args(args)
		}
		status, err := letters(q.run(ctx, enqueueScript, args...), len(chunk), enqueueStatus)
		if err != nil {
			unknown := make([]Status, len(tasks)-len(out))
			return append(out, unknown...), fmt.Errorf("enqueue %d tasks: %w", len(chunk), err)
		}
		out = append(out, status...)
	}
	return out, refused("enqueue", out)
}

// refused is the error of a call whose tasks the queue had no room for; nil where it had.
func refused(op string, status []Status) error {
	n := 0
	for _, s := range status {
		if s == StatusFull {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w: no capacity for %d of %d tasks", op, ErrFull, n, len(status))
}

// EnqueueLua is a script fragment that adds tasks from inside another script,
// so that the caller's own change and the task it causes are one atomic step.
// Put it in front of the composing script's text, put [Queue.EnqueueKeys]
// anywhere in its KEYS, and pass the number of keys that precede them as o:
//
//	queue_room(o, max_length)    how many tasks may still be added (a read);
//	                             max_length is [Queue.MaxLength], passed in ARGV
//	queue_known(o, n, ids)       known[i] is true where ids[i] exists already (a read)
//	queue_add(o, now_us, n, ids, payloads [, priorities])
//	                             adds ids[1..n] in order and wakes a worker
//	queue_wake(o)                wakes a worker
//
// now_us is the Redis TIME in microseconds, as a number. queue_add checks
// nothing: the composing script asks queue_room (and, where its ids are not new
// by construction, queue_known) before its first write. Both scripts' keys must
// be in one hash slot.
//
// It is text to compose, never to change.
//
//go:embed lua/fragment_enqueue.lua
var EnqueueLua string

// enqueueKeys is how many of keys.all, from the front, EnqueueLua works on.
const enqueueKeys = 7

// EnqueueKeys are the keys [EnqueueLua] works on, in the order it expects.
func (q *Queue) EnqueueKeys() []string {
	return append([]string(nil), q.keys.all[:enqueueKeys]...)
}
