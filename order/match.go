package order

import (
	"errors"
)

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
