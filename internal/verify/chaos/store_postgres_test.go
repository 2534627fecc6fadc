//go:build chaos && unix

package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"flashsale/internal/testing/postgrestest"
)

// openPostgres creates a database on the server that the faults share, or on the fault's own.
func openPostgres(t *testing.T, f *fault, _ string) *store {
	t.Helper()
	s := new(store)
	if f.Postgres != nil {
		s.server, s.direct = f.Postgres(t)
	} else {
		s.server = postgrestest.Server(t)
		s.direct = s.server.NewDatabase(t)
	}
	s.url = s.direct
	if f.Front != nil {
		s.url = f.Front(t, s)
	}
	log := s.server.Log(t)
	s.deadlocks, s.logged = strings.Count(log, deadlock), len(log)
	s.reopen(t)
	t.Cleanup(func() { s.close(t) })
	return s
}

// deadlock is how the server reports one in its log.
const deadlock = "deadlock detected"

// durable starts a server whose commits survive its crash, for one fault.
func durable(settings ...string) func(t *testing.T) (*postgrestest.Instance, string) {
	return func(t *testing.T) (*postgrestest.Instance, string) {
		t.Helper()
		i := postgrestest.Start(t, postgrestest.Options{Sync: true, Settings: settings})
		url := i.NewDatabase(t)
		return i, url
	}
}

// reopenPostgres opens connections that only read.
func (s *store) reopenPostgres(t *testing.T) {
	t.Helper()
	var err error
	if s.db, err = sql.Open("pgx", s.direct+"&default_transaction_read_only=on"); err != nil {
		t.Fatal(err)
	}
	// The faults end sessions.
	s.db.SetMaxIdleConns(0)
}

// database is the name of the Postgres database.
func (s *store) database(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(s.direct)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

// stranger is a writing connection to the database that closes at the end of the test.
func (s *store) stranger(ctx context.Context, t *testing.T) *sql.Conn {
	t.Helper()
	if s.server != nil {
		return s.connect(ctx, t, "pgx", s.direct)
	}
	return s.connect(ctx, t, "sqlite3", "file:"+s.path+"?_busy_timeout=10000")
}

// maintenance is a connection to another database of the Postgres server.
func (s *store) maintenance(ctx context.Context, t *testing.T) *sql.Conn {
	t.Helper()
	return s.connect(ctx, t, "pgx", s.server.URL("postgres"))
}

func (s *store) connect(ctx context.Context, t *testing.T, driver, dsn string) *sql.Conn {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close database: %v", err)
		}
	})
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close() //nolint:errcheck // the fault may have ended the connection
	})
	return conn
}

// set changes settings of the Postgres server without a restart, for example
// "default_transaction_read_only = on".
func (r *run) set(ctx context.Context, conn *sql.Conn, settings ...string) {
	r.t.Helper()
	for _, s := range settings {
		r.exec(ctx, conn, "ALTER SYSTEM "+s)
	}
	r.exec(ctx, conn, "SELECT pg_reload_conf()")
}

// exec executes a statement that must succeed.
func (r *run) exec(ctx context.Context, conn *sql.Conn, statement string) {
	r.t.Helper()
	if _, err := conn.ExecContext(ctx, statement); err != nil {
		r.t.Fatalf("%s: %v", statement, err)
	}
}

// number reads a number that must exist.
func (r *run) number(ctx context.Context, conn *sql.Conn, query string, args ...any) (n int) {
	r.t.Helper()
	if err := conn.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// expectPostgres checks that the transactions of the service have not waited for each other in a
// circle, and notes which errors the server has logged.
func (r *run) expectPostgres(ctx context.Context) {
	s := r.shop.store
	if s.server == nil {
		return
	}
	log := s.server.Log(r.t)
	if n := strings.Count(log, deadlock) - s.deadlocks; n > 0 {
		r.failf("Postgres has logged %d deadlocks", n)
	}
	var counted int
	if err := s.db.QueryRowContext(ctx, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&counted); err != nil || counted > 0 {
		r.failf("Postgres has counted %d deadlocks, %v", counted, err)
	}
	errors := make(map[string]int)
	for line := range strings.Lines(log[min(s.logged, len(log)):]) {
		for _, level := range []string{"ERROR:  ", "PANIC:  ", "FATAL:  "} {
			if _, text, ok := strings.Cut(line, level); ok {
				errors[strings.TrimSpace(level+text)]++
			}
		}
	}
	for text, n := range errors {
		r.t.Logf("Postgres has logged %d times: %s", n, text)
	}
}

// intactPostgres compares the indexes of the database with its tables.
func (r *run) intactPostgres(ctx context.Context) {
	conn := r.shop.store.stranger(ctx, r.t)
	if _, err := conn.ExecContext(ctx, "CREATE EXTENSION IF NOT EXISTS amcheck"); err != nil {
		r.notef("indexes not checked: %v", err)
		return
	}
	const check = `SELECT count(bt_index_check(i.indexrelid, true)::text) FROM pg_index i
		JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_am a ON a.oid = c.relam WHERE n.nspname = 'public' AND a.amname = 'btree'`
	var n int
	if err := conn.QueryRowContext(ctx, check).Scan(&n); err != nil || n == 0 {
		r.failf("check of %d indexes: %v", n, err)
	}
}

// committing is a condition on pg_stat_activity: the session executes a COMMIT of the service.
func (s *store) committing(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("datname = '%s' AND state = 'active' AND lower(query) LIKE 'commit%%'", s.database(t))
}
