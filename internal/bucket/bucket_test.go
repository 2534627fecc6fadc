package bucket

import (
	"fmt"
	"slices"
	"testing"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	if got := IDs("drop", 3); !slices.Equal(got, []string{"drop", "drop.1", "drop.2"}) {
		t.Errorf("IDs = %v", got)
	}
	for _, n := range []int{0, 1} {
		if got := IDs("drop", n); !slices.Equal(got, []string{"drop"}) {
			t.Errorf("IDs of %d buckets = %v", n, got)
		}
	}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]struct {
		item string
		n    int
	}{
		"drop": {"drop", 0}, "drop.1": {"drop", 1}, "drop.63": {"drop", 63}, "": {"", 0},
		"drop.0": {"drop.0", 0}, "drop.x": {"drop.x", 0}, "drop.-1": {"drop.-1", 0}, // not made by ID
	} {
		if item, n := Split(id); item != want.item || n != want.n {
			t.Errorf("Split(%q) = %q, %d; want %q, %d", id, item, n, want.item, want.n)
		}
		if got := Item(id); got != want.item {
			t.Errorf("Item(%q) = %q", id, got)
		}
	}
}

// TestHome: a buyer always has the same bucket, and the buyers are spread evenly.
func TestHome(t *testing.T) {
	t.Parallel()
	const buyers, buckets = 8000, 8
	count := make(map[string]int)
	for i := range buyers {
		buyer := fmt.Sprintf("buyer-%d", i)
		home := Home("drop", buyer, buckets)
		if again := Home("drop", buyer, buckets); again != home {
			t.Fatalf("buyer %s has the buckets %s and %s", buyer, home, again)
		}
		count[home]++
	}
	for _, id := range IDs("drop", buckets) {
		if n := count[id]; n < 900 || n > 1100 {
			t.Errorf("bucket %s has %d of %d buyers", id, n, buyers)
		}
	}
	for _, n := range []int{0, 1} {
		if got := Home("drop", "alice", n); got != "drop" {
			t.Errorf("Home of %d buckets = %s", n, got)
		}
	}
}

func TestSum(t *testing.T) {
	t.Parallel()
	if got := Sum([]int64{1, 0, 2}); got != 3 {
		t.Errorf("Sum = %d", got)
	}
	if got := Sum([]int64{1, -1, 2}); got != -1 {
		t.Errorf("Sum with an unknown part = %d", got)
	}
}
