package inventory

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
)

// Released is an order whose units are given back.
type Released struct {
	Buyer          string
	IdempotencyKey string
	OrderID        string
	Quantity       int64 // 1 or more, and what the order took
}

// ReleaseStatus is the result of releasing an order's units.
type ReleaseStatus byte

const (
	// ReleaseUnknown means that the script was not sent or its reply was lost. Release the
	// order again.
	ReleaseUnknown ReleaseStatus = 0
	// ReleaseDone means that the units are back.
	ReleaseDone ReleaseStatus = 'K'
	// ReleaseRepeated means that the units were back before the call: through an earlier
	// call, or through a load that read the order as released.
	ReleaseRepeated ReleaseStatus = 'D'
	// ReleaseNotNeeded means that the sale is not loaded and is not being loaded. The
	// next load reads the database, where the order is closed.
	ReleaseNotNeeded ReleaseStatus = 'N'
	// ReleaseNotLoaded means that the sale is being loaded, or that the order is not in it.
	// Nothing was done. The load may count the order or not, depending on when it reads
	// the database: release the order again after it.
	ReleaseNotLoaded ReleaseStatus = 'M'
	// ReleaseForeign means that the order's key belongs to another order, or to another
	// quantity. Nothing was done, and a repeat has the same result. The item's counts in
	// Redis differ from the database; [Invalidate] corrects them.
	ReleaseForeign ReleaseStatus = 'X'
)

// Settled reports whether nothing is left to do: the order's units are back, or every
// later load reads the release from the database.
func (s ReleaseStatus) Settled() bool {
	return s == ReleaseDone || s == ReleaseRepeated || s == ReleaseNotNeeded
}

// String names the status.
func (s ReleaseStatus) String() string {
	switch s {
	case ReleaseUnknown:
		return "unknown"
	case ReleaseDone:
		return "done"
	case ReleaseRepeated:
		return "done before"
	case ReleaseNotNeeded:
		return "not needed"
	case ReleaseNotLoaded:
		return "not loaded"
	case ReleaseForeign:
		return "another order's"
	default:
		return fmt.Sprintf("ReleaseStatus(%d)", byte(s))
	}
}

// releasePage is how many orders one release script carries. The script hands
// them to single commands, and the embedded engine's Lua stack is small.
const releasePage = 100

// Release returns the units of an item's closed orders to the stock. Each order's units
// return once, however often Release is called, by any process, and also around a load of
// the sale. status has one entry per order, in their order. When Release returns, the
// units no longer count against their buyers' limits and can be bought. Processes with a
// sold-out mark of the item are notified, which takes a moment; the caller's own process
// drops its mark with [Inventory.DropSoldOutMark].
//
// Call Release after the database has committed that the orders are closed, and repeat it
// for orders that are not [ReleaseStatus.Settled]. epoch is the current epoch, as
// returned by Source.Epoch. Release needs no Inventory.
//
// sequence is the sale's sequence after the release, 0 if it is not loaded: a sale that
// is later found with a lower one has lost these releases; see [Source].
//
// After an error, the statuses of the orders that were processed before it are valid, and
// the others are ReleaseUnknown. Errors: [ErrQuantity]; Redis away.
func Release(ctx context.Context, rdb redis.UniversalClient, partitions int, epoch int64, item string, orders []Released) (status []ReleaseStatus, sequence int64, err error) {
	status = make([]ReleaseStatus, len(orders))
	for i := range orders {
		if orders[i].Quantity < 1 {
			return status, 0, fmt.Errorf("inventory: release order %s: %w", orders[i].OrderID, ErrQuantity)
		}
	}
	k := keys{partitions}
	scriptKeys := []string{k.sale(item), k.idempotency(item), k.buyers(item), k.epoch(k.partition(item))}
	for from := 0; from < len(orders); from += releasePage {
		page := orders[from:min(from+releasePage, len(orders))]
		args := make([]any, 0, 4+4*len(page))
		args = append(args, epoch, k.stockChannel(k.partition(item)), item, len(page))
		for i := range page {
			o := &page[i]
			args = append(args, o.Buyer, o.IdempotencyKey, o.OrderID, o.Quantity)
		}
		answer, err := releaseScript.Run(ctx, rdb, scriptKeys, args...).Text()
		number, letters, _ := strings.Cut(answer, " ")
		at, nerr := strconv.ParseInt(number, 10, 64)
		if err == nil && (nerr != nil || len(letters) != len(page)) {
			err = fmt.Errorf("the script answered %q for %s", answer, plural.Count(len(page), "order"))
		}
		if err != nil {
			return status, sequence, fmt.Errorf("inventory: release orders of %s: %w", item, err)
		}
		for i := range page {
			status[from+i] = ReleaseStatus(letters[i])
		}
		sequence = max(sequence, at) // the sale may be dropped between two pages
	}
	return status, sequence, nil
}
