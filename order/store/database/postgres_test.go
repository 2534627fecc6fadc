package database

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/redistest"
	"flashsale/order/store/postgres"
)

// onPostgres returns a database with tables on Postgres.
func onPostgres(t testing.TB) *DB {
	t.Helper()
	return withTables(t, openDB(t, postgrestest.NewDatabase(t)))
}

// readNothing adds no statement to the beginning of a transaction.
func readNothing(*pgx.Batch) {}

// TestPostgres_LostConnection_Always: a change is not run again without end.
func TestPostgres_LostConnection_Always(t *testing.T) {
	t.Parallel()
	db := onPostgres(t)
	runs := 0
	err := change(await.Context(t), db, func(ctx context.Context, tx *Tx) error {
		runs++
		var pid int
		err := tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid)
		if err == nil {
			err = db.Reader().WithContext(ctx).Exec("SELECT pg_terminate_backend(?::int, 10000)", strconv.Itoa(pid)).Error
		}
		if err != nil {
			t.Error(err)
		}
		_, err = tx.ExecContext(ctx, "SELECT 1")
		return err
	})
	if !Transient(err) || runs != writeTries {
		t.Errorf("%d runs: %v, want %d and a transient error", runs, err, writeTries)
	}
	if err := db.Reader().WithContext(await.Context(t)).Exec("SELECT 1").Error; err != nil {
		t.Errorf("the next read: %v", err)
	}
}

// TestPostgres_Snapshot: the database is unavailable if it ends the session of a snapshot, during it or between two.
func TestPostgres_Snapshot(t *testing.T) {
	t.Parallel()
	db, ctx := onPostgres(t), await.Context(t)
	var pid int
	session := func(tx *gorm.DB) error { return tx.Raw("SELECT pg_backend_pid()").Scan(&pid).Error }
	end := func() {
		if err := db.Writer().WithContext(ctx).Exec("SELECT pg_terminate_backend(?::int, 10000)", strconv.Itoa(pid)).Error; err != nil {
			t.Error(err)
		}
	}
	err := db.Snapshot(ctx, func(tx *gorm.DB) error {
		defer end()
		return session(tx)
	})
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("during a snapshot: %v, want ErrUnavailable", err)
	}
	if err := db.Snapshot(ctx, session); err != nil {
		t.Fatal(err)
	}
	end()
	// The pool may notice that the connection has ended, and open another one.
	if err := db.Snapshot(ctx, session); err != nil && !errors.Is(err, ErrUnavailable) {
		t.Errorf("before a snapshot: %v, want ErrUnavailable", err)
	}
	if err := db.Snapshot(ctx, func(*gorm.DB) error { return errTest }); err != errTest { //nolint:errorlint // unchanged
		t.Errorf("an error of the caller: %v", err)
	}
}

// TestPostgres_Outcome: the outcome of a transaction whose COMMIT failed is looked up, also
// while the server is still committing.
func TestPostgres_Outcome(t *testing.T) {
	t.Parallel()
	db := onPostgres(t)
	other, err := postgres.Open(db.URL(), 1)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := other.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	begin := func() (*sql.Tx, txID) {
		tx, id, err := beginLocked(await.Context(t), pool, true, readNothing)
		if err != nil {
			t.Fatal(err)
		}
		return tx, id
	}
	outcome := func(m txID, want error) {
		t.Helper()
		if err := committed(db, m, errTest); !errors.Is(err, want) || want != nil && !errors.Is(err, errTest) {
			t.Errorf("outcome %v, want %v", err, want)
		}
	}
	for name, c := range map[string]struct {
		end  func(tx *sql.Tx) error
		want error
	}{"committed": {(*sql.Tx).Commit, nil}, "rolled back": {(*sql.Tx).Rollback, errRolledBack}} {
		t.Run(name, func(t *testing.T) {
			tx, m := begin()
			if err := c.end(tx); err != nil {
				t.Fatal(err)
			}
			outcome(m, c.want)
			tx, m = begin()
			var looking sync.WaitGroup
			looking.Go(func() { outcome(m, c.want) })
			await.True(t, "the outcome is looked up", func() bool { return looked(t, db) })
			if err := c.end(tx); err != nil {
				t.Error(err)
			}
			looking.Wait()
		})
	}
	outcome(txID{}, errRolledBack)
	// It was made on a server whose rows are here, but not its transactions, such as one that was
	// replicated logically. This one has not used its number yet.
	outcome(txID{"1000000000000", "another server"}, errUnknown)
}

