package inventory

import (
	"errors"
	"fmt"
	"time"
)

// The refusals of a purchase. Each is definite: nothing was taken.
var (
	ErrSoldOut   = errors.New("inventory: sold out")
	ErrUserLimit = errors.New("inventory: per-user limit reached")
	ErrClosed    = errors.New("inventory: sale closed")
	ErrPaused    = errors.New("inventory: sale paused")
	// ErrKeyReused means that the idempotency key was used for another request.
	ErrKeyReused = errors.New("inventory: idempotency key reused for a different request")
	// ErrOverloaded means that the item's bounded queue of requests, or the
	// task queue, is full. Nothing was taken; try again later.
	ErrOverloaded = errors.New("inventory: overloaded")
	// ErrRebuilding means that the sale's live state is being rebuilt from the
	// database. Nothing was taken; try again shortly.
	ErrRebuilding = errors.New("inventory: rebuilding")
)

// ErrQuantity means that a request asks for less than one unit. Nothing was taken.
var ErrQuantity = errors.New("inventory: quantity must be 1 or more")

// errPayload says that a payload would not fit in its line of the order's task. Nothing was
// taken.
var errPayload = errors.New("inventory: Request.Payload has a line break")

// QuantityError means that a request asks for more units than one buyer may hold.
// Nothing was taken.
type QuantityError struct {
	Limit int64 // the item's present limit per buyer
}

func (e *QuantityError) Error() string {
	return fmt.Sprintf("inventory: quantity is above the item's limit of %d", e.Limit)
}

// ItemVersionError means that a purchase was made with another version of the item than
// the sale has, and its price may be outdated. Nothing was taken.
type ItemVersionError struct {
	Version int64 // the sale's; 0: it cannot be read
}

func (e *ItemVersionError) Error() string {
	return fmt.Sprintf("inventory: the sale has version %d of the item", e.Version)
}

// ErrUnavailable means that Redis could not be reached within the time allowed.
// The outcome of a purchase is then unknown; a repeat with the same idempotency key
// returns it.
var ErrUnavailable = errors.New("inventory: unavailable")

// The refusals of a change of a sale.
var (
	// ErrStockBelowSold means that a change would take back more units than are left.
	// Nothing was changed.
	ErrStockBelowSold = errors.New("inventory: the change takes back more units than are left")
	// ErrNotLoaded means that the sale is not loaded, or was loaded under another
	// epoch, or that another change of it is in progress. Nothing was changed; a load
	// in progress may or may not have read the change.
	ErrNotLoaded = errors.New("inventory: sale not loaded")
	// ErrBehind means that a change of the item before this one has not arrived in
	// its sale. Nothing was changed.
	ErrBehind = errors.New("inventory: an earlier change of the item is missing")
	// ErrUnchanged is wrapped by the error of a change's commit if the database is
	// certainly unchanged. Any other error leaves that open.
	ErrUnchanged = errors.New("inventory: the database was not changed")
)

// NotOpenError means that the sale's window has not opened.
type NotOpenError struct {
	OpensAt time.Time
	// In is the time left until the opening by the clock of Redis.
	In time.Duration
}

func (e *NotOpenError) Error() string {
	return fmt.Sprintf("inventory: sale opens at %s", e.OpensAt.UTC().Format(time.RFC3339))
}
