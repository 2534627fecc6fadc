//go:build unix

package admission

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/mattn/go-sqlite3"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
)

// probeFault makes a database refuse writes. begin returns a function that ends the fault.
type probeFault struct {
	name  string
	begin func(t *testing.T, s *store.Store) (end func())
}

// probeFaults are the faults of the database that the tests use.
func probeFaults(t *testing.T) []probeFault {
	if postgrestest.Chosen(t) {
		return []probeFault{{"readonly", readOnly}, {"closed", disallow}, {"busy", occupyRow}}
	}
	var list []probeFault
	for _, f := range ordertest.DatabaseFaults {
		if f.Name != "full" { // it only limits the store's own connection
			list = append(list, probeFault{f.Name, func(t *testing.T, s *store.Store) func() { return f.Begin(t, s) }})
		}
	}
	return list
}

// TestWriteProbe makes the database refuse writes, for each reason: the probe detects it,
// and detects when it is over.
func TestWriteProbe(t *testing.T) {
	t.Parallel()
	for _, f := range probeFaults(t) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := storetest.New(t)
			p, heard := newProbe(t, s)
			if err := p.Failing(); err != nil {
				t.Errorf("before the first check: %v", err)
			}
			if err := p.Check(await.Context(t)); err != nil {
				t.Errorf("a database that takes writes: %v", err)
			}
			end := f.begin(t, s)
			if f.name == "busy" { // long enough to distinguish it from a slow commit
				await.True(t, "the lock is noticed", func() bool { return p.now(t) != nil })
			}
			for range 2 { // the second check is on another connection
				err := p.now(t)
				var se sqlite3.Error
				var pe *pgconn.PgError
				own := errors.As(err, &se) || errors.As(err, &pe)
				if !errors.Is(err, database.ErrUnavailable) || errors.Is(err, ErrBusy) != (f.name == "busy") || !own {
					t.Errorf("while it refuses: %v", err)
				}
				if got := p.Failing(); !errors.Is(got, err) {
					t.Errorf("failing with %v, want %v", got, err)
				}
			}
			end()
			if err := p.now(t); err != nil {
				t.Errorf("once it takes writes: %v", err)
			}
			if err := p.Failing(); err != nil {
				t.Errorf("failing with %v once it takes writes", err)
			}
			if got := heard.list(); len(got) != 2 || got[0] == nil || got[1] != nil {
				t.Errorf("reported %v, want one failure and its end", got)
			}
		})
	}
}

// TestWriteProbe_Restarted: the server has ended the probe's connection, as by a restart
// between two checks, which is no failure.
func TestWriteProbe_Restarted(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	if !s.Postgres() {
		t.Skip("tests the connections of Postgres")
	}
	p, heard := newProbe(t, s)
	for range 2 {
		if err := p.now(t); err != nil {
			t.Errorf("on a server that takes writes: %v", err)
		}
		terminate(t, maintenance(t), nameOf(t, s))
	}
	if got := heard.list(); len(got) != 0 {
		t.Errorf("reported %v", got)
	}
}

// TestWriteProbe_ProcessStopped: another process has stopped between its write and its COMMIT,
// with the row that every probe writes. The server ends that transaction.
func TestWriteProbe_ProcessStopped(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	if !s.Postgres() {
		t.Skip("tests the row that the probes of Postgres share")
	}
	tx, err := connect(t, s.URL()).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the server has ended it
	for _, statement := range [][2]string{{probeLimits, strconv.Itoa(probeWait)}, {writeTime, "0"}} {
		if _, err := tx.ExecContext(await.Context(t), strings.ReplaceAll(statement[0], "?1", "$1"), statement[1]); err != nil {
			t.Fatal(err)
		}
	}
	db, name := maintenance(t), nameOf(t, s)
	await.True(t, "the server ends the transaction", func() bool {
		var open int
		err := db.QueryRowContext(await.Context(t), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND state LIKE 'idle in transaction%'", name).Scan(&open)
		return err == nil && open == 0
	})
	if p, _ := newProbe(t, s); p.now(t) != nil {
		t.Error("the probe cannot write")
	}
}

// maintenance connects to the server's own database.
func maintenance(t *testing.T) *sql.DB {
	t.Helper()
	return connect(t, postgrestest.Server(t).URL("postgres"))
}

func connect(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// nameOf is the name of a store's database.
func nameOf(t *testing.T, s *store.Store) string {
	t.Helper()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

// terminate ends all connections of a database.
func terminate(t *testing.T, db *sql.DB, name string) {
	t.Helper()
	_, err := db.ExecContext(await.Context(t), "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = $1", name)
	if err != nil {
		t.Fatal(err)
	}
}

// alter changes a property of a store's database, and ends the connections that have the
// previous one. The returned function restores it.
func alter(t *testing.T, s *store.Store, change, restore string) (end func()) {
	t.Helper()
	db, name := maintenance(t), nameOf(t, s)
	run := func(what string) {
		if _, err := db.ExecContext(context.WithoutCancel(await.Context(t)), fmt.Sprintf("ALTER DATABASE %q %s", name, what)); err != nil {
			t.Fatal(err)
		}
	}
	run(change)
	terminate(t, db, name)
	return func() { run(restore) }
}

// readOnly makes the database read-only, as that of a standby is.
func readOnly(t *testing.T, s *store.Store) func() {
	return alter(t, s, "SET default_transaction_read_only = on", "RESET default_transaction_read_only")
}

// disallow makes the server refuse connections.
func disallow(t *testing.T, s *store.Store) func() {
	return alter(t, s, "ALLOW_CONNECTIONS false", "ALLOW_CONNECTIONS true")
}

// occupyRow locks the row that probes write.
func occupyRow(t *testing.T, s *store.Store) func() {
	tx, err := connect(t, s.URL()).BeginTx(context.WithoutCancel(await.Context(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(await.Context(t), "SELECT 1 FROM meta WHERE key = 'write_probe' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}
}

// The write of the first check on a database whose URL has several hosts reaches the one that
// answers within the bound of a check.
func TestWriteProbe_SilentHost(t *testing.T) {
	if !postgrestest.Chosen(t) {
		t.Skip("skipped: only Postgres has several hosts; FLASHSALE_TEST_DATABASE=postgres runs it")
	}
	t.Parallel()
	s, err := store.Open(await.Context(t), postgrestest.SilentFirst(t, ordertest.NewPostgres(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	p, _ := newProbe(t, s)
	if err := p.target.write(await.Context(t), "0"); err != nil {
		t.Error(err)
	}
	if _, err := s.Epoch(await.Context(t)); err != nil {
		t.Errorf("a read: %v", err)
	}
}
