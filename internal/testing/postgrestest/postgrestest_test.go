package postgrestest

import (
	"database/sql"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"flashsale/internal/testing/await"
)

// open returns a pool of connections to a database, closed at the end of the test.
func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

func mustExec(t *testing.T, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(await.Context(t), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// number reads one number.
func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(await.Context(t), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func TestServer_Shared(t *testing.T) {
	t.Parallel()
	if a, b := Server(t), Server(t); a != b || a.Pid() == 0 {
		t.Errorf("servers %p and %p, pid %d; want one that runs", a, b, a.Pid())
	}
}

func TestNewDatabase_Separate(t *testing.T) {
	t.Parallel()
	a, b := open(t, NewDatabase(t)), open(t, NewDatabase(t))
	mustExec(t, a, "CREATE TABLE things (id BIGINT)")
	mustExec(t, a, "INSERT INTO things VALUES (1), (2)")
	mustExec(t, b, "CREATE TABLE things (id BIGINT)")
	if n, m := number(t, a, "SELECT count(*) FROM things"), number(t, b, "SELECT count(*) FROM things"); n != 2 || m != 0 {
		t.Errorf("%d and %d rows, want 2 and 0", n, m)
	}
}

func TestNewDatabase_Dropped(t *testing.T) {
	t.Parallel()
	var at string
	t.Run("inner", func(t *testing.T) {
		at = NewDatabase(t)
		// A connection that the test left open does not prevent it.
		db := open(t, at)
		mustExec(t, db, "SELECT 1")
	})
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	if n := number(t, open(t, Server(t).URL(superuser)), "SELECT count(*) FROM pg_database WHERE datname = '"+name+"'"); n != 0 {
		t.Errorf("database %s still exists", name)
	}
}

func TestMigrated_Once(t *testing.T) {
	t.Parallel()
	i := Start(t, Options{})
	var calls atomic.Int32
	migrate := func(url string) error {
		calls.Add(1)
		db, err := sql.Open("pgx", url)
		if err != nil {
			return err
		}
		_, err = db.ExecContext(t.Context(), "CREATE TABLE things (id BIGINT); INSERT INTO things VALUES (7)")
		return errors.Join(err, db.Close())
	}
	var wg sync.WaitGroup
	dbs := make([]*sql.DB, 4)
	for n := range dbs {
		wg.Go(func() { dbs[n] = open(t, i.Migrated(t, migrate)) })
	}
	wg.Wait()
	mustExec(t, dbs[0], "DELETE FROM things")
	for n, db := range dbs[1:] {
		if sum := number(t, db, "SELECT sum(id) FROM things"); sum != 7 {
			t.Errorf("database %d holds %d, want the 7 of the migration", n+1, sum)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d migrations, want 1", n)
	}
}

func TestInstance_TerminateBackends(t *testing.T) {
	t.Parallel()
	i := Server(t)
	at := i.NewDatabase(t)
	ctx := await.Context(t)
	conn, err := open(t, at).Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	other, err := open(t, i.NewDatabase(t)).Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	name := at[strings.LastIndexByte(at, '/')+1 : strings.IndexByte(at, '?')]
	if n := i.TerminateBackends(t, "datname = '"+name+"'"); n != 1 {
		t.Errorf("%d sessions ended, want 1", n)
	}
	if _, err := conn.ExecContext(ctx, "SELECT 1"); err == nil {
		t.Error("the session still works")
	}
	if _, err := other.ExecContext(ctx, "SELECT 1"); err != nil {
		t.Errorf("the session of another database: %v", err)
	}
}

// verdict records how a test ends.
type verdict struct {
	testing.TB
	failed, skipped bool
}

func (*verdict) Helper()                 {}
func (v *verdict) Fatalf(string, ...any) { v.failed = true }
func (v *verdict) Skipf(string, ...any)  { v.skipped = true }

// Not parallel: it sets the environment.
func TestNeed(t *testing.T) {
	for _, c := range []struct {
		ci   string
		err  error
		want verdict
	}{
		{"true", nil, verdict{}},
		{"true", os.ErrNotExist, verdict{failed: true}},
		{"", os.ErrNotExist, verdict{skipped: true}},
	} {
		t.Setenv("CI", c.ci)
		var v verdict
		need(&v, c.err, "Postgres", "postgresql")
		if v.failed != c.want.failed || v.skipped != c.want.skipped {
			t.Errorf("CI=%q, %v: failed %v, skipped %v", c.ci, c.err, v.failed, v.skipped)
		}
	}
}