// looked reports whether a connection of the writer has looked up an outcome.
func looked(t testing.TB, db *DB) bool {
	t.Helper()
	var n int
	err := db.Reader().Raw("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_xact_status%' AND pid <> pg_backend_pid()").
		Scan(&n).Error
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// TestPostgres_Isolation: a change sees what was committed while it waited for the lock, also if the isolation
// level of the database or the role is another one by default.
func TestPostgres_Isolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			address := postgrestest.NewDatabase(t) + "&default_transaction_isolation=" + url.PathEscape(level)
			first, second := withTables(t, openDB(t, address)), openDB(t, address)
			writing, release := make(chan struct{}), make(chan struct{})
			var running sync.WaitGroup
			running.Go(func() {
				err := change(await.Context(t), first, func(ctx context.Context, tx *Tx) error {
					close(writing)
					<-release
					_, err := tx.ExecContext(ctx, "INSERT INTO notes (id, text) VALUES ('first', 'done')")
					return err
				})
				if err != nil {
					t.Errorf("first change: %v", err)
				}
			})
			<-writing
			running.Go(func() {
				err := change(await.Context(t), second, func(ctx context.Context, tx *Tx) error {
					var seen string
					err := tx.QueryRowContext(ctx, "SELECT text FROM notes WHERE id = 'first'").Scan(&seen)
					return err
				})
				if err != nil {
					t.Errorf("second change: %v", err)
				}
			})
			awaitLocked(t, first)
			close(release)
			running.Wait()
		})
	}
}

// awaitLocked waits until a transaction waits for the lock of all writes.
func awaitLocked(t *testing.T, db *DB) {
	t.Helper()
	await.True(t, "the change waits for the lock", func() bool {
		var waiting int
		err := db.Reader().Raw("SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").
			Scan(&waiting).Error
		return err == nil && waiting == 1
	})
}

// committingTo begins a transaction that has written a note.
func committingTo(ctx context.Context, t *testing.T, db *DB) (*sql.Tx, *sql.Conn, txID) {
	t.Helper()
	pool, err := db.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close() //nolint:errcheck // the test has ended the connection
	})
	tx, id, err := beginLocked(ctx, conn, true, readNothing)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO notes VALUES ('key', 'value')"); err != nil {
		t.Fatal(err)
	}
	return tx, conn, id
}

// visible reports whether other sessions see the note of committingTo.
func visible(t *testing.T, db *DB) (found bool) {
	t.Helper()
	if err := db.Reader().WithContext(await.Context(t)).Raw("SELECT EXISTS (SELECT 1 FROM notes WHERE id = 'key')").Scan(&found).Error; err != nil {
		t.Fatal(err)
	}
	return found
}

