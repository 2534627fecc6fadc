package loglinear

import (
	"testing"
	"time"
)

// TestBounds: the buckets follow each other without a gap, hold their bounds, and are narrow.
func TestBounds(t *testing.T) {
	t.Parallel()
	next := time.Duration(0)
	for i := range 40 * PerDoubling {
		first, last := Bounds(i)
		if first != next || Bucket(first) != i || Bucket(last) != i || Bucket(last+time.Microsecond-1) != i {
			t.Fatalf("bucket %d: %v to %v, which are in buckets %d and %d; the one before ends at %v", i, first, last, Bucket(first), Bucket(last), next)
		}
		if width := last - first; width*PerDoubling > first {
			t.Errorf("bucket %d: %v to %v is wider than 1/%d", i, first, last, PerDoubling)
		}
		next = last + time.Microsecond
	}
	if i := Bucket(-time.Second); i != 0 {
		t.Errorf("a negative duration is in bucket %d", i)
	}
}
