package database

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
)

// TestDB_Checkpoint: the log is copied into the database's file concurrently with the
// commits, and restarts.
func TestDB_Checkpoint(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	db.wal.startPages = 100 // before the writer reads it
	var longest int64
	for n := range 100 {
		mustNote(t, db, fmt.Sprintf("b%d-", n), 50)
		await.True(t, "the checkpoint to end", func() bool { return !db.wal.copying.Load() })
		longest = max(longest, logSize(t, db))
	}
	if longest > 2<<20 {
		t.Errorf("the log is %d KB long, want it to restart every 400 KB", longest>>10)
	}
	db.wal.running.Wait()
	if left, err := checkpointed(await.Context(t), db.write, "NOOP"); err != nil || left > 2*db.wal.startPages {
		t.Errorf("%d pages are not copied, %v", left, err)
	}
}

// TestDB_Checkpoint_ReadMeanwhile: a read that prevents the rest of a checkpoint from
// being copied delays it only until the commit after the read.
func TestDB_Checkpoint_ReadMeanwhile(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	db.wal.startPages = 50 // before the writer reads it
	n := 0
	// The second commit returns after the check of the log that follows the first.
	commit := func() {
		n++
		mustNote(t, db, fmt.Sprintf("b%d-", n), 50)
		mustNote(t, db, fmt.Sprint("last", n), 1)
		await.True(t, "the checkpoint to end", func() bool { return !db.wal.copying.Load() })
	}
	pool, err := db.load.DB()
	if err != nil {
		t.Fatal(err)
	}
	var tx *sql.Tx
	for tx == nil {
		for db.wal.restTries.Load() == 0 {
			commit()
		}
		if tx, err = pool.BeginTx(await.Context(t), nil); err != nil {
			t.Fatal(err)
		}
		var items int
		if err := tx.QueryRowContext(await.Context(t), "SELECT COUNT(*) FROM notes").Scan(&items); err != nil {
			t.Fatal(err)
		}
		commit()
		if db.wal.restTries.Load() > 0 {
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
	if db.wal.restTries.Load() > 0 {
		t.Error("the rest is not copied after the read")
	}
	if left, err := checkpointed(await.Context(t), db.write, "NOOP"); err != nil || left >= db.wal.startPages {
		t.Errorf("%d pages are not copied, %v", left, err)
	}
}

// TestDB_EmptyLog_BesideCheckpoint: the log contains no erased data, even if
// the erasure's own commit has started a checkpoint, or another process makes one.
func TestDB_EmptyLog_BesideCheckpoint(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	db.wal.startPages = 1 << 40 // before the writer reads it
	ctx := await.Context(t)
	for n := range 10 {
		name := fmt.Sprintf("alice-%d-of-wonderland", n)
		mustNote(t, db, name, 1)
		for m := range 10 {
			mustNote(t, db, fmt.Sprintf("b%d-%d-", n, m), 200)
		}
		if _, err := db.Do(ctx, &Write{Batch: true, Run: func(context.Context, *Tx) error {
			db.wal.startPages = 1 // the erasure's commit starts a checkpoint; set on the writer's goroutine
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
		err := change(ctx, db, func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE notes SET id = ?1 WHERE id = ?2", fmt.Sprint("pseudonym", n), name+"0000")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.EmptyWAL(ctx); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(db.Path() + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte(name)) {
			t.Errorf("erasure %d: the name is in the log of %d KB", n, len(text)>>10)
		}
	}
}

// TestDB_SQLiteVersion: checkpoints beside the writer need a version that has NOOP, and
// in which the writer may restart the log during one.
func TestDB_SQLiteVersion(t *testing.T) {
	t.Parallel()
	if _, number, _ := sqlite3.Version(); number < 3_051_003 {
		t.Errorf("SQLite %d, want 3.51.3 or later", number)
	}
}

// TestDB_LogBound: reads that overlap without a gap do not make the log grow with every
// write.
func TestDB_LogBound(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	db.wal.high, db.wal.step, db.wal.patience = 256<<10, 64<<10, 0 // before the writer reads them
	if err := db.Writer().Exec("PRAGMA wal_autocheckpoint = 50").Error; err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(await.Context(t))
	done := make(chan error, 1)
	go func() { done <- readWithoutPause(ctx, db) }()
	var written, longest int64
	for n := range 60 {
		before := logSize(t, db)
		mustNote(t, db, fmt.Sprintf("b%d-", n), 200)
		after := logSize(t, db)
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

// TestDB_LogBound_LongRead: a long read delays few commits, not all of them.
func TestDB_LogBound_LongRead(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	db.wal.high, db.wal.step, db.wal.patience = 64<<10, 1, 1_000_000 // before the writer reads them
	pool, err := db.load.DB()
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.BeginTx(await.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRowContext(await.Context(t), "SELECT COUNT(*) FROM notes").Scan(&n); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		mustNote(t, db, fmt.Sprintf("b%d-", n), 20)
	}
	mustNote(t, db, "last", 1) // the work after the other commits is finished
	if tried, size := db.wal.triedSize.Load(), logSize(t, db); tried > size/2 {
		t.Errorf("the last attempt was at %d of %d bytes: commits repeatedly wait for the same read", tried, size)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}

func logSize(t *testing.T, db *DB) int64 {
	t.Helper()
	info, err := os.Stat(db.Path() + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// readWithoutPause keeps a read open until ctx ends: each begins before the previous one
// ends.
func readWithoutPause(ctx context.Context, db *DB) (err error) {
	pool, err := db.Reader().DB()
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
		tx, err := pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM notes").Scan(&n); err != nil {
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
