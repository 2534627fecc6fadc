package store

import (
	"database/sql"
	"errors"
	"strconv"
	"syscall"
	"testing"

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
	s := openStore(t, server.NewDatabase(t))
	db, err := s.writeDB.DB()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT); CREATE TABLE webhook_endpoints (events TEXT, enabled INT)"); err != nil {
		t.Fatal(err)
	}
	tx, open, err := beginLocked(ctx, db, true)
	if err != nil {
		t.Fatal(err)
	}
	first := open.txID
	server.Kill(t)
	lost := tx.Commit()
	if lost == nil {
		t.Fatal("a killed server has committed")
	}
	server.Restart(t)
	if err := committed(s, first, lost); !errors.Is(err, errOtherLife) {
		t.Errorf("committed, before the number is used again: %v, want errOtherLife", err)
	}
	burn(t, db, first.xid)
	status, _, err := transactionStatus(ctx, s, first.xid)
	if err != nil || status != "committed" {
		t.Fatalf("the number %s was not used again: %q, %v", first.xid, status, err)
	}
	if err := committed(s, first, lost); !errors.Is(err, errOtherLife) {
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
	s := openStore(t, postgrestest.Start(t, postgrestest.Options{}).NewDatabase(t))
	_, before, err := transactionStatus(ctx, s, "3")
	if err != nil {
		t.Fatal(err)
	}
	if _, again, err := transactionStatus(ctx, s, "3"); err != nil || again != before {
		t.Fatalf("the life of the server was %q and is %q, %v", before, again, err)
	}
	db, err := s.writeDB.DB()
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := db.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// It may answer in its old life until its first process has noticed.
	await.True(t, "the server answers in another life", func() bool {
		_, after, err := transactionStatus(ctx, s, "3")
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
