package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
)

// NoteRevisions adds to a pipeline the commands that record these revisions of items in
// Redis, as committed by the database of a lineage. A lower revision than the recorded one
// changes nothing. They are kept for 90 days, as by [KeepRevisions]: with the first write, so that a
// process that ends soon leaves no key without an expiry.
func NoteRevisions(ctx context.Context, p redis.Pipeliner, partitions int, lineage string, revisions map[string]int64) {
	k := keys{partitions}
	members := make(map[string][]redis.Z, 1)
	for item, revision := range revisions {
		key := k.committed(item, lineage)
		members[key] = append(members[key], redis.Z{Score: float64(revision), Member: item})
	}
	for key, list := range members {
		p.ZAddArgs(ctx, key, redis.ZAddArgs{GT: true, Members: list})
		p.Expire(ctx, key, revisionsLife)
	}
}

// Unmarked is the revision of an item of which Redis has recorded none.
const Unmarked = -1

// Revisions reads the highest committed revision of each item that is recorded in
// Redis, in their order; [Unmarked] where none is. Errors: [ErrUnavailable].
func Revisions(ctx context.Context, rdb redis.UniversalClient, partitions int, lineage string, items []string) ([]int64, error) {
	k := keys{partitions}
	cmds := make([]*redis.FloatCmd, len(items))
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, item := range items {
			cmds[i] = p.ZScore(ctx, k.committed(item, lineage), item)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read revisions of %s: %w: %w", plural.Count(len(items), "item"), ErrUnavailable, err)
	}
	revisions := make([]int64, len(items))
	for i, c := range cmds {
		switch score, err := c.Result(); {
		case err == nil:
			revisions[i] = int64(score)
		case errors.Is(err, redis.Nil):
			revisions[i] = Unmarked
		default:
			return nil, fmt.Errorf("read revision of %s: %w: %w", items[i], ErrUnavailable, err)
		}
	}
	return revisions, nil
}

// revisionsPage is how many items EachRevised reads together, about.
const revisionsPage = 500

// EachRevised calls fn with all items of which Redis has recorded revisions, in pages. An item may be
// on several of them. Errors: [ErrUnavailable], those of fn.
func EachRevised(ctx context.Context, rdb redis.UniversalClient, partitions int, lineage string, fn func(items []string) error) error {
	for n := range partitions {
		for cursor, first := uint64(0), true; first || cursor != 0; first = false {
			pairs, next, err := rdb.ZScan(ctx, keys{partitions}.committedSet(n, lineage), cursor, "", revisionsPage).Result()
			if err != nil {
				return fmt.Errorf("list revisions of items: %w: %w", ErrUnavailable, err)
			}
			cursor = next
			page := make([]string, 0, len(pairs)/2)
			for i := 0; i < len(pairs); i += 2 {
				page = append(page, pairs[i])
			}
			if err := fn(page); err != nil {
				return err
			}
		}
	}
	return nil
}

// ForgetRevision deletes the recorded revision of an item. Errors: [ErrUnavailable].
func ForgetRevision(ctx context.Context, rdb redis.UniversalClient, partitions int, lineage, item string) error {
	if err := rdb.ZRem(ctx, keys{partitions}.committed(item, lineage), item).Err(); err != nil {
		return fmt.Errorf("forget revision of %s: %w: %w", item, ErrUnavailable, err)
	}
	return nil
}

// revisionsLife is how long revisions are kept after the last call of NoteRevisions or KeepRevisions,
// that is, after the last process has stopped using the database.
const revisionsLife = 90 * 24 * time.Hour

// KeepRevisions keeps the revisions of a lineage for 90 more days. Each process calls it
// from time to time, even if it commits nothing. Errors: [ErrUnavailable].
func KeepRevisions(ctx context.Context, rdb redis.UniversalClient, partitions int, lineage string) error {
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n := range partitions {
			p.Expire(ctx, keys{partitions}.committedSet(n, lineage), revisionsLife)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep revisions: %w: %w", ErrUnavailable, err)
	}
	return nil
}
