//go:build unix

package main_test

import (
	"database/sql"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // to prepare the tests' databases

	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/process"
)

// postgresAs returns the URL of the same database for another role.
func postgresAs(t *testing.T, db, role string) string {
	t.Helper()
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// psql executes statements in a database of Postgres.
func psql(t *testing.T, db string, statements ...string) {
	t.Helper()
	pool, err := sql.Open("pgx", db)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, statement := range statements {
		if _, err := pool.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// on runs a command of the service on a database.
func on(t *testing.T, db string, args ...string) process.Result {
	t.Helper()
	return process.Run(t, process.Spec{Args: args, Env: []string{"FLASHSALE_DB=" + db, "FLASHSALE_JWT_SECRET=" + secret}})
}

// Each command names the setting, the server's answer and the fix. None creates the database.
func TestPostgres_Fixes(t *testing.T) {
	needProcesses(t)
	db := postgrestest.NewDatabase(t)
	missing, closed := strings.Replace(db, "?", "_missing?", 1), "postgres://shop@"+process.FreeAddr(t)+"/shop"
	redis := "--redis=redis://" + process.FreeAddr(t) + "/0"
	for _, q := range []struct {
		name, db string
		args     []string
		words    []string
	}{
		{"no server", closed, []string{"migrate", "up"}, []string{"(FLASHSALE_DB)", "connection refused", "start the server"}},
		{"no server, doctor", closed, []string{"doctor"}, []string{"connection refused", "start the server"}},
		{"no database", missing, []string{"migrate", "up"}, []string{"3D000", "createdb"}},
		{"no database, serve", missing, []string{"serve"}, []string{"3D000", "createdb"}},
		{"no such role", postgresAs(t, db, "stranger"), []string{"migrate", "status"}, []string{"28000", "pg_hba.conf"}},
		{"unknown parameter", db + "&sail=2", []string{"migrate", "status"}, []string{"42704", "parameter in the URL"}},
		{"no schema, status", db, []string{"migrate", "status"}, []string{"pending"}},
		{"no schema, api", db, []string{"api", redis}, []string{"(FLASHSALE_DB)", "older than this program, or it is empty", "flashsale migrate up"}},
		{"no schema, worker", db, []string{"worker", redis}, []string{"(FLASHSALE_DB)", "older than this program, or it is empty", "flashsale migrate up"}},
		{"no schema, doctor", db, []string{"doctor"}, []string{"older than this program, or it is empty", "flashsale migrate up"}},
	} {
		t.Run(q.name, func(t *testing.T) { wantCode(t, 1, on(t, q.db, q.args...), q.words...) })
	}
}

// For a role without rights, the errors name the page that lists which to grant.
func TestPostgres_Rights(t *testing.T) {
	needProcesses(t)
	db := postgrestest.NewDatabase(t)
	const name = "clerk" // roles belong to the server, and no other test creates this one
	psql(t, db, "CREATE ROLE "+name+" LOGIN", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	role := postgresAs(t, db, name)
	wantCode(t, 1, on(t, role, "migrate", "up"), "42501", "docs/postgres.md")
	wantCode(t, 0, on(t, db, "migrate", "up"), "applied 2")
	wantCode(t, 1, on(t, role, "doctor"), "its schema cannot be read", "docs/postgres.md")
	psql(t, db, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+name)
	wantCode(t, 1, on(t, role, "doctor"), "may not read and change the rows of audit, buyers", "docs/postgres.md")
	psql(t, db, "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+name)
	if r := on(t, role, "doctor"); !strings.Contains(r.Output, "schema is up to date") {
		t.Errorf("with all rights:\n%s", r.Output)
	}
	psql(t, db, "DROP OWNED BY "+name, "DROP ROLE "+name)
}

// TestPostgres_ReadOnly: if transactions are read-only by default, no process starts, and the doctor names the setting.
func TestPostgres_ReadOnly(t *testing.T) {
	needProcesses(t)
	db := postgrestest.NewDatabase(t)
	wantCode(t, 0, on(t, db, "migrate", "up"), "applied 2")
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	psql(t, db, "ALTER DATABASE "+strings.TrimPrefix(u.Path, "/")+" SET default_transaction_read_only = on")
	wantCode(t, 1, on(t, db, "doctor"), "read-only by default", "default_transaction_read_only = off")
	redis := "--redis=redis://" + process.FreeAddr(t) + "/0"
	wantCode(t, 1, on(t, db, "worker", redis), "(FLASHSALE_DB)", "read-only by default", "default_transaction_read_only = off")
}

// TestPostgres_Migrate migrates up, down and up again.
func TestPostgres_Migrate(t *testing.T) {
	needProcesses(t)
	db := postgrestest.NewDatabase(t)
	wantCode(t, 0, on(t, db, "migrate", "up"), "applied 2")
	wantCode(t, 0, on(t, db, "migrate", "up"), "nothing to apply")
	wantCode(t, 0, on(t, db, "migrate", "status"), "applied")
	wantCode(t, 0, on(t, db, "migrate", "down", "--yes"), "undone 1")
	wantCode(t, 1, on(t, db, "migrate", "status"), "pending")
	wantCode(t, 0, on(t, db, "migrate", "down", "--yes"), "undone 1")
	wantCode(t, 0, on(t, db, "migrate", "down", "--yes"), "nothing to undo")
	wantCode(t, 0, on(t, db, "migrate", "up"), "applied 2")
}

// A process with the embedded engine has the database to itself; those with a Redis share it.
func TestPostgres_OneEmbeddedEngine(t *testing.T) {
	needProcesses(t)
	db := postgrestest.NewDatabase(t)
	const taken = "another process serves this database"
	alone := newShop(t).serve("--db", db)
	wantBanner(t, alone.Log(), "shop dashboard api docs metrics database engine")
	wantCode(t, 1, on(t, db, "serve", "--addr", "127.0.0.1:0", "--ops-addr", ""), taken, "FLASHSALE_DB")
	s := newRedisShop(t)
	refused := process.Run(t, s.spec("api", []string{"--db", db, "--addr", "127.0.0.1:0", "--ops-addr", ""}))
	wantCode(t, 1, refused, taken, "embedded Redis")
	term(t, alone)
	api := s.api("--db", db)
	worker := s.worker("--db", db)
	wantCode(t, 1, on(t, db, "serve", "--addr", "127.0.0.1:0", "--ops-addr", ""), taken, "--redis")
	wantCode(t, 1, on(t, db, "migrate", "down", "--yes"), taken, "stop every flashsale api, worker and serve of it")
	term(t, api)
	term(t, worker)
	term(t, newShop(t).serve("--db", db))
}

// The start warns of settings that a 201 does not survive, and the system page shows them.
func TestPostgres_Durability(t *testing.T) {
	needProcesses(t)
	db := postgrestest.NewDatabase(t)
	p := newShop(t).serve("--db", db+"&synchronous_commit=off")
	for _, want := range []string{"(fsync off)", "(synchronous_commit off)", "full_page_writes is off"} {
		if !strings.Contains(p.Log(), want) {
			t.Errorf("the start does not say %q:\n%s", want, p.Log())
		}
	}
	c := dial(t, p)
	if a := c.admin("GET", "/v1/admin/system", nil); !strings.Contains(a.Body, `"database":{"engine":"postgres","version":"`) ||
		!strings.Contains(a.Body, `"settings":{"fsync":"off","full_page_writes":"off","synchronous_commit":"off"}`) {
		t.Errorf("the system is %s", a.Body)
	}
	r := squeezed(on(t, db+"&synchronous_commit=off", "doctor"))
	wantCode(t, 1, r, "fix database Postgres syncs nothing (fsync off)", "warn database Postgres answers before it syncs (synchronous_commit off)", "warn database Postgres: full_page_writes is off", "ok clock")
	for line := range strings.Lines(p.Log()) {
		late := strings.Contains(line, "i/o timeout") || strings.Contains(line, "deadline exceeded") // a busy machine
		if strings.Contains(line, "failed, retrying") && !late {
			t.Errorf("something fails:\n%s", line)
		}
	}
}

// postgresProgram returns the path of a client program of Postgres.
func postgresProgram(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	all, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(all) == 0 {
		t.Skipf("skipped: %s is not installed; `make deps` installs it", name)
	}
	return all[len(all)-1]
}

// A dump can be restored with the commands of docs/backup.md. If Redis knows orders that the
// restored database lacks, their sale stops until the operator decides.
func TestPostgres_DumpAndRestore(t *testing.T) {
	needProcesses(t)
	dump, restore := postgresProgram(t, "pg_dump"), postgresProgram(t, "pg_restore")
	before, after := postgrestest.NewDatabase(t), postgrestest.NewDatabase(t)
	wantCode(t, 0, on(t, before, "migrate", "up"), "applied 2")
	s := newRedisShop(t)
	api, worker := s.api("--db", before), s.worker("--db", before)
	c := dial(t, api)
	item := s.newItem(c, 5, 1)
	only(t, []purchase{c.buy(item, "alice", "k")}, "201")
	file := filepath.Join(s.dir, "shop.dump")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	run(dump, "--format=custom", "--no-owner", "--file="+file, before)
	only(t, []purchase{c.buy(item, "bob", "k")}, "201")
	term(t, api)
	term(t, worker)
	run(restore, "--exit-on-error", "--single-transaction", "--no-owner", "--dbname="+after, file)
	s.worker("--db", after)
	spec := s.spec("api", []string{"--db", after})
	spec.ReadyPath = "/healthz" // it is not ready while its only sale is stopped
	c = dial(t, process.Start(t, spec))
	only(t, []purchase{c.buy(item, "carol", "k")}, "503 sale_stopped")
	redis := []string{"--redis", "redis://" + s.server.Addr() + "/0", "--data-dir", s.dir}
	wantCode(t, 1, on(t, after, append([]string{"doctor"}, redis...)...), "it is older than Redis", item)
	wantCode(t, 0, on(t, after, append([]string{"recover", "--from", "redis"}, redis...)...), "sales recovered: 1;", item)
	again := c.settle(item, c.buy(item, "bob", "k", untilCommitted...))
	if again.Status != 201 && again.Status != 200 {
		t.Errorf("the recovered order: %s", again.verdict())
	}
}
