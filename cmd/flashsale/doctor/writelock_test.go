//go:build unix

package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order/store"
	"flashsale/order/store/postgres"
)

// migrated is a database with the present schema.
func migrated(t *testing.T, setting string) {
	t.Helper()
	db, err := store.Open(t.Context(), setting)
	if err != nil {
		t.Fatal(err)
	}
	m, err := backend.Migrator(db)
	if err == nil {
		_, err = m.Up(t.Context())
	}
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// holdEnv makes the test program hold the write lock of this database until its input ends.
const holdEnv = "FLASHSALE_TEST_HOLD"

// hold is the child process of TestDoctor_WriteLockHeld.
func hold(path string) error {
	db, err := sql.Open("sqlite3", "file:"+path+"?_txlock=immediate&_busy_timeout=10000")
	if err != nil {
		return err
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, "held"); err != nil {
		return err
	}
	_, err = os.Stdin.Read(make([]byte, 1))
	return errors.Join(tx.Rollback(), db.Close(), fmt.Errorf("the input ended: %w", err))
}

// A process that keeps the write lock of a SQLite file is named.
func TestDoctor_WriteLockHeld(t *testing.T) {
	if path := os.Getenv(holdEnv); path != "" {
		t.Log(hold(path))
		return
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shop.db")
	s := &config.Settings{DB: "sqlite:" + path, Redis: config.EmbeddedRedis, DataDir: filepath.Dir(path)}
	migrated(t, s.DB)
	d := &doctor{settings: s, patience: await.Limit}
	d.database(t.Context())
	if problems := d.foundAt(levelFix); problems != "" {
		t.Fatalf("the lock is free: %s", problems)
	}
	cmd := exec.CommandContext(await.Context(t), os.Args[0], "-test.run=^TestDoctor_WriteLockHeld$")
	cmd.Env = append(os.Environ(), holdEnv+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	d = &doctor{settings: s, patience: 100 * time.Millisecond}
	d.database(t.Context())
	want := fmt.Sprintf("its write lock was not free for 100ms, so no order can be committed: process %d", cmd.Process.Pid)
	if problems := d.foundAt(levelFix); !strings.Contains(problems, want) {
		t.Errorf("%q, want %q", problems, want)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Error(err)
	}
}

// A session that keeps the lock of all writes on Postgres, or a row for which a write waits, is named.
func TestDoctor_PostgresLocks(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Postgres server, and -short asks for the quick tests")
	}
	t.Parallel()
	setting := postgrestest.NewDatabase(t)
	migrated(t, setting)
	ctx := await.Context(t)
	look := func() *doctor {
		d := &doctor{settings: &config.Settings{DB: setting}, now: time.Now, patience: 200 * time.Millisecond}
		d.postgres(ctx)
		return d
	}
	if d := look(); strings.Contains(d.foundAt(levelFix)+d.foundAt(levelWarn), "session") || !strings.Contains(d.foundAt(levelOK), "its schema is up to date") {
		t.Errorf("nothing is locked: %+v", d.found)
	}
	u, err := url.Parse(setting)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("application_name", "clerk")
	u.RawQuery = q.Encode()
	db, err := sql.Open("pgx", u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	begin := func(statement string, args ...any) (tx *sql.Tx, pid int64) {
		t.Helper()
		tx, err := db.BeginTx(ctx, nil)
		if err == nil {
			err = tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, statement, args...)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx, pid
	}
	end := func(tx *sql.Tx) {
		t.Helper()
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}

	tx, pid := begin("SELECT pg_advisory_xact_lock($1)", postgres.WriteLock)
	d := look()
	for _, want := range []string{"no order can be committed", fmt.Sprintf("session %d (clerk, ", pid), "idle in transaction"} {
		if problems := d.foundAt(levelFix); !strings.Contains(problems, want) {
			t.Errorf("%q, want %q", problems, want)
		}
	}
	end(tx)

	const row = "UPDATE meta SET value = value WHERE key = 'epoch'"
	tx, pid = begin(row)
	waiter, waiting := begin("SELECT 1")
	done := make(chan error, 1)
	go func(ctx context.Context) {
		_, err := waiter.ExecContext(ctx, row)
		done <- err
	}(ctx)
	await.True(t, "the second session waits for the row", func() bool {
		var waits bool
		err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pid = $1 AND NOT granted)", waiting).Scan(&waits)
		return err == nil && waits
	})
	d = look()
	if found := d.foundAt(levelWarn); !strings.Contains(found, "a write has been waiting for ") || !strings.Contains(found, fmt.Sprintf("for session %d (clerk, ", pid)) {
		t.Errorf("%q, want the session %d", found, pid)
	}
	end(tx)
	if err := <-done; err != nil {
		t.Error(err)
	}
	end(waiter)
}
