package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrStopped says that the database is older than the state that Redis has recorded of it.
// The sale is stopped until an operator has decided which of the two is right. Nothing was
// taken.
var ErrStopped = errors.New("inventory: sale stopped: the database is older than Redis")

// stoppedMark is the value of a sale's field "changing" while the sale is stopped. The
// purchase script asks for a load of a sale with that field, and no load succeeds until
// the database has caught up.
const stoppedMark = "stopped"

// NoteRevisions adds the commands to a pipeline that record these revisions of items in
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
		return nil, fmt.Errorf("read revisions of %d items: %w: %w", len(items), ErrUnavailable, err)
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

// Stop makes every process refuse purchases of these items with [ErrStopped], until
// the sales are loaded again. Errors: [ErrUnavailable].
func Stop(ctx context.Context, rdb redis.UniversalClient, partitions int, items []string) error {
	k := keys{partitions}
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, item := range items {
			stopScript.Eval(ctx, p, []string{k.sale(item)}, stoppedMark, k.stockChannel(k.partition(item)), item)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("stop %d sales: %w: %w", len(items), ErrUnavailable, err)
	}
	return nil
}

// Resume drops a stopped sale, so that its next purchase loads it from the database.
// Call it once the database has caught up. Errors: [ErrUnavailable].
func Resume(ctx context.Context, rdb redis.UniversalClient, partitions int, item string) error {
	if err := resumeScript.Eval(ctx, rdb, []string{keys{partitions}.sale(item)}, stoppedMark).Err(); err != nil {
		return fmt.Errorf("resume sale of %s: %w: %w", item, ErrUnavailable, err)
	}
	return nil
}

// ErrIncomplete says that an interrupted load has deleted a sale's orders from Redis, so
// that Redis is not a record of them.
var ErrIncomplete = errors.New("inventory: a load of the sale was interrupted")

// Stopped is what Redis has of a stopped sale.
type Stopped struct {
	Sale
	// Whole is false when the values are lost or cannot be read; the sale's orders are stored
	// under other keys.
	Whole bool
	// Interrupted says that a change was under way when the sale was stopped. The database may
	// have committed it.
	Interrupted bool
}

// StoppedSale reads a stopped sale of any epoch. Errors: [ErrUnavailable], [ErrIncomplete].
func StoppedSale(ctx context.Context, rdb redis.UniversalClient, partitions int, item string) (Stopped, error) {
	found, err := rdb.HMGet(ctx, keys{partitions}.sale(item), "left", "per_user_limit", "opens_ms", "closes_ms", "version", "sequence", "control", "building", "interrupted").Result()
	if err != nil {
		return Stopped{}, fmt.Errorf("read sale of %s: %w: %w", item, ErrUnavailable, err)
	}
	// A claim has deleted nothing; see claim.lua.
	if building, begun := found[7].(string); begun && !strings.HasPrefix(building, claimPrefix) {
		return Stopped{}, fmt.Errorf("item %s: %w", item, ErrIncomplete)
	}
	var n [6]int64
	for i := range n {
		text, there := found[i].(string)
		if !there {
			return Stopped{}, nil
		}
		text, _, _ = strings.Cut(text, ".") // the version, which ends with its build and turn
		if n[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return Stopped{}, nil //nolint:nilerr // that it cannot be read is the answer
		}
	}
	control, _ := found[6].(string)
	sale := Sale{
		Left: n[0], PerUserLimit: n[1], OpensAt: time.UnixMilli(n[2]).UTC(), Control: control, Version: n[4], Sequence: n[5],
	}
	if n[3] != 0 {
		sale.ClosesAt = time.UnixMilli(n[3]).UTC()
	}
	return Stopped{sale, true, found[8] != nil}, nil
}
