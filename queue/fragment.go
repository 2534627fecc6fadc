package queue

import _ "embed" // for the script fragments

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

// EnqueueKeys are the keys [EnqueueLua] works on, in the order it expects.
func (q *Queue) EnqueueKeys() []string {
	return append([]string(nil), q.keys.all[:enqueueKeys]...)
}

// Prefix is what the queue's keys begin with; see [Config].
func (q *Queue) Prefix() string { return q.keys.prefix }

// MaxLength is the bound on ready, delayed and leased tasks together, for
// queue_room in [EnqueueLua].
func (q *Queue) MaxLength() int { return q.cfg.MaxLength }
