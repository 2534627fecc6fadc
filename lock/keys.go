package lock

import (
	"fmt"
	"strings"
)

// channelPrefix is the start of the publish/subscribe channel of a manager; its
// id follows. handover.lua builds the same name from a waiter's entry.
const channelPrefix = "lock:wake:"

// pollingMark begins the id of a manager that listens to no channel; handover.lua
// knows it.
const pollingMark = "~"

// keys are the names of everything Redis stores for one resource, in the order
// in which the scripts expect them. All share one hash slot.
type keys [5]string

const (
	keyLock    = iota // "<token>:<fence>[:<metadata>]" with a TTL while held
	keyWaiters        // sorted set of "<token>[:<metadata>]", score = arrival
	keySeen           // hash: waiter -> the time in ms until which it counts as alive
	keyFence          // the last fencing token, and "w" after it while somebody may wait
	keyForced         // why the lock was last taken from its holder by force
)

// suffixes follow the resource's name. They are the lock's own, so that a lock
// named like a data key touches no data, and only a key that ends with the first
// one is given a TTL when it has none.
var suffixes = keys{keyLock: ":lock", keyWaiters: ":lock:waiters", keySeen: ":lock:seen", keyFence: ":lock:fence", keyForced: ":lock:forced"}

// list returns the keys as the acquire and release scripts take them.
func (k *keys) list() []string { return k[:keyForced] }

// keysOf names the keys of a resource. Those of a resource that carries a hash
// tag begin with its name, so that they live beside the data they protect; any
// other name is put in a tag behind the prefix.
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
	var k keys
	// One string for all names, because each acquire makes them.
	var all strings.Builder
	for _, suffix := range suffixes {
		all.WriteString(base)
		all.WriteString(suffix)
	}
	for i, rest := 0, all.String(); i < len(k); i++ {
		k[i], rest = rest[:len(base)+len(suffixes[i])], rest[len(base)+len(suffixes[i]):]
	}
	return k, nil
}

// tagged says whether Redis Cluster takes the slot of a key from a hash tag:
// what stands between the first "{" and the next "}", unless that is nothing.
func tagged(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.IndexByte(rest, '}') > 0
}
