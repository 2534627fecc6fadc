// Package catalog answers what is on sale: the items as buyers and engineers
// read them. They come from the process's memory, else from Redis, else from
// the database, so that a crowd that reloads an item's page, or asks for items
// that there are none of, does not reach the database. docs/catalog.md says how.
package catalog

import (
	"errors"
	"time"
)

// State says whether an item can be bought, and if not, why.
type State string

// The states of an item, as the API spells them.
const (
	StateScheduled State = "scheduled" // its window has not opened
	StateOpen      State = "open"      // it can be bought
	StatePaused    State = "paused"    // an operator halted it; it can be resumed
	StateSoldOut   State = "sold_out"  // open, with nothing left
	StateClosed    State = "closed"    // its window ended, or an operator ended it
)

// ErrItemNotFound says that no item has the id asked for.
var ErrItemNotFound = errors.New("catalog: item not found")

// Control is the operator's word on an item; the window is checked apart from it.
type Control string

// The controls an operator can set.
const (
	ControlOpen   Control = "open"
	ControlPaused Control = "paused"
	ControlClosed Control = "closed"
)

// Item is one thing on sale. Money is in the currency's minor unit (cents).
type Item struct {
	ID            string
	Name          string
	Description   string
	PriceMinor    int64
	Currency      string // ISO 4217, upper case
	StockInitial  int64  // units the item was created with
	StockTotal    int64  // StockInitial plus everything restocked
	StockLeft     int64  // units that can still be bought; at most a second old
	PerUserLimit  int64  // units one buyer may hold
	OpensAt       time.Time
	ClosesAt      time.Time     // zero: no end
	PaymentWindow time.Duration // zero: no payment is asked
	Control       Control
	Version       int64 // rises by one with every change of the row
}

// State tells where the item stands at the given instant.
func (i *Item) State(now time.Time) State {
	switch {
	case i.Control == ControlClosed || !i.ClosesAt.IsZero() && !now.Before(i.ClosesAt):
		return StateClosed
	case now.Before(i.OpensAt):
		return StateScheduled
	case i.Control == ControlPaused:
		return StatePaused
	case i.StockLeft <= 0:
		return StateSoldOut
	default:
		return StateOpen
	}
}

// MaxIDLength is the length of the longest item id.
const MaxIDLength = 64

// ValidID reports whether id has the form of an item id:
// 1 to 64 characters of a-z, 0-9 and '-', not starting with '-'.
//
// It does without a regular expression, which would cost the purchase route as much
// as all its other checks of syntax together.
func ValidID(id string) bool {
	if len(id) == 0 || len(id) > MaxIDLength || id[0] == '-' {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
