package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"flashsale/internal/testing/await"
)

// TestStore_Checkpoint: the log is copied into the database's file beside the commits, and
// begins at its start again.
func TestStore_Checkpoint(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.log.pages = 100 // before the writer reads it
	mustInsert(t, s, newItem("item", 1_000_000, 1))
	var longest int64
	for n := range 100 {
		mustCommit(t, s, distinct(fmt.Sprintf("b%d-", n), "item", 50)...)
		await.True(t, "the checkpoint to end", func() bool { return !s.log.copying.Load() })
		longest = max(longest, logSize(t, s))
	}
	if longest > 2<<20 {
		t.Errorf("the log is %d KB long, want it to begin at its start every 400 KB", longest>>10)
	}
	s.log.running.Wait()
	if left, err := checkpointed(await.Context(t), s.write, "NOOP"); err != nil || left > 2*s.log.pages {
		t.Errorf("%d pages are not copied, %v", left, err)
	}
}

// TestStore_LogBound: reads that overlap without a pause do not let the log grow with
// what is written.
func TestStore_LogBound(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.log.high, s.log.step, s.log.patience = 256<<10, 64<<10, 0 // before the writer reads them
	mustInsert(t, s, newItem("item", 1_000_000, 1))
	if err := s.write.Exec("PRAGMA wal_autocheckpoint = 50").Error; err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(await.Context(t))
	done := make(chan error, 1)
	go func() { done <- readWithoutPause(ctx, s) }()
	var written, longest int64
	for n := range 60 {
		before := logSize(t, s)
		mustCommit(t, s, distinct(fmt.Sprintf("b%d-", n), "item", 200)...)
		after := logSize(t, s)
		if after > before {
			written += after - before
		}
		longest = max(longest, after)
	}
	stop()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// A busy machine may miss a few moments, never most of them.
	if longest > 6<<20 {
		t.Errorf("the log was %d KB long after at least %d KB were written", longest>>10, written>>10)
	}
}

// TestStore_LogBound_LongRead: a read that lasts makes few commits wait, not all of them.
func TestStore_LogBound_LongRead(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.log.high, s.log.step, s.log.patience = 64<<10, 1, 1_000_000 // before the writer reads them
	mustInsert(t, s, newItem("item", 1_000_000, 1))
	db, err := s.loads.DB()
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(await.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRowContext(await.Context(t), "SELECT COUNT(*) FROM items").Scan(&n); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		mustCommit(t, s, distinct(fmt.Sprintf("b%d-", n), "item", 20)...)
	}
	mustCommit(t, s, bought("last", "item", "last", "k", 1)) // what follows the others is over
	if tried, size := s.log.tried.Load(), logSize(t, s); tried > size/2 {
		t.Errorf("the last try was at %d of %d bytes: commits go on waiting for the same read", tried, size)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}

func logSize(t *testing.T, s *Store) int64 {
	t.Helper()
	info, err := os.Stat(s.file + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// readWithoutPause keeps a read open until ctx ends: each begins before the one before it
// ends.
func readWithoutPause(ctx context.Context, s *Store) (err error) {
	db, err := s.read.DB()
	if err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last *sql.Tx
	defer func() {
		if last != nil {
			if rerr := last.Rollback(); !errors.Is(rerr, sql.ErrTxDone) {
				err = errors.Join(err, rerr)
			}
		}
	}()
	for {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM items").Scan(&n); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if last != nil {
			if err := last.Rollback(); err != nil {
				return errors.Join(err, tx.Rollback())
			}
		}
		last = tx
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
