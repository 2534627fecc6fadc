package lock

import (
	"fmt"
	"strings"
)

// channelPrefix is the start of the publish/subscribe channel of a manager; its
// id follows. handover.lua builds the same name from a waiter's entry.
const channelPrefix = "lock:wake:"

// keys are the names of everything Redis stores for one resource, in the order
// in which the scripts expect them. All share one hash slot.
type keys struct {
	lock    string // "<token>:<fence>" with a TTL while held
	waiters string // sorted set of "<manager>:<token>", score = arrival
	seen    string // hash: waiter -> the time in ms until which it counts as alive
	fence   string // the last fencing token
}

// list returns the keys as the acquire and release scripts take them.
func (k keys) list() []string { return []string{k.lock, k.waiters, k.seen, k.fence} }

// keysOf names the keys of a resource. A resource that carries a hash tag is
// the lock's key itself, so that its keys live beside the data they protect;
// any other is put in a tag behind the prefix.
func keysOf(prefix, resource string) (keys, error) {
	base := resource
	switch {
	case resource == "":
		return keys{}, fmt.Errorf("%w resource: it is empty", ErrInvalid)
	case tagged(resource):
	case tagged(prefix):
		base = prefix + resource
	default:
		base = prefix + "{" + resource + "}"
	}
	if !tagged(base) {
		return keys{}, fmt.Errorf("%w resource %q: its keys would not share a hash slot", ErrInvalid, resource)
	}
	return keys{lock: base, waiters: base + ":waiters", seen: base + ":seen", fence: base + ":fence"}, nil
}

// tagged says whether Redis Cluster takes the slot of a key from a hash tag:
// what stands between the first "{" and the next "}", unless that is nothing.
func tagged(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.IndexByte(rest, '}') > 0
}
