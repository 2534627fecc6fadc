package figures

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"flashsale/internal/loglinear"
)

// Times without a bucket of their own are in the first or the last.
func TestHistogram_Ends(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-time.Second, longest, time.Hour} {
		if i := bucketOf(d); i != 0 && i != bucketCount-1 {
			t.Errorf("%v is in bucket %d", d, i)
		}
	}
}

// The percentiles of the sum of several processes' histograms are those of all times together,
// whatever way the times are spread over the processes.
func TestHistogram_PercentilesOfSums(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.Int64Range(0, 20_000_000), 1, 200).Draw(t, "times")
		processes := rapid.IntRange(1, 4).Draw(t, "processes")
		parts := make([]histogram, processes)
		for _, us := range times {
			parts[rapid.IntRange(0, processes-1).Draw(t, "process")].observe(time.Duration(us) * time.Microsecond)
		}
		var sum buckets
		for i := range parts {
			b := parts[i].read()
			sent := bucketsOf(b.sparse()) // as it is published
			sum.add(&sent)
		}
		slices.Sort(times)
		for _, p := range []float64{0.5, 0.9, 0.99, 1} {
			rank := int(p*float64(len(times))+0.9999999) - 1
			exact := time.Duration(times[max(0, rank)]) * time.Microsecond
			if got := sum.quantile(p); got < exact || got-exact > exact/loglinear.PerDoubling {
				t.Fatalf("percentile %v is %v, want %v", p, got, exact)
			}
		}
	})
	var none buckets
	if got := none.quantile(0.5); got != 0 {
		t.Errorf("without observations: %v", got)
	}
	if got := bucketsOf([]int64{-1, 5, bucketCount, 5, 3}); got.total() != 0 {
		t.Errorf("buckets of another version: %v", got.total())
	}
}
