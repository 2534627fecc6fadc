package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
)

// TestStore_Checkpoint: the log is copied into the database's file concurrently with the
// commits, and restarts.
func TestStore_Checkpoint(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := newStore(t)
	s.wal.startPages = 100 // before the writer reads it
	mustInsert(t, s, ordertest.NewItem("item", 1_000_000, 1))
	var longest int64
	for n := range 100 {
		mustCommit(t, s, ordertest.Distinct(fmt.Sprintf("b%d-", n), "item", 50)...)
		await.True(t, "the checkpoint to end", func() bool { return !s.wal.copying.Load() })
		longest = max(longest, logSize(t, s))
	}
	if longest > 2<<20 {
		t.Errorf("the log is %d KB long, want it to restart every 400 KB", longest>>10)
	}
	s.wal.running.Wait()
	if left, err := checkpointed(await.Context(t), s.writeDB, "NOOP"); err != nil || left > 2*s.wal.startPages {
		t.Errorf("%d pages are not copied, %v", left, err)
	}
}

// TestStore_Checkpoint_ReadMeanwhile: a read that prevents the rest of a checkpoint from
// being copied delays it only until the commit after the read.
func TestStore_Checkpoint_ReadMeanwhile(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := newStore(t)
	s.wal.startPages = 50 // before the writer reads it
	mustInsert(t, s, ordertest.NewItem("item", 1_000_000, 1))
	n := 0
	// The second commit returns after the check of the log that follows the first.
	commit := func() {
		n++
		mustCommit(t, s, ordertest.Distinct(fmt.Sprintf("b%d-", n), "item", 50)...)
		mustCommit(t, s, ordertest.Bought(fmt.Sprint("last", n), "item", fmt.Sprint("last", n), "k", 1))
		await.True(t, "the checkpoint to end", func() bool { return !s.wal.copying.Load() })
	}
	db, err := s.loadDB.DB()
	if err != nil {
		t.Fatal(err)
	}
	var tx *sql.Tx
	for tx == nil {
		for s.wal.restTries.Load() == 0 {
			commit()
		}
		if tx, err = db.BeginTx(await.Context(t), nil); err != nil {
			t.Fatal(err)
		}
		var items int
		if err := tx.QueryRowContext(await.Context(t), "SELECT COUNT(*) FROM items").Scan(&items); err != nil {
			t.Fatal(err)
		}
		commit()
		if s.wal.restTries.Load() > 0 {
			break
		}
		// The check after an earlier commit may have copied the rest just before the read began.
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		tx = nil
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	commit()
	if s.wal.restTries.Load() > 0 {
		t.Error("the rest is not copied after the read")
	}
	if left, err := checkpointed(await.Context(t), s.writeDB, "NOOP"); err != nil || left >= s.wal.startPages {
		t.Errorf("%d pages are not copied, %v", left, err)
	}
}

// TestStore_EmptyLog_BesideCheckpoint: the log contains no data of an erased buyer, even if
// the erasure's own commit has started a checkpoint, or another process makes one.
func TestStore_EmptyLog_BesideCheckpoint(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := newStore(t)
	s.wal.startPages = 1 << 40 // before the writer reads it
	mustInsert(t, s, ordertest.NewItem("item", 1_000_000, 1))
	ctx := await.Context(t)
	for n := range 10 {
		user := fmt.Sprintf("alice-%d-of-wonderland", n)
		mustCommit(t, s, ordertest.Bought(fmt.Sprint("first", n), "item", user, "k", 1))
		for m := range 10 {
			mustCommit(t, s, ordertest.Distinct(fmt.Sprintf("b%d-%d-", n, m), "item", 200)...)
		}
		if err := s.batchWriter.batch(ctx, false, nil, func(context.Context, *group) error {
			s.wal.startPages = 1 // the erasure's commit starts a checkpoint; set on the writer's goroutine
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		err := s.Change(ctx, "erase a name", func(ctx context.Context, c Conn, _ int64) error {
			for _, table := range []string{"orders", "buyers"} {
				if _, err := c.ExecContext(ctx, "UPDATE "+table+" SET user_id = ?1 WHERE user_id = ?2 AND item_id = 'item'", fmt.Sprint("pseudonym", n), user); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.EmptyWAL(ctx); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(s.Path() + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte(user)) {
			t.Errorf("erasure %d: the name is in the log of %d KB", n, len(text)>>10)
		}
	}
}

// TestStore_SQLiteVersion: checkpoints beside the writer need a version that has NOOP, and
// in which the writer may restart the log during one.
func TestStore_SQLiteVersion(t *testing.T) {
	t.Parallel()
	if _, number, _ := sqlite3.Version(); number < 3_051_003 {
		t.Errorf("SQLite %d, want 3.51.3 or later", number)
	}
}

// TestStore_LogBound: reads that overlap without a gap do not make the log grow with every
// write.
func TestStore_LogBound(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := newStore(t)
	s.wal.high, s.wal.step, s.wal.patience = 256<<10, 64<<10, 0 // before the writer reads them
	mustInsert(t, s, ordertest.NewItem("item", 1_000_000, 1))
	if err := s.Writer().Exec("PRAGMA wal_autocheckpoint = 50").Error; err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(await.Context(t))
	done := make(chan error, 1)
	go func() { done <- readWithoutPause(ctx, s) }()
	var written, longest int64
	for n := range 60 {
		before := logSize(t, s)
		mustCommit(t, s, ordertest.Distinct(fmt.Sprintf("b%d-", n), "item", 200)...)
		after := logSize(t, s)
		if after > before {
			written += after - before
		}
		longest = max(longest, after)
	}
	stop()
	// The end of ctx also ends the open transactions.
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, sql.ErrTxDone) {
		t.Error(err)
	}
	// A busy machine may miss a few such moments, but not most of them.
	if longest > 6<<20 {
		t.Errorf("the log was %d KB long after at least %d KB were written", longest>>10, written>>10)
	}
}

// TestStore_LogBound_LongRead: a long read delays few commits, not all of them.
func TestStore_LogBound_LongRead(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := newStore(t)
	s.wal.high, s.wal.step, s.wal.patience = 64<<10, 1, 1_000_000 // before the writer reads them
	mustInsert(t, s, ordertest.NewItem("item", 1_000_000, 1))
	db, err := s.loadDB.DB()
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
		mustCommit(t, s, ordertest.Distinct(fmt.Sprintf("b%d-", n), "item", 20)...)
	}
	mustCommit(t, s, ordertest.Bought("last", "item", "last", "k", 1)) // the work after the other commits is finished
	if tried, size := s.wal.triedSize.Load(), logSize(t, s); tried > size/2 {
		t.Errorf("the last attempt was at %d of %d bytes: commits repeatedly wait for the same read", tried, size)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}

func logSize(t *testing.T, s *Store) int64 {
	t.Helper()
	info, err := os.Stat(s.Path() + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// readWithoutPause keeps a read open until ctx ends: each begins before the previous one
// ends.
func readWithoutPause(ctx context.Context, s *Store) (err error) {
	db, err := s.Reader().DB()
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
