package inventory

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/bucket"
	"flashsale/internal/hashtag"
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
func (k keys) tag(partition int) string { return "fs:{" + hashtag.Of(partition, k.partitions) + "}:" }

// HashTag returns the hash tag of an item's keys, for that number of partitions.
func HashTag(item string, partitions int) string {
	return hashtag.Of(PartitionOf(item, partitions), partitions)
}

// QueuePrefix is the prefix of a partition's task queue of orders, for that number of partitions.
func QueuePrefix(partition, partitions int) string {
	return keys{partitions}.tag(partition) + "q:orders:"
}

// ExpiryQueuePrefix is the prefix of a partition's queue of expiry tasks for its orders.
// It is in the slot of the queue of orders.
func ExpiryQueuePrefix(partition, partitions int) string {
	return keys{partitions}.tag(partition) + "q:expiries:"
}

// stockChannel is the channel of a partition's items whose stock or terms changed. Each
// message is an item's id. It is not a key.
func (k keys) stockChannel(partition int) string { return k.tag(partition) + "stock" }

// partitionsKey records the layout of the keys: see [keys.layout].
const partitionsKey = "fs:{p0}:partitions"

// lineageKey records the lineage of the database that this Redis belongs to.
const lineageKey = "fs:{p0}:lineage"

// epoch holds the epoch that a partition's data belongs to.
func (k keys) epoch(partition int) string { return k.tag(partition) + "epoch" }

// built holds the last epoch for which all sales were loaded after a loss.
func (k keys) built(partition int) string { return k.tag(partition) + "built" }

// committedSet is a sorted set of the partition's items, scored by the highest
// revision that the database of a lineage has committed of each.
func (k keys) committedSet(partition int, lineage string) string {
	return k.tag(partition) + "committed:" + lineage
}

// confirm is written before each question whether the replicas have what was written before.
func (k keys) confirm(partition int) string { return k.tag(partition) + "confirm" }

func (k keys) committed(item, lineage string) string {
	return k.committedSet(k.partition(item), lineage)
}

// lock names the item's lock, whose keys begin with the sale's: see lock/README.md.
func (k keys) lock(item string) string { return k.sale(item) }

// lockKey is the key that exists while the item's lock is held. It is the first of
// lock.Manager's GuardKeys.
func (k keys) lockKey(item string) string { return k.lock(item) + ":lock" }
func (k keys) sale(item string) string    { return k.tag(k.partition(item)) + "sale:" + item }
func (k keys) idempotency(item string) string {
	return k.tag(k.partition(item)) + "idempotency:" + item
}
func (k keys) accepted(item string) string { return k.tag(k.partition(item)) + "accepted:" + item }
func (k keys) buyers(item string) string   { return k.tag(k.partition(item)) + "buyers:" + item }

// ErrPartitions means that Redis holds keys of another number of partitions.
var ErrPartitions = errors.New("inventory: the number of partitions differs from that of this Redis")

// ErrLayout means that Redis holds keys of several partitions, named by an earlier version.
// That version must commit the orders, and the keys must then be deleted: see
// docs/deployment.md.
var ErrLayout = errors.New("inventory: this Redis holds keys of partitions that an earlier version has named")

// spread marks the number of partitions in the record of a layout whose hash tags are spread over
// the slots. One partition has the same tag in both layouts, and no mark.
const spread = " spread"

// layout is the record of the number of partitions and of how their keys are named.
func (k keys) layout() string {
	if k.partitions == 1 {
		return "1"
	}
	return strconv.Itoa(k.partitions) + spread
}

// CheckPartitions records the number of partitions at the first start. Errors: [ErrPartitions] if
// another one is recorded, [ErrLayout].
func CheckPartitions(ctx context.Context, rdb redis.UniversalClient, n int) error {
	if err := rdb.SetNX(ctx, partitionsKey, keys{n}.layout(), 0).Err(); err != nil {
		return fmt.Errorf("inventory: record partitions: %w", err)
	}
	have, err := RecordedPartitions(ctx, rdb)
	if err != nil {
		return err
	}
	if have != n {
		return fmt.Errorf("%w: %d configured, %d recorded in %s", ErrPartitions, n, have, partitionsKey)
	}
	return nil
}

// RecordedPartitions returns the number of partitions of the keys in this Redis; 0 if none is
// recorded. Errors: [ErrLayout].
func RecordedPartitions(ctx context.Context, rdb redis.UniversalClient) (int, error) {
	record, err := rdb.Get(ctx, partitionsKey).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("inventory: read partitions: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSuffix(record, spread))
	if err != nil {
		return 0, fmt.Errorf("inventory: read partitions: %w", err)
	}
	if record != (keys{n}).layout() {
		return 0, fmt.Errorf("%w: %s is %q", ErrLayout, partitionsKey, record)
	}
	return n, nil
}
