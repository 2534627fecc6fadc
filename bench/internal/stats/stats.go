// Package stats reduces the results of a benchmark's rounds to single figures.
package stats

import (
	"slices"
	"time"
)

// MedianOf is the median over the rounds of what pick returns; 0 without rounds.
func MedianOf[T any](rounds []T, pick func(T) float64) float64 {
	v := make([]float64, 0, len(rounds))
	for _, r := range rounds {
		v = append(v, pick(r))
	}
	slices.Sort(v)
	switch n := len(v); {
	case n == 0:
		return 0
	case n%2 == 1:
		return v[n/2]
	default:
		return (v[n/2-1] + v[n/2]) / 2
	}
}

// Ratio is a/b, and 0 if b is 0.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Per is d divided by n, in microseconds.
func Per(d time.Duration, n int) float64 { return Ratio(Micros(d), float64(n)) }

// Micros is d in microseconds.
func Micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
