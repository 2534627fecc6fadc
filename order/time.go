package order

import (
	"time"
)

// FromMillis converts a column's milliseconds into a time; 0 is the zero time.
func FromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// ToMillis returns a time in Unix milliseconds, and 0 for the zero time.
func ToMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
