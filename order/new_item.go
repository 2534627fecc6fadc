package order

import (
	"errors"
	"time"
)

// ErrItemExists says that an item with that id exists already.
var ErrItemExists = errors.New("order: item exists")

// NewItem is what an engineer states to open a sale. See catalog.Item for the
// meaning and units of the fields.
type NewItem struct {
	ID            string
	Name          string
	Description   string
	PriceMinor    int64
	Currency      string
	Stock         int64
	PerUserLimit  int64
	OpensAt       time.Time // zero: now; a second ago, to be exact, so that it is on sale at once
	ClosesAt      time.Time // zero: no end
	PaymentWindow time.Duration
	By            By // who asks for it
}
