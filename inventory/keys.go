package inventory

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/bucket"
)

// keys builds every Redis key of this package. An item's keys carry the hash tag
// of its partition, so that one script may use them together with the
// partition's task queue, on a cluster too.
type keys struct{ partitions int }

// partition is the partition of an item: a hash of its id. The buckets of an item follow each
// other, so that they are spread evenly.
func (k keys) partition(item string) int {
	item, number := bucket.Split(item)
	h := fnv.New32a()
	_, _ = h.Write([]byte(item)) // a hash's Write never fails
	return (int(h.Sum32()%uint32(k.partitions)) + number) % k.partitions
}

// PartitionOf returns the partition of an item, for that number of partitions.
func PartitionOf(item string, partitions int) int { return keys{partitions}.partition(item) }

// tag opens every key of a partition.
func tag(partition int) string { return "fs:{p" + strconv.Itoa(partition) + "}:" }

// QueuePrefix is the prefix of a partition's task queue of orders.
func QueuePrefix(partition int) string { return tag(partition) + "q:orders:" }

// ExpiryQueuePrefix is the prefix of a partition's queue of expiry tasks for its orders.
// It is in the slot of the queue of orders.
func ExpiryQueuePrefix(partition int) string { return tag(partition) + "q:expiries:" }

// stockChannel is the channel of a partition's items whose stock or terms changed. Each
// message is an item's id. It is not a key.
func stockChannel(partition int) string { return tag(partition) + "stock" }

// partitionsKey records how many partitions the keys were laid out for.
const partitionsKey = "fs:{p0}:partitions"

// lineageKey records the lineage of the database that this Redis belongs to.
const lineageKey = "fs:{p0}:lineage"

// epochKey holds the epoch that a partition's data belongs to.
func epochKey(partition int) string { return tag(partition) + "epoch" }

// builtKey holds the last epoch for which all sales were loaded after a loss.
func builtKey(partition int) string { return tag(partition) + "built" }

// committedKey is a sorted set of the partition's items, scored by the highest
// revision that the database of a lineage has committed of each.
func committedKey(partition int, lineage string) string {
	return tag(partition) + "committed:" + lineage
}

// confirmKey is written before each question whether the replicas have what was written before.
func confirmKey(partition int) string { return tag(partition) + "confirm" }

func (k keys) committed(item, lineage string) string {
	return committedKey(k.partition(item), lineage)
}

// lock names the item's lock, whose keys begin with the sale's: see lock/README.md.
func (k keys) lock(item string) string { return k.sale(item) }

// lockKey is the key that exists while the item's lock is held. It is the first of
// lock.Manager's GuardKeys.
func (k keys) lockKey(item string) string { return k.lock(item) + ":lock" }
func (k keys) sale(item string) string    { return tag(k.partition(item)) + "sale:" + item }
func (k keys) idempotency(item string) string {
	return tag(k.partition(item)) + "idempotency:" + item
}
func (k keys) accepted(item string) string { return tag(k.partition(item)) + "accepted:" + item }
func (k keys) buyers(item string) string   { return tag(k.partition(item)) + "buyers:" + item }

// ErrPartitions says that Redis holds a sale laid out for another number of partitions.
var ErrPartitions = errors.New("inventory: the number of partitions differs from that of this Redis")

// CheckPartitions records the number of partitions at the first start and
// returns ErrPartitions when a later one differs.
func CheckPartitions(ctx context.Context, rdb redis.UniversalClient, n int) error {
	if err := rdb.SetNX(ctx, partitionsKey, n, 0).Err(); err != nil {
		return fmt.Errorf("inventory: record partitions: %w", err)
	}
	have, err := rdb.Get(ctx, partitionsKey).Int()
	if err != nil {
		return fmt.Errorf("inventory: read partitions: %w", err)
	}
	if have != n {
		return fmt.Errorf("%w: %d configured, %d recorded in %s", ErrPartitions, n, have, partitionsKey)
	}
	return nil
}

// RecordedPartitions is the number of partitions for which this Redis was laid out; 0
// where none is recorded.
func RecordedPartitions(ctx context.Context, rdb redis.UniversalClient) (int, error) {
	n, err := rdb.Get(ctx, partitionsKey).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("inventory: read partitions: %w", err)
	}
	return n, nil
}
