package order

import (
	"errors"
	"fmt"
	"time"
)

// ErrItemExists means that an item with that id exists already.
var ErrItemExists = errors.New("order: item exists")

// BucketsError means that Redis has orders of an item in more buckets than it is to be created
// with: the database has lost the item. The orders of the other buckets would be lost, too.
type BucketsError struct {
	Buckets int // the item had at least as many
}

func (e *BucketsError) Error() string {
	return fmt.Sprintf("order: Redis has orders of the item in at least %d buckets", e.Buckets)
}

// NewItem is an admin's request to open a sale. See catalog.Item for the meaning and
// units of the fields.
type NewItem struct {
	ID            string
	Name          string
	Description   string
	ImageURL      string // the caller checks its form
	PriceMinor    int64
	Currency      string
	Stock         int64
	PerUserLimit  int64
	OpensAt       time.Time // zero: now; exactly: a second ago, so that it is on sale at once
	ClosesAt      time.Time // zero: no end
	PaymentWindow time.Duration
	// Buckets is the number of buckets to divide the stock into, up to bucket.Max. 0 or 1: it is
	// not divided.
	Buckets int
	By      By // the author of the request
}

// The reasons for which a change of an item is refused. Nothing was changed.
var (
	// ErrVersion means that the item's version is none of those in Match: the item was
	// changed in between.
	ErrVersion = errors.New("order: item has another version")
	// ErrWindow means that the sale would end before or when it opens.
	ErrWindow = errors.New("order: closes_at is not after opens_at")
	// ErrItemClosed means that an operator closed the sale, which is final.
	ErrItemClosed = errors.New("order: sale closed permanently")
)

// Match lists the versions of an item that a change is meant for. A nil Match allows any
// version; an empty one allows none.
type Match []int64
