package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
)

// ErrStopped means that the database is older than the state that Redis has recorded of it.
// The sale is stopped until an operator has decided which of the two is right. Nothing was
// taken.
var ErrStopped = errors.New("inventory: sale stopped: the database is older than Redis")

// stoppedMark is the value of a sale's field "changing" while the sale is stopped. The
// purchase script asks for a load of a sale with that field, and no load succeeds until
// the database has caught up.
const stoppedMark = "stopped"

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
		return fmt.Errorf("stop %s: %w: %w", plural.Count(len(items), "sale"), ErrUnavailable, err)
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

// ErrIncomplete means that an interrupted load has deleted a sale's orders from Redis, so
// that Redis is not a record of them.
var ErrIncomplete = errors.New("inventory: a load of the sale was interrupted")

// Stopped is what Redis has of a stopped sale.
type Stopped struct {
	Sale
	// Whole is false when the values are lost or cannot be read; the sale's orders are stored
	// under other keys.
	Whole bool
	// Interrupted means that a change was in progress when the sale was stopped. The database may
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
