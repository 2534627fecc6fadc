package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"
)

// TestShop_Phase: orders are committed by one process and paid by the same or by another.
func TestShop_Phase(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		s, err := openShop(t.Context(), filepath.Join(t.TempDir(), "bench.db"), processes)
		if err != nil {
			t.Fatal(err)
		}
		for _, payers := range []int{0, 4} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			seen, err := s.phase(ctx, payers)
			cancel()
			if err != nil || seen.orders == 0 || (seen.payments > 0) != (payers > 0) {
				t.Errorf("%d processes, %d payers: %+v, %v", processes, payers, seen, err)
			}
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}
