package migrations

import (
	"database/sql"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
)

// openPostgres returns an empty database on the shared server.
func openPostgres(t *testing.T) *testDatabase {
	t.Helper()
	return openURL(t, postgrestest.NewDatabase(t))
}

func openURL(t *testing.T, url string) *testDatabase {
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
	m, err := New(db, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	return &testDatabase{t: t, db: db, dialect: "postgres", Migrator: m}
}

// openBoth returns an empty database of each dialect.
func openBoth(t *testing.T) (lite, pg *testDatabase) {
	t.Helper()
	return openDatabase(t, "?_synchronous=OFF"), openPostgres(t)
}

// wantSame compares what a query returns on each database.
func wantSame(t *testing.T, what string, lite, pg *testDatabase, onLite, onPg string) {
	t.Helper()
	a, b := lite.lines(onLite), pg.lines(onPg)
	if len(a) == 0 {
		t.Errorf("%s: none", what)
	}
	for _, line := range a {
		if !slices.Contains(b, line) {
			t.Errorf("%s: only SQLite has %q", what, line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			t.Errorf("%s: only Postgres has %q", what, line)
		}
	}
	if !t.Failed() && !slices.Equal(a, b) {
		t.Errorf("%s: in SQLite\n%q, in Postgres\n%q", what, a, b)
	}
}

// The catalogs of both dialects, one line for each column, key or name of an index. A flag and a
// number are both integers in SQLite. Text is compared byte by byte.
const (
	sqliteColumns = `SELECT m.name || '.' || c.name || ' ' || lower(c.type) || CASE WHEN c."notnull" OR c.pk THEN ' not null' ELSE '' END
		|| COALESCE(' default ' || c.dflt_value, '')
		FROM sqlite_schema m JOIN pragma_table_info(m.name) c
		WHERE m.type = 'table' AND m.name NOT LIKE 'goose%' AND m.name NOT LIKE 'sqlite%' ORDER BY m.name, c.cid`
	postgresColumns = `SELECT c.relname || '.' || a.attname || ' ' || CASE
			WHEN a.atttypid IN ('int2'::regtype, 'int8'::regtype) THEN 'integer'
			WHEN a.atttypid = 'text'::regtype AND l.collname = 'C' THEN 'text'
			ELSE format_type(a.atttypid, a.atttypmod) || COALESCE(' ' || l.collname, '') END
		|| CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
		|| COALESCE(' default ' || regexp_replace(pg_get_expr(d.adbin, d.adrelid), '::text$', ''), '')
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		LEFT JOIN pg_collation l ON l.oid = a.attcollation
		WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname NOT LIKE 'goose%'
		ORDER BY c.relname COLLATE "C", a.attnum`

	sqliteKeys = `SELECT line FROM (
			SELECT m.name || ' primary ' || group_concat(c.name, ',' ORDER BY c.pk) AS line
			FROM sqlite_schema m JOIN pragma_table_info(m.name) c ON c.pk > 0 WHERE m.type = 'table' GROUP BY m.name
			UNION ALL
			SELECT m.name || ' unique ' || (SELECT group_concat(c.name, ',' ORDER BY c.seqno) FROM pragma_index_info(i.name) c)
			FROM sqlite_schema m JOIN pragma_index_list(m.name) i ON i.origin = 'u' WHERE m.type = 'table'
		) WHERE line NOT LIKE 'goose%' ORDER BY line`
	postgresKeys = `SELECT line FROM (
			SELECT conrelid::regclass || CASE contype WHEN 'p' THEN ' primary ' ELSE ' unique ' END
				|| (SELECT string_agg(a.attname, ',' ORDER BY k.n) FROM unnest(conkey) WITH ORDINALITY k (attnum, n)
				JOIN pg_attribute a ON a.attrelid = conrelid AND a.attnum = k.attnum) AS line
			FROM pg_constraint WHERE connamespace = current_schema()::regnamespace AND contype IN ('p', 'u')
		) k WHERE line NOT LIKE 'goose%' ORDER BY line COLLATE "C"`

	sqliteIndexes   = `SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY name`
	postgresIndexes = `SELECT indexname FROM pg_indexes i WHERE schemaname = current_schema() AND tablename NOT LIKE 'goose%'
		AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conname = indexname) ORDER BY indexname COLLATE "C"`

	sqliteTriggers   = `SELECT name || ' on ' || tbl_name FROM sqlite_schema WHERE type = 'trigger' ORDER BY name`
	postgresTriggers = `SELECT tgname || ' on ' || tgrelid::regclass FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname COLLATE "C"`

	sqliteMeta   = `SELECT key FROM meta ORDER BY key`
	postgresMeta = sqliteMeta
)

// Both dialects have the same tables, columns, keys, indexes, triggers and first rows.
func TestDialects_SameSchema(t *testing.T) {
	t.Parallel()
	lite, pg := openBoth(t)
	lite.up()
	pg.up()
	wantSame(t, "columns", lite, pg, sqliteColumns, postgresColumns)
	wantSame(t, "keys", lite, pg, sqliteKeys, postgresKeys)
	wantSame(t, "indexes", lite, pg, sqliteIndexes, postgresIndexes)
	wantSame(t, "triggers", lite, pg, sqliteTriggers, postgresTriggers)
	wantSame(t, "rows of meta", lite, pg, sqliteMeta, postgresMeta)
}

// Postgres has the same indexes after each one is dropped and created by the statement of
// SQLite.
func TestDialects_SameIndexes(t *testing.T) {
	t.Parallel()
	lite, pg := openBoth(t)
	lite.up()
	pg.up()
	const definitions = `SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema() ORDER BY indexname`
	before := pg.lines(definitions)
	for _, statement := range lite.lines(`SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL`) {
		words := strings.Fields(strings.Replace(statement, " UNIQUE ", " ", 1)) // CREATE INDEX name …
		pg.must("DROP INDEX " + words[2])
		pg.must(statement)
	}
	for i, after := range pg.lines(definitions) {
		if before[i] != after {
			t.Errorf("Postgres has\n%s, SQLite\n%s", before[i], after)
		}
	}
}

// A step has the same number in both dialects, so that a number names one schema.
func TestDialects_SameNumbers(t *testing.T) {
	t.Parallel()
	numbers := func(dialect string) (out []string) {
		names, err := fs.Glob(files, dialect+"/*.sql")
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %q, %v", dialect, names, err)
		}
		for _, name := range names {
			number, _, _ := strings.Cut(path.Base(name), "_")
			out = append(out, number)
		}
		return out
	}
	lite, pg := numbers("sqlite"), numbers("postgres")
	first := slices.Index(lite, pg[0])
	if first < 0 || !slices.Equal(lite[first:], pg) {
		t.Errorf("the steps of SQLite are %q, those of Postgres %q", lite, pg)
	}
}

// Check, Status and Version say the same about both dialects.
func TestDialects_SameAnswers(t *testing.T) {
	t.Parallel()
	lite, pg := openBoth(t)
	ctx := await.Context(t)
	want := func(version int64, check error) {
		t.Helper()
		for _, d := range []*testDatabase{lite, pg} {
			if got, err := Version(ctx, d.db, d.dialect); err != nil || got != version {
				t.Errorf("%s: version %d, %v, want %d", d.dialect, got, err, version)
			}
			if err := d.Check(ctx); !errors.Is(err, check) {
				t.Errorf("%s: check: %v, want %v", d.dialect, err, check)
			}
			steps, err := d.Status(ctx)
			if err != nil || len(steps) == 0 {
				t.Fatalf("%s: status %v, %v", d.dialect, steps, err)
			}
			latest, err := Latest(d.dialect)
			if last := steps[len(steps)-1]; err != nil || last.Version != latest || last.Applied != (version == latest) {
				t.Errorf("%s: the last step is %+v, %v, want %d", d.dialect, last, err, latest)
			}
		}
	}
	want(0, ErrPending)
	lite.up()
	pg.up()
	latest, err := Latest("sqlite")
	if err != nil {
		t.Fatal(err)
	}
	want(latest, nil)
	for _, d := range []*testDatabase{lite, pg} {
		for done := true; done; {
			if done, err = d.Down(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	want(0, ErrPending)
}

// The schema of a newer version, and tables of another application, are neither used nor changed,
// by either dialect.
func TestDialects_SameRefusals(t *testing.T) {
	t.Parallel()
	const (
		table    = "CREATE TABLE mine (x INTEGER)"
		versions = "CREATE TABLE goose_db_version (id INTEGER, version_id BIGINT, is_applied BOOLEAN, tstamp TIMESTAMP)"
		newer    = "INSERT INTO goose_db_version (version_id, is_applied) VALUES (1000000, true)"
	)
	for name, c := range map[string]struct {
		shop       bool
		statements []string
		want       error
	}{
		"Newer":            {true, []string{newer}, ErrNewer},
		"Foreign":          {false, []string{table}, ErrForeign},
		"ForeignWithGoose": {false, []string{table, versions, newer}, ErrForeign},
		"OwnTables":        {true, []string{table}, nil}, // an operator may add some
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lite, pg := openBoth(t)
			for _, d := range []*testDatabase{lite, pg} {
				if c.shop {
					d.up()
				}
				for _, statement := range c.statements {
					d.must(statement)
				}
				ctx := await.Context(t)
				before := d.lines("SELECT name FROM (" + d.Migrator.dialect.tables + ") AS tables ORDER BY name")
				if err := d.Check(ctx); !errors.Is(err, c.want) {
					t.Errorf("%s: check: %v, want %v", d.dialect, err, c.want)
				}
				if n, err := d.Up(ctx); n != 0 || !errors.Is(err, c.want) {
					t.Errorf("%s: up: %d, %v, want %v", d.dialect, n, err, c.want)
				}
				if c.want != nil {
					if done, err := d.Down(ctx); done || !errors.Is(err, c.want) {
						t.Errorf("%s: down: %t, %v, want %v", d.dialect, done, err, c.want)
					}
				}
				d.wantLines("SELECT name FROM ("+d.Migrator.dialect.tables+") AS tables ORDER BY name", before...)
			}
		})
	}
}

// Each statement is allowed or refused by both dialects. Each allowed one is kept for those
// that follow.
func TestDialects_SameConditions(t *testing.T) {
	t.Parallel()
	lite, pg := openBoth(t)
	lite.up()
	pg.up()
	for _, c := range conditions {
		for _, d := range []*testDatabase{lite, pg} {
			if err := d.exec(c.statement); (err == nil) != c.allowed {
				t.Errorf("%s: %s: %v, want allowed %v", d.dialect, c.statement, err, c.allowed)
			}
		}
	}
}
