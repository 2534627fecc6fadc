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

// endings are the lengths of what follows the lock's own key in each name.
var endings = [...]int{keyWaiters: len(":waiters"), keySeen: len(":seen"), keyFence: len(":fence"), keyForced: len(":forced")}

// list returns the keys as the acquire and release scripts take them.
func (k *keys) list() []string { return k[:keyForced] }

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
	// One string for all names, because an acquire makes them anew each time.
	all := base + ":waiters" + base + ":seen" + base + ":fence" + base + ":forced"
	k := keys{keyLock: base}
	for i, at := keyWaiters, 0; i <= keyForced; i++ {
		end := at + len(base) + endings[i]
		k[i] = all[at:end]
		at = end
	}
	return k, nil
}

// tagged says whether Redis Cluster takes the slot of a key from a hash tag:
// what stands between the first "{" and the next "}", unless that is nothing.
func tagged(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.IndexByte(rest, '}') > 0
}
