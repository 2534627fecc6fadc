package queue

import (
	"fmt"
	"strings"
)

// enqueueKeys is how many of keys.all, from the front, EnqueueLua works on.
const enqueueKeys = 7

// keys are the queue's Redis keys. Every script gets all of them in this order,
// so that its text can name them by one set of numbers.
type keys struct {
	prefix string
	all    []string

	body, wake string // the ones Go uses by name
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
		prefix + "ready",   // 1: sorted set, arrival in microseconds less the priority's worth
		prefix + "delayed", // 2: sorted set, due in ms
		prefix + "leased",  // 3: sorted set, lease end in ms
		k.body,             // 4: hash, id -> payload
		prefix + "meta",    // 5: hash, id -> attempt, priority, options, and the lease's token or the last reason
		prefix + "clock",   // 6: string, the last arrival in microseconds
		k.wake,             // 7: list, at most one token
		prefix + "dead",    // 8: sorted set, time of death in ms
		prefix + "paused",  // 9: there while nothing is to be taken
		prefix + "counts",  // 10: hash, what the statistics count; see statistics.go
	}
	return k, nil
}

// own is the list on which one waiter alone listens, so that it can be
// called back without taking another waiter's token.
func (k keys) own(waiter string) string { return k.wake + ":" + waiter }

// hashTag is the part of the key that Redis Cluster hashes, which is what stands
// between the first '{' and the first '}' after it. It is empty where there is none.
func hashTag(prefix string) string {
	_, after, ok := strings.Cut(prefix, "{")
	tag, _, closed := strings.Cut(after, "}")
	if !ok || !closed {
		return ""
	}
	return tag
}
