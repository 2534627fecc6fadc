package lock

import (
	"fmt"
	"strings"
)

// channelPrefix is the prefix of a manager's publish/subscribe channel; its id follows.
// handover.lua builds the same name from a waiter's entry.
const channelPrefix = "lock:wake:"

// pollingMark is the prefix of the id of a manager that listens to no channel;
// handover.lua checks it.
const pollingMark = "~"

// keys are the Redis keys of one resource, in the order in which the scripts expect
// them. All share one hash slot.
type keys [4]string

const (
	keyLock    = iota // "<token>:<fence>[:<metadata>]" with a TTL while held
	keyWaiters        // sorted set of "<token>[:<metadata>]", score = arrival
	keySeen           // hash: waiter -> time in ms until which it counts as alive
	keyFence          // the last fencing token, followed by "w" while there may be waiters
)

// suffixes follow the resource's name. They keep a lock that is named like a data key
// from touching that data. Only a key with the first suffix gets a TTL if it has none.
var suffixes = keys{keyLock: ":lock", keyWaiters: ":lock:waiters", keySeen: ":lock:seen", keyFence: ":lock:fence"}

// keysOf returns the keys of a resource. If its name has a hash tag, they begin with the
// name, so that they are in the slot of the data they protect. Any other name becomes a
// hash tag after the prefix.
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
	// One allocation for all names, because each acquire needs them.
	all := base + suffixes[0] + base + suffixes[1] + base + suffixes[2] + base + suffixes[3]
	var k keys
	for i, suffix := range suffixes {
		n := len(base) + len(suffix)
		k[i], all = all[:n], all[n:]
	}
	return k, nil
}

// tagged reports whether Redis Cluster hashes only a part of the key: a non-empty text
// between the first "{" and the next "}".
func tagged(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.IndexByte(rest, '}') > 0
}
