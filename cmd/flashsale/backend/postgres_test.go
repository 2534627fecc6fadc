//go:build unix

package backend

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgresserver"
	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/redistest"
	"flashsale/order/store/database"
	"flashsale/order/store/postgres"
)

func TestMain(m *testing.M) {
	// gorm's cache of statements has a goroutine that Close does not end.
	redistest.Main(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// lockOf locks a database until the end of the test.
func lockOf(t *testing.T, db string, exclusive bool) *PostgresLock {
	t.Helper()
	l, err := LockPostgres(await.Context(t), &config.Settings{DB: db}, exclusive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(await.Context(t)); err != nil {
			t.Error(err)
		}
	})
	return l
}

// A URL for a pooler in transaction mode gets no exclusive lock, because the lock would stay with a
// connection that the pooler gives to others. A shared one is not taken there.
func TestLockPostgres_Pooled(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Postgres server, and -short asks for the quick tests")
	}
	t.Parallel()
	direct := postgrestest.Server(t).NewDatabase(t)
	pooled := direct + "&default_query_exec_mode=simple_protocol"
	_, err := LockPostgres(await.Context(t), &config.Settings{DB: pooled}, true)
	if err == nil || !strings.Contains(err.Error(), errPooled.Error()) {
		t.Errorf("an exclusive lock: %v, want errPooled", err)
	}
	shared := lockOf(t, pooled, false)
	if err := shared.check(await.Context(t)); err != nil {
		t.Errorf("check: %v", err)
	}
	lockOf(t, direct, true) // nothing excludes it
}

// A URL that leads to a pooler in transaction mode, and does not say so, is refused before anything
// is left in a session that the pooler gives to others.
func TestLockPostgres_UnknownPooler(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Postgres server, and -short asks for the quick tests")
	}
	t.Parallel()
	server := postgrestest.Server(t)
	direct := server.NewDatabase(t)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	pooled := postgrestest.Bouncer(t, server, postgresserver.Transaction)(name)
	for _, exclusive := range []bool{true, false} {
		_, err := LockPostgres(await.Context(t), &config.Settings{DB: pooled}, exclusive)
		if err == nil || !strings.Contains(err.Error(), postgres.ErrPooled.Error()) || !strings.Contains(err.Error(), "add default_query_exec_mode=simple_protocol") {
			t.Errorf("exclusive %t: %v, want ErrPooled and the fix", exclusive, err)
		}
	}
	lockOf(t, direct, true) // no session of the pooler holds the lock
}

// TestLockPostgres_SilentHost takes the lock on the second host of a URL, the first of which does
// not answer.
func TestLockPostgres_SilentHost(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Postgres server, and -short asks for the quick tests")
	}
	t.Parallel()
	lockOf(t, postgrestest.SilentFirst(t, postgrestest.NewDatabase(t)), true)
}

// A lock whose connection is lost is taken again, unless another process has taken it.
func TestPostgresLock_Lost(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Postgres server, and -short asks for the quick tests")
	}
	t.Parallel()
	server := postgrestest.Server(t)
	db := server.NewDatabase(t)
	_, name, _ := strings.Cut(strings.TrimSuffix(db, "?sslmode=disable"), "127.0.0.1:")
	_, name, _ = strings.Cut(name, "/")
	cut := func(want int) {
		t.Helper()
		// The server may still know a connection without the lock that was closed.
		holders := "datname = '" + name + "' AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"
		if n := server.TerminateBackends(t, holders); n != want {
			t.Fatalf("%d connections with the lock were cut, want %d", n, want)
		}
	}
	first := lockOf(t, db, true)
	cut(1)
	if err := first.check(await.Context(t)); err != nil {
		t.Errorf("the lock is not taken again: %v", err)
	}
	other := &PostgresLock{settings: first.settings, server: first.server}
	if err := other.check(await.Context(t)); !errors.Is(err, ErrServed) {
		t.Errorf("a shared lock beside an exclusive one: %v", err)
	}
	cut(1)
	shared := lockOf(t, db, false)
	lockOf(t, db, false)
	if err := first.check(await.Context(t)); !errors.Is(err, ErrServed) {
		t.Errorf("the lock of another process is taken: %v", err)
	}
	if err := shared.check(await.Context(t)); err != nil {
		t.Errorf("the shared lock: %v", err)
	}
}

func TestPostgresFix(t *testing.T) {
	t.Parallel()
	for _, q := range []struct {
		err  error
		want string
	}{
		{&pgconn.PgError{Code: "28P01"}, "PGPASSWORD"},
		{&pgconn.PgError{Code: "28000"}, "pg_hba.conf"},
		{fmt.Errorf("open: %w", &pgconn.PgError{Code: "3D000"}), "createdb"},
		{&pgconn.PgError{Code: "42501"}, "grant"},
		{&pgconn.PgError{Code: "25006"}, "primary"},
		{&pgconn.PgError{Code: "53300"}, "max_connections"},
		{&pgconn.PgError{Code: "57P03"}, "wait"},
		{&pgconn.PgError{Code: "XX000"}, "log of the Postgres server"},
		{&pgconn.ConnectError{}, "start the server"},
		{errors.New("other"), "log of the Postgres server"},
	} {
		if got := DatabaseFix(&config.Settings{DB: "postgres://h/d"}, q.err); !strings.Contains(got, q.want) {
			t.Errorf("%T %v: %q, want %q", q.err, q.want, got, q.want)
		}
	}
}

func TestPostgresDurability(t *testing.T) {
	t.Parallel()
	const on, off = "on", "off"
	for _, q := range []struct {
		fsync, commit, pages, standbys string
		says                           string
		must, should                   int
	}{
		{on, on, on, "", "a 201 is synced to its disk", 0, 0},
		{on, on, on, "replica", "synchronous standbys", 0, 0},
		{on, "local", on, "replica", "a 201 is synced to its disk", 0, 0},
		{on, off, on, "replica", "loses the last 201s", 0, 1},
		{off, on, on, "", "may lose every order", 1, 0},
		{on, on, off, "", "a 201 is synced to its disk", 0, 1},
		{off, off, off, "", "may lose every order", 1, 2},
	} {
		says, change := PostgresDurability(&database.Description{Settings: []database.Setting{
			{Name: "fsync", Value: q.fsync}, {Name: "synchronous_commit", Value: q.commit},
			{Name: "full_page_writes", Value: q.pages}, {Name: "synchronous_standby_names", Value: q.standbys},
		}})
		must, should := 0, 0
		for _, c := range change {
			if c.Must {
				must++
			} else {
				should++
			}
		}
		if !strings.Contains(says, q.says) || must != q.must || should != q.should {
			t.Errorf("%+v: %q, %d and %d changes", q, says, must, should)
		}
	}
}
