package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// FreeStatus is what became of a sale that was to be removed from Redis.
type FreeStatus int64

const (
	// FreeDone says that the sale's keys were removed.
	FreeDone FreeStatus = 1
	// FreeNothing says that there was nothing to remove.
	FreeNothing FreeStatus = 0
	// FreeKept says that the sale was left alone: it has not ended, it is stopped (see
	// [Stop]), or it is being loaded or changed.
	FreeKept FreeStatus = -1
)

// Free removes what Redis holds of the sales of these items, if they have ended, and
// says what became of each, in their order. Their memory is freed beside the selling of
// others. A sale that was removed is answered from the [Archive]. Free may be called at
// any time and again. A sale that Redis cannot remove, because one of its keys has another
// type, is kept; the first such error comes with the statuses. Errors: [ErrUnavailable].
func Free(ctx context.Context, rdb redis.UniversalClient, partitions int, items []string) (status []FreeStatus, err error) {
	k := keys{partitions}
	cmds := make([]*redis.Cmd, len(items))
	_, _ = rdb.Pipelined(ctx, func(p redis.Pipeliner) error { //nolint:errcheck // each command has its own error
		for i, item := range items {
			cmds[i] = freeScript.Eval(ctx, p, []string{k.sale(item), k.idempotency(item), k.buyers(item), k.lockKey(item), k.accepted(item)}, stoppedMark)
		}
		return nil
	})
	status = make([]FreeStatus, len(items))
	for i, c := range cmds {
		n, cerr := c.Int64()
		status[i] = FreeStatus(n)
		if cerr == nil {
			continue
		}
		cerr = fmt.Errorf("remove ended sale of %s: %w: %w", items[i], ErrUnavailable, cerr)
		if refused := redis.Error(nil); !errors.As(cerr, &refused) {
			return nil, cerr // Redis is away
		}
		status[i], err = FreeKept, cmp.Or(err, cerr)
	}
	return status, err
}
