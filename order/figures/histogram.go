package figures

import (
	"math"
	"sync/atomic"
	"time"

	"flashsale/internal/loglinear"
)

const (
	// longest is the longest time that has a bucket of its own; longer ones count in the last.
	longest = 1 << 27 * time.Microsecond // 134 s
	// bucketCount covers 0 to longest.
	bucketCount = 24 * loglinear.PerDoubling
)

// buckets are the number of observed times, by bucket.
type buckets [bucketCount]int64

// histogram counts times. Differences of two histograms, and sums over processes, are
// histograms again, so percentiles of a whole deployment are exact to the width of a bucket.
type histogram [bucketCount]atomic.Int64

func (h *histogram) observe(d time.Duration) { h[bucketOf(d)].Add(1) }

// read returns the counts.
func (h *histogram) read() (b buckets) {
	for i := range h {
		b[i] = h[i].Load()
	}
	return b
}

// bucketOf returns the bucket of a time.
func bucketOf(d time.Duration) int { return loglinear.Bucket(min(d, longest-1)) }

// add adds the counts of others.
func (b *buckets) add(other *buckets) {
	for i, n := range other {
		b[i] += n
	}
}

// since returns the counts since an earlier state.
func (b *buckets) since(before *buckets) (d buckets) {
	for i, n := range b {
		d[i] = n - before[i]
	}
	return d
}

func (b *buckets) total() (n int64) {
	for _, c := range b {
		n += c
	}
	return n
}

// quantile returns an upper bound of the time that a share p of the observations did not
// exceed; 1 for the longest. It is at most 1/16 too high. 0 without observations.
func (b *buckets) quantile(p float64) time.Duration {
	total := b.total()
	rank := max(1, int64(math.Ceil(p*float64(total))))
	for i, n := range b {
		if rank -= n; n > 0 && rank <= 0 {
			_, last := loglinear.Bounds(i)
			return last
		}
	}
	return 0
}

// sparse returns the non-zero counts as pairs of bucket and count.
func (b *buckets) sparse() (pairs []int64) {
	for i, n := range b {
		if n != 0 {
			pairs = append(pairs, int64(i), n)
		}
	}
	return pairs
}

// bucketsOf reverses sparse. It skips buckets that this version does not have.
func bucketsOf(pairs []int64) (b buckets) {
	for ; len(pairs) > 1; pairs = pairs[2:] {
		if i := pairs[0]; i >= 0 && i < bucketCount {
			b[i] = pairs[1]
		}
	}
	return b
}
