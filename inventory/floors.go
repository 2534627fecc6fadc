package inventory

import (
	"maps"
	"time"
)

// floorLife is how long the floor of a seller that has ended is kept at least. By then the database has
// the sequences of the sale's orders, unless no worker has run for that long, and the recovery compares
// those with Redis. A process that has lost a floor is like one that has never sold the item.
const floorLife = 24 * time.Hour

// floors are the floors of sellers that have ended, by item; see seller.floor. They take memory for the
// items that the process has sold in the last two lives of a floor, and not for all that it ever sold.
type floors struct {
	of    map[string]keptFloor
	swept time.Time // when old floors were last removed
}

type keptFloor struct {
	sequence int64
	since    time.Time
}

// keep keeps a floor. Once in a floor's life it removes the old ones.
func (f *floors) keep(item string, sequence int64, now time.Time) {
	if sequence <= 0 {
		return // nothing was sold
	}
	if f.of == nil {
		f.of, f.swept = make(map[string]keptFloor), now
	}
	if now.Sub(f.swept) >= floorLife {
		maps.DeleteFunc(f.of, func(_ string, k keptFloor) bool { return now.Sub(k.since) >= floorLife })
		f.swept = now
	}
	f.of[item] = keptFloor{sequence, now}
}

// take removes and returns a floor, for a new seller; 0: there is none.
func (f *floors) take(item string) int64 {
	sequence := f.of[item].sequence
	delete(f.of, item)
	return sequence
}

// floor is the highest sequence of an item's sale that this process has received.
func (v *Inventory) floor(item string) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if s := v.sellers[item]; s != nil {
		return s.floor.Load()
	}
	return v.floors.of[item].sequence
}
