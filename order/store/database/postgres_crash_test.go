package database

import (
	"database/sql"
	"errors"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
)

// TestCommitted_NumberReused: a server that has crashed gives the number of a transaction that
// left no trace in its log to another one. Its outcome is not that of the first.
func TestCommitted_NumberReused(t *testing.T) {
	t.Parallel()
	if !postgrestest.Chosen(t) {
		t.Skip("skipped: tests transactions of Postgres")
	}
	ctx := await.Context(t)
	// Nothing writes the log before a commit does.
	server := postgrestest.Start(t, postgrestest.Options{Settings: []string{"wal_writer_delay=10s", "autovacuum=off"}})
	db := openDB(t, server.NewDatabase(t))
	pool, err := db.write.DB()
	if err != nil {
		t.Fatal(err)
	}
	tx, first, err := beginLocked(ctx, pool, true, func(*pgx.Batch) {})
	if err != nil {
		t.Fatal(err)
	}
	server.Kill(t)
	lost := tx.Commit()
	if lost == nil {
		t.Fatal("a killed server has committed")
	}
	server.Restart(t)
	if err := committed(db, first, lost); !errors.Is(err, errOtherLife) {
		t.Errorf("committed, before the number is used again: %v, want errOtherLife", err)
	}
	burn(t, pool, first.xid)
	status, _, err := transactionStatus(ctx, db, first.xid)
	if err != nil || status != "committed" {
		t.Fatalf("the number %s was not used again: %q, %v", first.xid, status, err)
	}
	if err := committed(db, first, lost); !errors.Is(err, errOtherLife) {
		t.Errorf("committed: %v, want errOtherLife", err)
	}
}

// TestTransactionStatus_SessionKilled: the server also crashes when one of its sessions is killed,
// without a restart of its first process.
func TestTransactionStatus_SessionKilled(t *testing.T) {
	t.Parallel()
	if !postgrestest.Chosen(t) {
		t.Skip("skipped: tests transactions of Postgres")
	}
	ctx := await.Context(t)
	db := openDB(t, postgrestest.Start(t, postgrestest.Options{}).NewDatabase(t))
	_, before, err := transactionStatus(ctx, db, "3")
	if err != nil {
		t.Fatal(err)
	}
	if _, again, err := transactionStatus(ctx, db, "3"); err != nil || again != before {
		t.Fatalf("the life of the server was %q and is %q, %v", before, again, err)
	}
	pool, err := db.write.DB()
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := pool.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// It may answer in its old life until its first process has noticed.
	await.True(t, "the server answers in another life", func() bool {
		_, after, err := transactionStatus(ctx, db, "3")
		return err == nil && after != before
	})
}

// burn commits transactions until one of them has the number.
func burn(t *testing.T, db *sql.DB, number string) {
	t.Helper()
	want, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for got := int64(0); got < want; {
		if err := db.QueryRowContext(await.Context(t), "SELECT CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT)").Scan(&got); err != nil {
			t.Fatal(err)
		}
	}
}
