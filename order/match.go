package order

import (
	"errors"
)

// The refusals of a change of an item. Nothing was changed.
var (
	// ErrVersion says that the item's version is none of those that the change
	// was meant for: somebody else has changed it.
	ErrVersion = errors.New("order: item has another version")
	// ErrWindow says that the sale would end before it opens, or as it does.
	ErrWindow = errors.New("order: closes_at is not after opens_at")
	// ErrItemClosed says that the sale was closed by an operator, which is final.
	ErrItemClosed = errors.New("order: sale closed for good")
)

// Match names the versions of an item that a change is meant for. The nil Match
// means any; one that is empty is met by none.
type Match []int64
