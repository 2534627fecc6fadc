package store

import (
	"path/filepath"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// newStore returns a store on the test's own migrated database file.
func newStore(t testing.TB) *Store {
	t.Helper()
	return newStoreAt(t, filepath.Join(t.TempDir(), "shop.db"))
}

// newStoreAt returns a store on a migrated database at path.
func newStoreAt(t testing.TB, path string) *Store {
	t.Helper()
	ordertest.NewFile(t, path)
	s, err := Open(await.Context(t), "sqlite:"+path)
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

func mustInsert(t testing.TB, s *Store, n order.NewItem) {
	t.Helper()
	if _, err := s.InsertItem(await.Context(t), n); err != nil {
		t.Fatal(err)
	}
}

func mustCommit(t testing.TB, s *Store, tasks ...order.Task) []order.Outcome {
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
