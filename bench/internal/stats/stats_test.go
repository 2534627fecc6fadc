package stats_test

import (
	"testing"

	"flashsale/bench/internal/stats"
)

func TestMedianOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := stats.MedianOf(tc.in, func(f float64) float64 { return f }); got != tc.want {
			t.Errorf("median of %v = %v, want %v", tc.in, got, tc.want)
		}
	}
}

func TestRatio_ByNothing(t *testing.T) {
	t.Parallel()
	if got := stats.Ratio(1, 0); got != 0 {
		t.Errorf("1/0 = %v, want 0", got)
	}
}
