package hashtag_test

import (
	"testing"

	"flashsale/internal/hashtag"
)

// TestSlot compares slots with those that CLUSTER KEYSLOT returns.
func TestSlot(t *testing.T) {
	for tag, want := range map[string]int{"p0": 15882, "p1": 11819, "123456789": 0x31c3, "foo": 12182} {
		if got := hashtag.Slot(tag); got != want {
			t.Errorf("slot of %q: %d, want %d", tag, got, want)
		}
	}
}

// TestOf: every partition has a tag of its own, and the masters of a cluster have equal numbers of
// partitions where these can be divided equally.
func TestOf(t *testing.T) {
	for _, partitions := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 24, 32, 48, 60, 64, 1000, 1024} {
		seen := make(map[string]bool)
		for p := range partitions {
			seen[hashtag.Of(p, partitions)] = true
		}
		if len(seen) != partitions || !seen["p0"] {
			t.Errorf("%d partitions have %d tags, with p0: %t", partitions, len(seen), seen["p0"])
		}
		for masters := 1; masters <= 12; masters++ {
			of := shares(0, partitions, partitions, masters)
			allowed := 3
			if partitions <= 64 {
				allowed = 0
			}
			if partitions%masters == 0 && of.most-of.least > allowed {
				t.Errorf("%d partitions on %d masters: %+v", partitions, masters, of)
			}
		}
	}
}

// TestOf_Run: consecutive partitions, such as those of an item's buckets, are spread too.
func TestOf_Run(t *testing.T) {
	for _, partitions := range []int{24, 60, 64, 256} {
		for start := range partitions {
			for _, masters := range []int{2, 3, 4} {
				if of := shares(start, 12, partitions, masters); of.most > 12/masters+2 {
					t.Fatalf("12 partitions from %d of %d on %d masters: %+v", start, partitions, masters, of)
				}
			}
		}
	}
}

type share struct{ least, most int }

// shares returns how many of n partitions from start the masters have, each of which serves an
// equal range of slots.
func shares(start, n, partitions, masters int) share {
	counts := make([]int, masters)
	for i := range n {
		slot := hashtag.Slot(hashtag.Of((start+i)%partitions, partitions))
		counts[slot*masters/hashtag.Slots]++
	}
	of := share{n, 0}
	for _, c := range counts {
		of = share{min(of.least, c), max(of.most, c)}
	}
	return of
}
