// Package storetest opens stores for the tests of other packages.
package storetest

import (
	"sync/atomic"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
)

// New returns a store on the test's own migrated database: see [ordertest.NewDatabase].
func New(t testing.TB) *store.Store {
	t.Helper()
	return open(t, ordertest.NewDatabase(t))
}

// NewAt returns a store on a migrated database of SQLite at path.
func NewAt(t testing.TB, path string) *store.Store {
	t.Helper()
	ordertest.NewFile(t, path)
	return open(t, "sqlite:"+path)
}

func open(t testing.TB, setting string) *store.Store {
	t.Helper()
	s, err := store.Open(await.Context(t), setting)
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

// HoldClock stops the store's clock at the present time until release is called. Meanwhile no
// order expires, however slow the machine is.
func HoldClock(s *store.Store) (release func()) {
	held := time.Now()
	var runs atomic.Bool
	store.WithClock(ordertest.ClockFunc(func() time.Time {
		if runs.Load() {
			return time.Now()
		}
		return held
	}))(s)
	return func() { runs.Store(true) }
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
