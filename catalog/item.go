// Package catalog reads the items on sale. They come from the process's memory, else from
// Redis, else from the database, so that a crowd that reloads an item's page, or requests
// unknown items, does not reach the database. docs/catalog.md describes how.
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
	StatePaused    State = "paused"    // an operator paused it; it can be resumed
	StateSoldOut   State = "sold_out"  // open, with nothing left
	StateClosed    State = "closed"    // its window ended, or an operator ended it
)

// ErrItemNotFound means that no item has this id.
var ErrItemNotFound = errors.New("catalog: item not found")

// Control is the state that the operator has set; the window is checked separately.
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
	ImageURL      string // the path of the image on the shop's own address; "": none
	PriceMinor    int64
	Currency      string // ISO 4217, upper case
	StockInitial  int64  // units the item was created with
	StockTotal    int64  // StockInitial plus everything restocked
	StockLeft     int64  // units that can still be bought; at most a second old
	PerUserLimit  int64  // units one buyer may hold
	OpensAt       time.Time
	ClosesAt      time.Time     // zero: no end
	PaymentWindow time.Duration // zero: no payment is required
	Control       Control
	Version       int64 // rises by one with every change of the row
	// Buckets is the number of buckets that the stock is divided into, at most 1 if it is not.
	// The stock of the item is then the sum of theirs. See package bucket.
	Buckets int
	// Moves is how many of the changes of the row only moved units to or from another bucket.
	Moves int64
}

// ShownVersion is the version that clients see: it does not rise when units move between buckets.
func (i *Item) ShownVersion() int64 { return i.Version - i.Moves }

// State returns the item's state at the given time.
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
// It uses no regular expression, which would take as long as all other syntax checks of
// the purchase route together.
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
