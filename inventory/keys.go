package inventory

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// keys builds every Redis key of this room. An item's keys carry the hash tag
// of its partition, so that one script may use them together with the
// partition's task queue, on a cluster too.
type keys struct{ partitions int }

// partition is where an item lives: a hash of its id.
func (k keys) partition(item string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(item)) // a hash's Write never fails
	return int(h.Sum32() % uint32(k.partitions))
}

// PartitionOf tells in which of that number of partitions an item lives.
func PartitionOf(item string, partitions int) int { return keys{partitions}.partition(item) }

// tag opens every key of a partition.
func tag(partition int) string { return "fs:{p" + strconv.Itoa(partition) + "}:" }

// QueuePrefix is the prefix of a partition's task queue of orders.
func QueuePrefix(partition int) string { return tag(partition) + "q:orders:" }

// ExpiryQueuePrefix is the prefix of a partition's queue of what is to be done
// when its orders expire. It is in the slot of the queue of orders.
func ExpiryQueuePrefix(partition int) string { return tag(partition) + "q:expiries:" }

// queuedLogKey is the log of the orders that were added to a queue, from which
// QueuedIndex finds those of a buyer. It is named after the queue, so that it is in
// the queue's slot.
func queuedLogKey(queuePrefix string) string { return queuePrefix + "accepted" }

// stockChannel tells of a partition's items whose stock or terms changed: each
// message is an item's id. It is no key.
func stockChannel(partition int) string { return tag(partition) + "stock" }

// partitionsKey records how many partitions the keys were laid out for.
const partitionsKey = "fs:{p0}:partitions"

// epochKey says which build of all state a partition's data is of.
func epochKey(partition int) string { return tag(partition) + "epoch" }

// builtKey says under which epoch all sales were loaded after a loss.
func builtKey(partition int) string { return tag(partition) + "built" }

// committedKey is a sorted set of the partition's items, scored by the highest
// revision that the database of a lineage has committed of each.
func committedKey(partition int, lineage string) string {
	return tag(partition) + "committed:" + lineage
}

// dropScript drops a sale that is not stopped.
const dropScript = `if redis.call('HGET', KEYS[1], 'changing') ~= ARGV[1] then redis.call('DEL', KEYS[1]) end return 1`

// Distrust drops the sale of items of which the database has refused what Redis
// let through: their next purchase loads them again, from the database. It is for
// a process that works on orders and has no Inventory. Nothing is sold by a sale
// that is missing, so it may be dropped at any time; one that is being loaded is
// loaded once more. A stopped sale stays: see [Stop].
func Distrust(ctx context.Context, rdb redis.UniversalClient, partitions int, items []string) error {
	k := keys{partitions}
	for _, item := range items {
		if err := rdb.Eval(ctx, dropScript, []string{k.sale(item)}, stoppedMark).Err(); err != nil {
			return fmt.Errorf("inventory: drop sale of %s: %w", item, err)
		}
	}
	return nil
}

// unloadScript makes a sale that is not stopped incomplete.
const unloadScript = `if redis.call('HGET', KEYS[1], 'changing') ~= ARGV[1] then redis.call('HDEL', KEYS[1], 'left') end return 1`

// Unload makes an item's next purchase load its sale again, as Distrust does, but
// lets a load that is under way be: it is for what the database has said for so
// long that such a load has read it.
func Unload(ctx context.Context, rdb redis.UniversalClient, partitions int, item string) error {
	if err := rdb.Eval(ctx, unloadScript, []string{keys{partitions}.sale(item)}, stoppedMark).Err(); err != nil {
		return fmt.Errorf("inventory: unload sale of %s: %w", item, err)
	}
	return nil
}

func (k keys) committed(item, lineage string) string {
	return committedKey(k.partition(item), lineage)
}

// lock names the item's lock, whose keys begin with the sale's: see lock/README.md.
func (k keys) lock(item string) string { return k.sale(item) }

// lockKey is the key that exists while the item's lock is held: lock.Manager's
// GuardKeys names the same.
func (k keys) lockKey(item string) string { return k.lock(item) + ":lock" }
func (k keys) sale(item string) string    { return tag(k.partition(item)) + "sale:" + item }
func (k keys) idempotency(item string) string {
	return tag(k.partition(item)) + "idempotency:" + item
}
func (k keys) accepted(item string) string { return tag(k.partition(item)) + "accepted:" + item }
func (k keys) buyers(item string) string   { return tag(k.partition(item)) + "buyers:" + item }