// TestPostgres_Standby_Abandoned: when the time of a commit is over that waits for a synchronous
// standby, the server goes on waiting. No other session sees the commit before the standby has it.
func TestPostgres_Standby_Abandoned(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, postgrestest.Options{})
	address := server.NewDatabase(t)
	db, other := withTables(t, openDB(t, address)), openDB(t, address)
	server.RequireStandby(t, "none")
	ctx, cancel := context.WithCancel(await.Context(t))
	tx, conn, _ := committingTo(ctx, t, db)
	var closed <-chan struct{}
	if err := conn.Raw(func(driver any) error {
		c, err := postgres.PGX(driver)
		if err == nil {
			closed = c.PgConn().CleanupDone()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	committing := make(chan error, 1)
	go func() { committing <- tx.Commit() }()
	server.AwaitWaitingCommit(t)
	cancel()
	if err := <-committing; err == nil {
		t.Error("the commit did not wait for the standby")
	}
	<-closed
	if visible(t, other) {
		t.Fatal("the commit is visible, and no standby has it")
	}
	server.AwaitWaitingCommit(t)
	server.RequireStandby(t, "")
	await.True(t, "the commit is visible once the standby is not required", func() bool { return visible(t, other) })
}

// TestPostgres_Standby_Cancelled: a commit whose wait for a synchronous standby an operator has
// cancelled does not count as committed, although the server reports it so.
func TestPostgres_Standby_Cancelled(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]string{"cancelled": "pg_cancel_backend", "terminated": "pg_terminate_backend"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := postgrestest.Start(t, postgrestest.Options{})
			db := withTables(t, openDB(t, server.NewDatabase(t)))
			server.RequireStandby(t, "none")
			ctx := await.Context(t)
			tx, conn, mark := committingTo(ctx, t, db)
			committing := make(chan error, 1)
			go func() { committing <- tx.Commit() }()
			server.AwaitWaitingCommit(t)
			err := server.Do(ctx, "postgres", func(pool *sql.DB) error {
				_, err := pool.ExecContext(ctx, "SELECT "+cancel+"(pid) FROM pg_stat_activity WHERE "+postgrestest.InSyncRep)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-committing; err == nil {
				t.Error("the commit succeeded, and no standby has it")
			}
			if err := conn.Close(); err != nil {
				t.Log(err)
			}
			if err := committed(db, mark, errTest); !errors.Is(err, errUnknown) || !Transient(err) {
				t.Errorf("committed: %v, want errUnknown", err)
			}
			if status, _, err := transactionStatus(ctx, db, mark.xid); err != nil || status != "committed" {
				t.Errorf("status %q, %v", status, err)
			}
			server.RequireStandby(t, "")
			if err := db.Replicated(ctx); err != nil {
				t.Errorf("without a standby: %v", err)
			}
		})
	}
}

// TestPostgres_SilentConnection: a firewall drops an idle connection without an error. The change
// that meets it is refused after a time, and the next one uses another connection.
func TestPostgres_SilentConnection(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(postgrestest.NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	link := redistest.NewProxy(t, address.Host)
	address.Host = link.Addr()
	db := openDB(t, address.String())
	again := func() error { return change(await.Context(t), db, nothing) }
	if err := again(); err != nil {
		t.Fatal(err)
	}
	// A connection is checked before its use if it was idle for a second.
	idle := time.NewTimer(1100 * time.Millisecond)
	defer idle.Stop()
	<-idle.C
	link.DropReplies(true)
	if err := again(); !Transient(err) {
		t.Errorf("without answers: %v, want a transient error", err)
	}
	link.DropReplies(false)
	await.True(t, "a change by another connection", func() bool { return again() == nil })
}

// TestPostgres_BoundsItsSession: the server ends a write transaction whose process has stopped, so
// that it does not keep its locks from all other processes.
func TestPostgres_BoundsItsSession(t *testing.T) {
	t.Parallel()
	db := onPostgres(t)
	var limit string
	err := change(await.Context(t), db, func(ctx context.Context, tx *Tx) error {
		return tx.QueryRowContext(ctx, "SELECT current_setting('idle_in_transaction_session_timeout')").Scan(&limit)
	})
	if err != nil || limit != "15s" {
		t.Errorf("a write transaction may be idle for %q, %v; want 15s", limit, err)
	}
}

// TestPostgres_StatementTimeout: the server does not cancel the statements of a write transaction. A
// batch that takes longer than allowed would begin again without end.
func TestPostgres_StatementTimeout(t *testing.T) {
	t.Parallel()
	db := openDB(t, postgrestest.NewDatabase(t)+"&statement_timeout=60000")
	var session, batch, single string
	read := func(ctx context.Context, c Conn, limit *string) error {
		return c.QueryRowContext(ctx, "SELECT current_setting('statement_timeout')").Scan(limit)
	}
	pool, err := db.write.DB()
	if err != nil {
		t.Fatal(err)
	}
	_, berr := db.Do(await.Context(t), &Write{Batch: true, Run: func(ctx context.Context, tx *Tx) error { return read(ctx, tx, &batch) }})
	err = errors.Join(
		read(await.Context(t), pool, &session),
		berr,
		change(await.Context(t), db, func(ctx context.Context, tx *Tx) error { return read(ctx, tx, &single) }),
	)
	if err != nil || session != "1min" || batch != "0" || single != "0" {
		t.Errorf("statement_timeout is %q in a session, %q in a batch and %q in a change, %v; want 1min, 0 and 0", session, batch, single, err)
	}
}
