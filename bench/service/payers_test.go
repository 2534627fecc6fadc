package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"flashsale/internal/testing/postgresserver"
)

// TestShop_Phase: orders are committed by one process and paid by the same or by another.
func TestShop_Phase(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		checkPhases(t, &shop{}, "sqlite:"+filepath.Join(t.TempDir(), "bench.db"), processes)
	}
}

func TestShop_Phase_Postgres(t *testing.T) {
	t.Parallel()
	if err := postgresserver.Missing(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("skipped: %v", err)
	}
	server, err := postgresserver.Start(t.Context(), postgresserver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	checkPhases(t, &shop{server: server}, server.URL(postgresserver.Superuser), 2)
}

func checkPhases(t *testing.T, s *shop, url string, processes int) {
	t.Helper()
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.open(t.Context(), url, processes); err != nil {
		t.Fatal(err)
	}
	phase := func(took time.Duration, payers int) error {
		ctx, cancel := context.WithTimeout(t.Context(), took)
		defer cancel()
		seen, err := s.phase(ctx, payers)
		if err == nil && (seen.orders == 0 || (seen.payments > 0) != (payers > 0)) {
			err = fmt.Errorf("%d processes, %d payers: %+v", processes, payers, seen)
		}
		return err
	}
	// A busy machine may commit nothing in a short phase, and the payers need the orders of the one before.
	var err error
	for took := 50 * time.Millisecond; took < 2*payersPhase; took *= 2 {
		if err = errors.Join(phase(took, 0), phase(took, 4)); err == nil {
			return
		}
	}
	t.Error(err)
}
