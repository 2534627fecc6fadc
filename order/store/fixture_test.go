package store

import (
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// newStore returns a store on the test's own migrated database: see [ordertest.NewDatabase].
func newStore(t testing.TB) *Store {
	t.Helper()
	return openStore(t, ordertest.NewDatabase(t))
}

func openStore(t testing.TB, setting string, options ...Option) *Store {
	t.Helper()
	s, err := Open(await.Context(t), setting, options...)
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
