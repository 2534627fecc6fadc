package migrations

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver of the dialect "sqlite"

	"flashsale/internal/testing/await"
)

func openFile(t *testing.T, path, params string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+params)
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

func newMigrator(t *testing.T, db *sql.DB) *Migrator {
	t.Helper()
	m, err := New(db, "sqlite")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// schema lists the statements of the database's schema.
func schema(t *testing.T, db *sql.DB) []string {
	t.Helper()
	rows, err := db.QueryContext(await.Context(t), "SELECT name || ': ' || COALESCE(sql, '') FROM sqlite_master ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		out = append(out, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// tables are the names of our tables in the schema.
func tables(t *testing.T, db *sql.DB) []string {
	t.Helper()
	var out []string
	for _, line := range schema(t, db) {
		name, text, _ := strings.Cut(line, ": ")
		if strings.HasPrefix(text, "CREATE TABLE") && !strings.HasPrefix(name, "goose") && !strings.HasPrefix(name, "sqlite_") {
			out = append(out, name)
		}
	}
	return out
}

func wantStatus(t *testing.T, m *Migrator, applied bool) {
	t.Helper()
	steps, err := m.Status(await.Context(t))
	if err != nil || len(steps) == 0 {
		t.Fatalf("status %v, %v", steps, err)
	}
	last := int64(0)
	for _, s := range steps {
		if s.Applied != applied || s.Version <= last || s.Name == "" {
			t.Errorf("step %+v, want a version above %d, applied %v", s, last, applied)
		}
		last = s.Version
	}
}

func TestMigrator_UpDownUp(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"), "")
	m := newMigrator(t, db)
	steps, err := m.Status(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, m, false)
	var made int
	if err := db.QueryRowContext(await.Context(t), "SELECT COUNT(*) FROM sqlite_master").Scan(&made); err != nil || made != 0 {
		t.Errorf("the status made %d tables, %v", made, err)
	}
	n, err := m.Up(await.Context(t))
	if err != nil || n != len(steps) {
		t.Fatalf("up applied %d, %v, want %d", n, err, len(steps))
	}
	wantStatus(t, m, true)
	first := schema(t, db)
	if got := tables(t, db); !slices.Equal(got, []string{"audit", "buyers", "items", "meta", "orders", "payments", "releases", "stock_changes", "webhook_deliveries", "webhook_endpoints", "webhook_events"}) {
		t.Errorf("tables %v", got)
	}
	if n, err := m.Up(await.Context(t)); err != nil || n != 0 {
		t.Errorf("a second up applied %d, %v", n, err)
	}
	for range steps {
		if done, err := m.Down(await.Context(t)); err != nil || !done {
			t.Fatalf("down: %v, %v", done, err)
		}
	}
	if got := tables(t, db); len(got) != 0 {
		t.Errorf("tables %v are left after going down", got)
	}
	wantStatus(t, m, false)
	if done, err := m.Down(await.Context(t)); err != nil || done {
		t.Errorf("down with nothing to undo: %v, %v", done, err)
	}
	if n, err := m.Up(await.Context(t)); err != nil || n != len(steps) {
		t.Fatalf("up again applied %d, %v", n, err)
	}
	if again := schema(t, db); !slices.Equal(first, again) {
		t.Errorf("the schema after up, down, up is\n%s\nand was\n%s", strings.Join(again, "\n"), strings.Join(first, "\n"))
	}
	// The epoch is a time, so that it differs from that of any other database.
	var epoch int64
	if err := db.QueryRowContext(await.Context(t), "SELECT value FROM meta WHERE key = 'epoch'").Scan(&epoch); err != nil {
		t.Fatal(err)
	}
	if since := time.Since(time.Unix(epoch, 0)); since < -time.Second || since > time.Hour {
		t.Errorf("the first epoch is %d, want the time of the migration", epoch)
	}
}

func TestMigrator_Check(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"), "")
	m := newMigrator(t, db)
	if err := m.Check(await.Context(t)); !errors.Is(err, ErrPending) {
		t.Errorf("empty database: %v, want ErrPending", err)
	}
	if _, err := m.Up(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(await.Context(t)); err != nil {
		t.Errorf("migrated database: %v", err)
	}
	if _, err := m.Down(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(await.Context(t)); !errors.Is(err, ErrPending) {
		t.Errorf("database a step behind: %v, want ErrPending", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(await.Context(t)); err == nil || errors.Is(err, ErrPending) {
		t.Errorf("closed database: %v, want its error", err)
	}
}

// TestMigrator_Check_WritesNothing compares the file's bytes: a process that only checks may
// have no write permission.
func TestMigrator_Check_WritesNothing(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, path string){
		"Empty": func(t *testing.T, path string) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"ForeignTables": func(t *testing.T, path string) {
			db := openFile(t, path, "")
			if _, err := db.ExecContext(await.Context(t), "CREATE TABLE mine (x)"); err != nil {
				t.Fatal(err)
			}
		},
		"Migrated": func(t *testing.T, path string) {
			if _, err := newMigrator(t, openFile(t, path, "")).Up(await.Context(t)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "shop.db")
			prepare(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]error{"Empty": ErrPending, "ForeignTables": ErrForeign}[name]
			for _, params := range []string{"", "?mode=ro"} {
				db := openFile(t, path, params)
				if err := newMigrator(t, db).Check(await.Context(t)); !errors.Is(err, want) {
					t.Errorf("check with %q: %v, want %v", params, err, want)
				}
			}
			after, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(before, after) {
				t.Errorf("Check changed the file: %d bytes before, %d after", len(before), len(after))
			}
			files, err := os.ReadDir(dir)
			if err != nil || len(files) != 1 {
				t.Errorf("files beside the database: %v, %v", files, err)
			}
		})
	}
}

func TestMigrator_Up_Fails(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"), "")
	// A view already has one of our names.
	if _, err := db.ExecContext(await.Context(t), "CREATE VIEW orders AS SELECT 1 AS x"); err != nil {
		t.Fatal(err)
	}
	m := newMigrator(t, db)
	if n, err := m.Up(await.Context(t)); err == nil || n != 0 {
		t.Errorf("up onto a foreign view: %d, %v, want an error", n, err)
	}
	// A step is applied completely or not at all.
	if got := tables(t, db); len(got) != 0 {
		t.Errorf("a failed step left the tables %v", got)
	}
	wantStatus(t, m, false)
	if err := m.Check(await.Context(t)); !errors.Is(err, ErrPending) {
		t.Errorf("check: %v, want ErrPending", err)
	}
}

func TestNew_UnknownDialect(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"", "mysql", "SQLite", "Postgres", "../sqlite"} {
		if m, err := New(nil, dialect); err == nil {
			t.Errorf("dialect %q: %v, want an error", dialect, m)
		}
	}
}

// A database with orders keeps them when it is migrated one step up and down.
func TestMigrator_KeepsRows(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"), "")
	m := newMigrator(t, db)
	steps, err := m.Up(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	for range steps - 1 {
		if done, err := m.Down(await.Context(t)); err != nil || !done {
			t.Fatalf("down: %v, %v", done, err)
		}
	}
	_, err = db.ExecContext(await.Context(t), `INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency,
		status, idempotency_key, created_at, expires_at) VALUES ('o', 'i', 'u', 1, 1, 'EUR', 'confirmed', 'k', 1, 2)`)
	if err != nil {
		t.Fatal(err)
	}
	there := func() {
		t.Helper()
		var n int
		err := db.QueryRowContext(await.Context(t), "SELECT COUNT(*) FROM orders WHERE id = 'o' AND status = 'confirmed' AND expires_at = 2").Scan(&n)
		if err != nil || n != 1 {
			t.Errorf("%d rows, %v", n, err)
		}
	}
	if n, err := m.Up(await.Context(t)); err != nil || n != steps-1 {
		t.Fatalf("up applied %d, %v, want %d", n, err, steps-1)
	}
	there()
	if done, err := m.Down(await.Context(t)); err != nil || !done {
		t.Fatalf("down: %v, %v", done, err)
	}
	there()
}

// TestVersion migrates the database down step by step, and leaves a database that was never
// migrated unchanged.
func TestVersion(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"), "")
	want := func(version int64) {
		t.Helper()
		if got, err := Version(await.Context(t), db, "sqlite"); err != nil || got != version {
			t.Errorf("version %d, error %v, want %d", got, err, version)
		}
	}
	want(0)
	if got := schema(t, db); len(got) != 0 {
		t.Errorf("asking for the version created %q", got)
	}
	m := newMigrator(t, db)
	if _, err := m.Up(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	latest, err := Latest("sqlite")
	if err != nil || latest < 1 {
		t.Fatalf("latest %d, error %v", latest, err)
	}
	for v := latest; v > 0; v-- {
		want(v)
		if _, err := m.Down(await.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	want(0)
}

// testDatabase is a database with its migrator, for tests that migrate it up and down.
type testDatabase struct {
	t       *testing.T
	db      *sql.DB
	dialect string
	*Migrator
}

// openDatabase returns an empty database. query has the parameters of its address.
func openDatabase(t *testing.T, query string) *testDatabase {
	t.Helper()
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"), query)
	return &testDatabase{t: t, db: db, dialect: "sqlite", Migrator: newMigrator(t, db)}
}

func (d *testDatabase) exec(statement string) error {
	_, err := d.db.ExecContext(await.Context(d.t), statement)
	return err
}

func (d *testDatabase) must(statement string) {
	d.t.Helper()
	if err := d.exec(statement); err != nil {
		d.t.Fatalf("%s: %v", statement, err)
	}
}

// lines returns the rows of a query with one text column.
func (d *testDatabase) lines(query string) (out []string) {
	d.t.Helper()
	rows, err := d.db.QueryContext(await.Context(d.t), query)
	if err != nil {
		d.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			d.t.Fatal(err)
		}
		out = append(out, line)
	}
	if err := rows.Err(); err != nil {
		d.t.Fatal(err)
	}
	return out
}

func (d *testDatabase) wantLines(query string, want ...string) {
	d.t.Helper()
	if got := d.lines(query); !slices.Equal(got, want) {
		d.t.Errorf("%s:\n%q, want\n%q", query, got, want)
	}
}

func (d *testDatabase) up() {
	d.t.Helper()
	if n, err := d.Up(await.Context(d.t)); err != nil || n < 1 {
		d.t.Fatalf("up: %d, %v", n, err)
	}
}

// downBelow undoes the migrations from the newest to the given one.
func (d *testDatabase) downBelow(version int64) {
	d.t.Helper()
	ctx := await.Context(d.t)
	for {
		if done, err := d.Down(ctx); err != nil || !done {
			d.t.Fatalf("down: %v, %v", done, err)
		}
		current, err := Version(ctx, d.db, d.dialect)
		if err != nil {
			d.t.Fatal(err)
		}
		if current < version {
			return
		}
	}
}

// paymentsStep is the migration that gave payments their ids, and allowed refunds.
const paymentsStep = 6

// withPayments returns a database before paymentsStep, with the paid orders a, b and c
// and three payments.
func withPayments(t *testing.T) *testDatabase {
	t.Helper()
	d := openDatabase(t, "")
	d.up()
	d.downBelow(paymentsStep)
	const order = `INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at, closed_at)
		VALUES ('%', 'i', 'u', 1, 1, 'EUR', 'paid', '%', 1, 5)`
	for _, id := range []string{"a", "b", "c"} {
		d.must(strings.ReplaceAll(order, "%", id))
	}
	d.must(`INSERT INTO payments VALUES ('r3', 'a', 1, 'EUR', 'paid', 30), ('r1', 'b', 2, 'EUR', 'late', 10), ('r2', 'a', 3, 'EUR', 'duplicate', 20)`)
	return d
}

const addMismatch = "INSERT INTO payments (order_id, reference, amount_minor, currency, received_as, outcome, received_at) VALUES ('b', 'r4', 9, 'EUR', 'mismatch', 'mismatch', 50)"

// Amounts that were recorded before they had ids keep their meaning up and down.
func TestMigrator_Payments_KeepTheirMeaning(t *testing.T) {
	t.Parallel()
	d := withPayments(t)
	d.up()
	d.wantLines(`SELECT id || ' ' || reference || ' ' || order_id || ' ' || amount_minor || currency || ' ' || received_as || ' ' || outcome || ' ' || received_at || ' ' || refunded_at FROM payments ORDER BY id`,
		"1 r1 b 2EUR late late 10 0", "2 r2 a 3EUR duplicate duplicate 20 0", "3 r3 a 1EUR accepted accepted 30 0")
	d.must("UPDATE payments SET outcome = 'refunded', refunded_at = 40 WHERE id IN (2, 3)")
	d.must(addMismatch)
	for _, wrong := range []string{
		"UPDATE payments SET outcome = 'late' WHERE id = 2", "UPDATE payments SET refunded_at = 1 WHERE id = 1",
		"INSERT INTO payments (order_id, reference, amount_minor, currency, received_as, outcome, received_at) VALUES ('a', 'r5', 9, 'EUR', 'accepted', 'accepted', 50)",
	} {
		if d.exec(wrong) == nil {
			t.Errorf("the schema allows %s", wrong)
		}
	}
	d.wantLines("PRAGMA integrity_check", "ok")
	d.downBelow(paymentsStep)
	d.wantLines("SELECT reference || ' ' || outcome FROM payments ORDER BY 1", "r1 late", "r2 duplicate", "r3 paid", "r4 late")
	d.wantLines("PRAGMA integrity_check", "ok")
}

// Orders can be refunded after the step, but not before it. Going down, a refunded order keeps
// the state that matches its units.
func TestMigrator_Payments_AllowRefunds(t *testing.T) {
	t.Parallel()
	d := withPayments(t)
	if d.exec("UPDATE orders SET status = 'refunded'") == nil {
		t.Error("the older schema allows refunds")
	}
	d.up()
	d.must("UPDATE orders SET status = 'refunded', restocked = id = 'b' WHERE id IN ('a', 'b')")
	d.must("UPDATE payments SET outcome = 'refunded', refunded_at = 40 WHERE id IN (2, 3)")
	d.must(addMismatch)
	if d.exec("UPDATE orders SET status = 'lost'") == nil {
		t.Error("the schema allows a state that does not exist")
	}
	d.wantLines("PRAGMA integrity_check", "ok")
	d.downBelow(paymentsStep)
	d.wantLines("SELECT id || ' ' || status || ' ' || closed_at FROM orders ORDER BY id", "a paid 0", "b cancelled 5", "c paid 5")
	if d.exec("UPDATE orders SET status = 'refunded'") == nil {
		t.Error("the older schema allows refunds after going down")
	}
	d.wantLines("PRAGMA integrity_check", "ok")
}

// Two databases have different lineages, also if they are created in the same second. A database
// keeps its own, whatever steps are undone and made again.
func TestMigrator_Lineage(t *testing.T) {
	t.Parallel()
	d, other := openDatabase(t, ""), openDatabase(t, "")
	first := d.lineage()
	if got := other.lineage(); got == first {
		t.Errorf("two databases have the lineage %s", got)
	}
	d.downBelow(5)
	if again := d.lineage(); again != first {
		t.Errorf("lineage %s after the step was made again, want %s", again, first)
	}
}

// A database from before databases had a lineage gets the time at which it was created, which its
// backups share.
func TestMigrator_Lineage_Old(t *testing.T) {
	t.Parallel()
	d := openDatabase(t, "")
	d.up()
	for created, want := range map[string]string{"2001-02-03 04:05:06": "981173106", "2001-02-03 04:05:07": "981173107"} {
		d.downBelow(5)
		d.must("DELETE FROM meta WHERE key = 'lineage'")
		d.must("UPDATE goose_db_version SET tstamp = '" + created + "' WHERE version_id = 1")
		if got := d.lineage(); got != want {
			t.Errorf("lineage of a database of %s: %s, want %s", created, got, want)
		}
	}
}

// lineage migrates the database up, and returns its lineage.
func (d *testDatabase) lineage() string {
	d.t.Helper()
	d.up()
	found := d.lines("SELECT value FROM meta WHERE key = 'lineage'")
	if len(found) != 1 {
		d.t.Fatalf("lineages %q, want one", found)
	}
	return found[0]
}
