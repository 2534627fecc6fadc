package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
)

// ErrEnded means that the sale has ended and is not loaded. Only the database has it then:
// see [Archive].
var ErrEnded = errors.New("inventory: the sale has ended and is not loaded")

// Archive is the database's view of the sales that have ended. Such a sale is not loaded
// into Redis again once it was removed; requests for it are answered from the Archive.
type Archive interface {
	// Ended reports whether an item's sale is closed or past its end, by the clock of
	// Redis. An item that does not exist has not ended.
	Ended(ctx context.Context, item string) (bool, error)
	// Entries returns the orders of an ended sale under these keys, in the order of the
	// keys, queued orders included. There are at most as many keys as a batch has
	// purchases.
	Entries(ctx context.Context, item string, keys []EntryKey) ([]Entry, error)
}

// answerEnded answers a batch from the Archive, as the purchase script answers for a
// sale that is closed. One query answers the whole batch, so that a crowd costs the
// database little. waiting is as in the script's reply.
func (s *seller) answerEnded(ctx context.Context, batch []*Request, waiting int64) error {
	keys := make([]EntryKey, len(batch))
	for i, r := range batch {
		keys[i] = EntryKey{r.Buyer, r.IdempotencyKey}
	}
	known, err := s.v.cfg.Archive.Entries(ctx, s.item, keys)
	if err == nil && len(known) != len(batch) {
		err = fmt.Errorf("%d entries for %s", len(known), plural.Count(len(batch), "key"))
	}
	if err != nil {
		return fmt.Errorf("answer for ended sale of %s: %w", s.item, err)
	}
	for i, r := range batch {
		switch e := &known[i]; {
		case !e.Known:
			r.Done(Outcome{Err: ErrClosed})
		case e.Quantity != r.Quantity:
			r.Done(Outcome{Err: ErrKeyReused})
		case e.OrderID == r.OrderID: // an earlier run of the script accepted it
			r.Done(Outcome{})
		default:
			r.Done(Outcome{ReplayOf: e.OrderID})
		}
	}
	if waiting > 0 {
		s.lock.release()
	}
	return nil
}

// FreeStatus is the result of removing a sale from Redis.
type FreeStatus int64

const (
	// FreeDone means that the sale's keys were removed.
	FreeDone FreeStatus = 1
	// FreeNothing means that there was nothing to remove.
	FreeNothing FreeStatus = 0
	// FreeKept means that the sale was kept: it has not ended, it is stopped (see [Stop]),
	// or it is being loaded or changed.
	FreeKept FreeStatus = -1
)

// Free removes what Redis holds of the sales of these items, if they have ended, and
// returns a status for each item, in their order. Redis frees the memory in the
// background. Requests for a removed sale are answered from the [Archive]. Free may be
// called at any time and repeatedly. A sale that Redis cannot remove, because one of its
// keys has another type, is kept; the first such error is returned with the statuses.
// Errors: [ErrUnavailable].
func Free(ctx context.Context, rdb redis.UniversalClient, partitions int, items []string) (status []FreeStatus, err error) {
	k := keys{partitions}
	cmds := make([]*redis.Cmd, len(items))
	err = pipelined(ctx, rdb, func(p redis.Pipeliner) {
		for i, item := range items {
			cmds[i] = freeScript.Eval(ctx, p, []string{k.sale(item), k.idempotency(item), k.buyers(item), k.lockKey(item), k.accepted(item)}, stoppedMark)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("remove %s: %w", plural.Count(len(items), "ended sale"), err)
	}
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
