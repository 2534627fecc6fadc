package queue

import (
	"fmt"
	"strings"
)

// keys are the queue's Redis keys. Every script gets all of them in this order, so
// that a key has the same number in every script.
type keys struct {
	prefix string
	all    []string

	body, wake string // those that Go code uses by name
}

func newKeys(prefix string) (keys, error) {
	if hashTag(prefix) == "" {
		return keys{}, fmt.Errorf("%w: Prefix %q has no hash tag such as {p0}", ErrConfig, prefix)
	}
	k := keys{
		prefix: prefix,
		body:   prefix + "body",
		wake:   prefix + "wake",
	}
	k.all = []string{
		prefix + "ready",   // 1: sorted set, arrival in microseconds minus the value of the priority
		prefix + "delayed", // 2: sorted set, due in ms
		prefix + "leased",  // 3: sorted set, lease end in ms
		k.body,             // 4: hash, id -> payload
		prefix + "meta",    // 5: hash, id -> attempt, priority, options, and the lease's token or the last reason
		prefix + "clock",   // 6: string, the last arrival in microseconds
		k.wake,             // 7: list, at most one token
		prefix + "counts",  // 8: hash, the counters of Stats; see stats.go
		prefix + "paused",  // 9: exists while the queue is paused
		prefix + "dead",    // 10: sorted set, time of death in ms
	}
	return k, nil
}

// own is the list on which only one waiter listens. A push to it ends that
// waiter's blocking pop without using up the token of another waiter.
func (k keys) own(waiter string) string { return k.wake + ":" + waiter }

// hashTag is the part of the key that Redis Cluster hashes: the text between the
// first '{' and the next '}', or "" without such a pair.
func hashTag(prefix string) string {
	_, after, ok := strings.Cut(prefix, "{")
	tag, _, closed := strings.Cut(after, "}")
	if !ok || !closed {
		return ""
	}
	return tag
}
