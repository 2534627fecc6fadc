// Package loglinear numbers the buckets of histograms of durations: one bucket per microsecond
// below 16 us, and above it 16 per power of two. A bucket is at most 1/16 of its durations wide,
// and histograms with these buckets can be added.
package loglinear

import (
	"math/bits"
	"time"
)

// PerDoubling is the number of buckets for each power of two.
const PerDoubling = 16

// Bucket returns the bucket of a duration. A negative one is in bucket 0.
func Bucket(d time.Duration) int {
	us := uint64(max(0, d.Microseconds()))
	if us < PerDoubling {
		return int(us)
	}
	shift := bits.Len64(us) - bits.Len64(PerDoubling)
	return PerDoubling*shift + int(us>>shift) //nolint:gosec // below 2*PerDoubling
}

// Bounds returns the shortest and the longest duration of a bucket, in whole microseconds.
func Bounds(bucket int) (first, last time.Duration) {
	if bucket < PerDoubling {
		d := time.Duration(bucket) * time.Microsecond
		return d, d
	}
	shift := bucket/PerDoubling - 1
	lead := PerDoubling + bucket%PerDoubling
	return time.Duration(lead<<shift) * time.Microsecond, time.Duration((lead+1)<<shift-1) * time.Microsecond
}
