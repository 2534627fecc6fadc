package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestBucketOptions(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-buckets -1":             "-buckets of 0 or more",
		"-buckets-crowd -1":       "-buckets-crowd of 0, or from 5",
		"-buckets-crowd 4":        "-buckets-crowd of 0, or from 5",
		"-buckets-crowd 10000000": "to 1000000",
	} {
		err := run(t.Context(), strings.Fields(args), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that names %q", args, err, want)
		}
	}
}

func TestPrintBuckets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	printBuckets(&out, []bucketFigures{
		{rate: []float64{1000, 2000, 3000}, masters: [][]float64{{10, 12, 14}, {1, 1, 1}, {0, 0, 0}}},
		{rate: []float64{950, 1900, 1500}, masters: [][]float64{{5, 4.8, 8.4}, {3, 3, 3}, {2, 2, 2}}},
	})
	// The ratios are 0.5, 0.4, 0.6 and 0.95, 0.95, 0.5.
	for _, want := range []string{"BAR buckets_busiest_master 0.500 0.50 met\n", "BAR buckets_rate 0.950 0.90 met\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%swithout %q", out.String(), want)
		}
	}
}
