// Package storetest opens stores for the tests of other packages.
package storetest

import (
	"path/filepath"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
)

// New returns a store on the test's own migrated database file.
func New(t testing.TB) *store.Store {
	t.Helper()
	return NewAt(t, filepath.Join(t.TempDir(), "shop.db"))
}

// NewAt returns a store on a migrated database at path.
func NewAt(t testing.TB, path string) *store.Store {
	t.Helper()
	ordertest.NewFile(t, path)
	s, err := store.Open(await.Context(t), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return s
}

// MustInsert creates an item.
func MustInsert(t testing.TB, s *store.Store, n order.NewItem) {
	t.Helper()
	if _, err := s.InsertItem(await.Context(t), n); err != nil {
		t.Fatal(err)
	}
}

// SetClock stops the store's clock at the present time.
func SetClock(s *store.Store) *ordertest.Clock {
	c := ordertest.NewClock()
	store.WithClock(c)(s)
	return c
}

// MustCommit commits tasks as one batch.
func MustCommit(t testing.TB, s *store.Store, tasks ...order.Task) []order.Outcome {
	t.Helper()
	out, err := s.Commit(await.Context(t), tasks)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != len(tasks) {
		t.Fatalf("%d outcomes for %d tasks", len(out), len(tasks))
	}
	return out
}
