package order

import (
	"errors"
	"time"
)

// ErrItemExists says that an item with that id exists already.
var ErrItemExists = errors.New("order: item exists")

// NewItem is an engineer's request to open a sale. See catalog.Item for the meaning and
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
