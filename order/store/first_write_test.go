package store

import (
	"errors"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// TestCompareServer: a standby that lacks the last commits takes over while this process is
// running. The first write on it commits only the mark of the item that is behind; afterwards the
// sale is stopped, and other items are sold.
func TestCompareServer(t *testing.T) {
	t.Parallel()
	if !postgrestest.Chosen(t) {
		t.Skip("skipped: tests servers of Postgres")
	}
	server := postgrestest.Start(t, postgrestest.Options{})
	s := openStore(t, ordertest.NewPostgresOn(t, server))
	rdb := redistest.Redis(t)
	ctx := await.Context(t)
	mustInsert(t, s, ordertest.NewItem("behind", 100, 5))
	mustInsert(t, s, ordertest.NewItem("equal", 100, 5))
	h, err := NewHighWater(ctx, HighWaterConfig{Store: s, Redis: rdb, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, ordertest.Bought("o1", "behind", "u", "k", 1), ordertest.Bought("o2", "equal", "u", "k", 1))
	h.Note(ctx)
	lost := ordertest.ItemOf(t, s, "behind").Revision + 3
	pipe := rdb.Pipeline()
	inventory.NoteRevisions(ctx, pipe, 1, h.Lineage, map[string]int64{"behind": lost})
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, ordertest.Bought("o3", "equal", "u", "k2", 1)) // the same server as before

	server.Kill(t)
	server.Restart(t)
	var refused error
	await.True(t, "a write on the other server", func() bool {
		_, refused = s.Commit(ctx, []order.Task{ordertest.Bought("o4", "behind", "u", "k3", 1)})
		return refused == nil || errors.Is(refused, ErrServerChanged)
	})
	if !errors.Is(refused, ErrServerChanged) {
		t.Errorf("the first write: %v, want ErrServerChanged", refused)
	}
	var rows map[string]revisionRow
	await.True(t, "a read on the other server", func() bool {
		rows, err = s.revisions(ctx, []string{"behind"})
		return err == nil
	})
	if sold := ordertest.ItemOf(t, s, "behind").Sold; rows["behind"].Behind != lost || sold != 1 {
		t.Errorf("the item has the mark %d and sold %d, want %d and 1", rows["behind"].Behind, sold, lost)
	}
	if !h.IsStopped("behind") || h.IsStopped("equal") || h.StoppedList() != `["behind"]` {
		t.Errorf("stopped: %s", h.StoppedList())
	}
	// A further server takes over before the check of all items. One bucket of an item is behind.
	divided := ordertest.NewItem("also", 100, 5)
	divided.Buckets = 2
	mustInsert(t, s, divided)
	pipe = rdb.Pipeline()
	inventory.NoteRevisions(ctx, pipe, 1, h.Lineage, map[string]int64{"also.1": 9})
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	s.comparedLife.Store(nil)
	if _, err := s.Commit(ctx, []order.Task{ordertest.Bought("o6", "equal", "u", "k5", 1)}); !errors.Is(err, ErrServerChanged) {
		t.Errorf("the first write on a third server: %v, want ErrServerChanged", err)
	}
	if !h.IsStopped("behind") || !h.IsStopped("also") || !h.IsStopped("also.1") || h.IsStopped("equal") {
		t.Errorf("stopped on a third server: %s", h.StoppedList())
	}
	if err := h.Check(ctx); err != nil || len(h.Stopped()) != 3 || h.urgent.Load() != nil {
		t.Errorf("the check of all items: %v, stopped %v", err, h.Stopped())
	}
	mustCommit(t, s, ordertest.Bought("o5", "equal", "u", "k4", 1))
}

// TestCompareServer_ErrMark: the mark of an item that is behind cannot be written. A check of all
// items follows, without which the item would stay stopped in this process after it was recovered:
// another process may write the mark, and then no comparison finds the item again.
func TestCompareServer_ErrMark(t *testing.T) {
	t.Parallel()
	if !postgrestest.Chosen(t) {
		t.Skip("skipped: tests servers of Postgres")
	}
	s := newStore(t)
	rdb := redistest.Redis(t)
	ctx := await.Context(t)
	mustInsert(t, s, ordertest.NewItem("behind", 100, 5))
	h, err := NewHighWater(ctx, HighWaterConfig{Store: s, Redis: rdb, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	pipe := rdb.Pipeline()
	inventory.NoteRevisions(ctx, pipe, 1, h.Lineage, map[string]int64{"behind": 9})
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	ordertest.Refuse(t, s, "UPDATE", "items", "NEW.behind > 0")
	if _, err := s.Commit(ctx, []order.Task{ordertest.Bought("o1", "behind", "u", "k", 1)}); !errors.Is(err, ErrServerChanged) {
		t.Fatalf("the first write: %v, want ErrServerChanged", err)
	}
	if !h.IsStopped("behind") || len(h.nudged) != 1 {
		t.Errorf("stopped: %s, and %d checks of all items follow, want 1", h.StoppedList(), len(h.nudged))
	}
}

// TestCompareServer_MarkedByAnother: the first write of a second process is refused, too, and this
// process then stops the items that the first process has marked.
func TestCompareServer_MarkedByAnother(t *testing.T) {
	t.Parallel()
	if !postgrestest.Chosen(t) {
		t.Skip("skipped: tests servers of Postgres")
	}
	first := newStore(t)
	second := openStore(t, ordertest.SettingOf(first))
	rdb := redistest.Redis(t)
	ctx := await.Context(t)
	n := ordertest.NewItem("behind", 100, 5)
	n.Buckets = 2
	mustInsert(t, first, n)
	for _, s := range []*Store{first, second} {
		h, err := NewHighWater(ctx, HighWaterConfig{Store: s, Redis: rdb, Partitions: 1})
		if err != nil {
			t.Fatal(err)
		}
		pipe := rdb.Pipeline()
		inventory.NoteRevisions(ctx, pipe, 1, h.Lineage, map[string]int64{"behind": 9})
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(ctx, []order.Task{ordertest.Bought("o1", "behind.1", "u", "k", 1)}); !errors.Is(err, ErrServerChanged) {
			t.Errorf("the first write: %v, want ErrServerChanged", err)
		}
		if !h.IsStopped("behind") || !h.IsStopped("behind.1") {
			t.Errorf("stopped: %s, want both buckets", h.StoppedList())
		}
	}
}
