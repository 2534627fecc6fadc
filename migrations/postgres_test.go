package migrations

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pressly/goose/v3/lock"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
)

// everything lists what the schema of a Postgres database consists of.
const everything = `SELECT kind || ' ' || name FROM (
		SELECT 'relation' AS kind, relname || ' ' || CAST(relkind AS TEXT) || ' ' || COALESCE(array_to_string(reloptions, ' '), '') AS name
		FROM pg_class WHERE relnamespace = current_schema()::regnamespace
		UNION ALL SELECT 'function', p.oid::regprocedure || ' ' || pg_get_functiondef(p.oid)
		FROM pg_proc p WHERE pronamespace = current_schema()::regnamespace
		UNION ALL SELECT 'trigger', pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
		WHERE c.relnamespace = current_schema()::regnamespace
	) all_of_it WHERE name NOT LIKE 'goose%' ORDER BY kind, name`

func TestPostgres_UpDownUp(t *testing.T) {
	t.Parallel()
	d := openPostgres(t)
	if steps, err := d.Status(await.Context(t)); err != nil || len(steps) == 0 || steps[0].Applied {
		t.Errorf("status %+v, %v", steps, err)
	}
	d.wantLines("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
	d.up()
	first, meta := d.lines(everything), d.lines("SELECT key || value FROM meta WHERE key = 'lineage'")
	if n, err := d.Up(await.Context(t)); err != nil || n != 0 {
		t.Errorf("a second up applied %d, %v", n, err)
	}
	d.downBelow(1)
	d.wantLines(everything)
	if done, err := d.Down(await.Context(t)); err != nil || done {
		t.Errorf("down with nothing to undo: %v, %v", done, err)
	}
	d.up()
	if again := d.lines(everything); !slices.Equal(first, again) {
		t.Errorf("the schema after up, down, up is\n%s\nand was\n%s", strings.Join(again, "\n"), strings.Join(first, "\n"))
	}
	if again := d.lines("SELECT key || value FROM meta WHERE key = 'lineage'"); len(again) != 1 || slices.Equal(meta, again) {
		t.Errorf("lineage %q is that of the dropped database, %q", again, meta)
	}
	// The epoch is a time, so that it differs from that of any other database.
	var epoch int64
	if err := d.db.QueryRowContext(await.Context(t), "SELECT CAST(value AS BIGINT) FROM meta WHERE key = 'epoch'").Scan(&epoch); err != nil {
		t.Fatal(err)
	}
	if since := time.Since(time.Unix(epoch, 0)); since < -time.Second || since > time.Hour {
		t.Errorf("the first epoch is %d, want the time of the migration", epoch)
	}
}

// A step is applied completely or not at all.
func TestPostgres_Up_Fails(t *testing.T) {
	t.Parallel()
	d := openPostgres(t)
	d.must("CREATE VIEW webhook_deliveries AS SELECT 1 AS x") // the name of the last table of the schema
	if n, err := d.Up(await.Context(t)); err == nil || n != 0 {
		t.Errorf("up onto a foreign view: %d, %v, want an error", n, err)
	}
	d.wantLines("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename NOT LIKE 'goose%'")
	if err := d.Check(await.Context(t)); !errors.Is(err, ErrPending) {
		t.Errorf("check: %v, want ErrPending", err)
	}
}

// A process that may not write can check a database.
func TestPostgres_Check_WritesNothing(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewDatabase(t)
	reader := openURL(t, withParameter(url, "default_transaction_read_only=on"))
	ctx := await.Context(t)
	want := func(check error) {
		t.Helper()
		if err := reader.Check(ctx); !errors.Is(err, check) {
			t.Errorf("check: %v, want %v", err, check)
		}
		steps, err := reader.Status(ctx)
		if err != nil || len(steps) == 0 || steps[0].Applied != (check == nil) {
			t.Errorf("status %+v, %v", steps, err)
		}
		if _, err := Version(ctx, reader.db, "postgres"); err != nil {
			t.Error(err)
		}
	}
	want(ErrPending)
	openURL(t, url).up()
	want(nil)
	if done, err := reader.Down(ctx); err == nil || done {
		t.Errorf("down without permission: %v, %v", done, err)
	}
}

func withParameter(url, parameter string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameter
	}
	return url + "?" + parameter
}

// readItems begins a transaction that reads the table of the items, and returns what ends it.
func readItems(t *testing.T, db *sql.DB) (end func()) {
	t.Helper()
	read, err := db.BeginTx(await.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read.ExecContext(await.Context(t), "SELECT 1 FROM items"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := read.Rollback(); err != nil {
			t.Error(err)
		}
	}
}

// While a long read, such as that of pg_dump, uses a table that a migration changes, other
// processes can use the table, and the migration is applied after the read. It must not wait at the
// head of the table's queue, because all purchases would wait behind it.
func TestPostgres_Up_BesideLongRead(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewDatabase(t)
	d, other := openURL(t, url), openURL(t, url)
	d.up()
	d.downBelow(bucketsVersion)
	d.patience = patience{wait: 10 * time.Millisecond, pause: time.Millisecond, tries: 1 << 30}
	waits, ctx := make(chan struct{}), await.Context(t)
	d.Waiting = func() {
		select {
		case waits <- struct{}{}:
		case <-ctx.Done():
		}
	}
	endRead := readItems(t, other.db)
	type result struct {
		n   int
		err error
	}
	ended := make(chan result, 1)
	go func() {
		n, err := d.Up(ctx)
		ended <- result{n, err}
	}()
	for range 2 {
		select {
		case <-waits:
		case r := <-ended:
			t.Fatalf("up beside the read: %d, %v", r.n, r.err)
		case <-ctx.Done():
			t.Fatal("the migration keeps its place in the queue of the table")
		}
		other.must("UPDATE items SET sold = sold")
	}
	endRead()
	for {
		select {
		case <-waits: // it had waited before the read ended
			continue
		case r := <-ended:
			if r.n != 1 || r.err != nil {
				t.Errorf("up: %d, %v", r.n, r.err)
			}
		case <-ctx.Done():
			t.Fatal("the migration does not end")
		}
		break
	}
	d.wantLines("SHOW lock_timeout", "0")
}

// A migration that cannot lock a table gives up, names the cause, and has changed nothing.
func TestPostgres_Up_ErrInUse(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewDatabase(t)
	d, other := openURL(t, url), openURL(t, url)
	d.up()
	d.downBelow(bucketsVersion)
	d.patience = patience{wait: time.Millisecond, pause: time.Millisecond, tries: 3}
	waits := 0
	d.Waiting = func() { waits++ }
	defer readItems(t, other.db)()
	if n, err := d.Up(await.Context(t)); n != 0 || !errors.Is(err, ErrInUse) || waits != 2 {
		t.Errorf("up: %d, %v after %d waits; want ErrInUse after 2", n, err, waits)
	}
	if err := d.Check(await.Context(t)); !errors.Is(err, ErrPending) {
		t.Errorf("check: %v, want ErrPending", err)
	}
}

// Processes that migrate a database concurrently wait for each other: one applies the steps,
// and all others try to while it is not done.
func TestPostgres_Up_Concurrent(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewDatabase(t)
	steps, err := openURL(t, url).Status(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	watching := openURL(t, url)
	holding, err := watching.db.BeginTx(await.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	// The process waits in the middle of its step.
	if _, err := holding.ExecContext(await.Context(t), "CREATE TABLE webhook_deliveries (x BIGINT)"); err != nil {
		t.Fatal(err)
	}
	var (
		mu      sync.Mutex
		applied []int
		group   sync.WaitGroup
	)
	for range 4 {
		d := openURL(t, url)
		group.Go(func() {
			n, err := d.Up(await.Context(t))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			applied = append(applied, n)
		})
	}
	await.True(t, "all processes wait", func() bool {
		const waiting = `SELECT CAST(COUNT(*) AS TEXT) FROM pg_stat_activity WHERE datname = current_database()
			AND (wait_event_type = 'Lock' OR query LIKE 'SELECT pg_try_advisory_lock%')`
		return watching.lines(waiting)[0] == "4"
	})
	if err := holding.Rollback(); err != nil {
		t.Error(err)
	}
	group.Wait()
	slices.Sort(applied)
	if !slices.Equal(applied, []int{0, 0, 0, len(steps)}) {
		t.Errorf("the processes applied %v steps, want %d once", applied, len(steps))
	}
}

// While a process migrates a database, the others can ask for its state, and start if nothing is
// pending.
func TestPostgres_Up_WaitsForNobody(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewDatabase(t)
	migrates, other := openURL(t, url), openURL(t, url)
	migrates.up()
	migrates.db.SetMaxOpenConns(1) // the lock belongs to a connection
	migrates.must(fmt.Sprintf("SELECT pg_advisory_lock(%d)", lock.DefaultLockID))
	ctx := await.Context(t)
	if n, err := other.Up(ctx); err != nil || n != 0 {
		t.Errorf("up: %d, %v", n, err)
	}
	if err := other.Check(ctx); err != nil {
		t.Errorf("check: %v", err)
	}
	if steps, err := other.Status(ctx); err != nil || !steps[0].Applied {
		t.Errorf("status %+v, %v", steps, err)
	}
}

// Two shops can share a database, each with a schema of its own.
func TestPostgres_SearchPath(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewDatabase(t)
	openURL(t, url).must("CREATE SCHEMA other")
	main, other := openURL(t, url), openURL(t, withParameter(url, "search_path=other"))
	main.up()
	if err := other.Check(await.Context(t)); !errors.Is(err, ErrPending) {
		t.Errorf("check of the other schema: %v, want ErrPending", err)
	}
	other.up()
	other.wantLines(postgresColumns, main.lines(postgresColumns)...)
	other.wantLines(postgresIndexes, main.lines(postgresIndexes)...)
	main.downBelow(1)
	main.wantLines(everything)
	addItems(other)
	other.must("UPDATE items SET sold = max(sold, 1)")
}

// The functions of SQLite that Postgres gets return what they return in SQLite.
func TestDialects_SameFunctions(t *testing.T) {
	t.Parallel()
	lite, pg := openBoth(t)
	pg.up()
	for _, c := range []struct{ query, argument string }{
		{"SELECT key || ' ' || value FROM json_each(%s) ORDER BY key", `["a","",3,-9007199254740993,"é\"\\\n",["b",1],{"x":[2]}]`},
		{"SELECT key || ' ' || value FROM json_each(%s) ORDER BY key", `[]`},
		{"SELECT json_extract(%s, '$[1]')", `["a","b"]`},
		{"SELECT json_extract(%s, '$[10]')", `["a",1,2,3,4,5,6,7,8,9,"c"]`},
		{"SELECT COALESCE(json_extract(%s, '$[2]'), 'none')", `["a","b"]`},
		{"SELECT COALESCE(json_extract(%s, '$.b'), 'none')", `{"a":1,"b":null}`},
		{"SELECT CAST(json_extract(%s, '$.per_user_limit') AS TEXT)", `{"a":1,"per_user_limit":9007199254740993}`},
		{"SELECT json_extract(%s, '$.a.b[1].c')", `{"a":{"b":[0,{"c":"x"}]}}`},
		{"SELECT CAST(instr(%s, 'é') AS TEXT)", "aéé"},
		{"SELECT CAST(instr(%s, '%%') AS TEXT)", "a%"},
		{"SELECT CAST(instr(%s, 'x') AS TEXT)", "abc"},
		{"SELECT CAST(instr(%s, '') AS TEXT)", "abc"},
		{"SELECT CAST(max(length(%s), 7) AS TEXT)", "abc"},
		{"SELECT CAST(max(length(%s), -7) AS TEXT)", "abc"},
		{"SELECT CAST(min(length(%s), 7) AS TEXT)", "abc"},
		{"SELECT CAST(min(length(%s), -7) AS TEXT)", "abc"},
	} {
		query := fmt.Sprintf(c.query, "'"+strings.ReplaceAll(c.argument, "'", "''")+"'")
		if a, b := lite.lines(query), pg.lines(query); !slices.Equal(a, b) {
			t.Errorf("%s: %q in SQLite, %q in Postgres", query, a, b)
		}
	}
}

// The functions cost nothing: a parameter without a type selects them, and the planner replaces
// them by their bodies, so that a list of ids is looked up in an index.
func TestPostgres_Functions_Inlined(t *testing.T) {
	t.Parallel()
	d := openPostgres(t)
	d.up()
	d.must(`INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at)
		SELECT 'o' || g, 'i', 'u', 1, 1, 'EUR', 'paid', 'k' || g, 1 FROM generate_series(1, 20000) g`)
	d.must("ANALYZE orders")
	d.db.SetMaxOpenConns(1) // prepared statements and settings belong to a connection
	for i, c := range []struct{ statement, arguments, types, index string }{
		{"SELECT * FROM orders WHERE orders.id IN (SELECT value FROM json_each($1))", `'["o5"]'`, "{text}", "orders_pkey"},
		{"SELECT o.id FROM json_each($1) k JOIN orders o ON o.item_id = $2 AND o.user_id = json_extract(k.value, '$[0]') AND o.idempotency_key = json_extract(k.value, '$[1]')",
			`'[["u","k"]]', 'i'`, "{text,text}", "orders_idempotency"},
		{"UPDATE items SET sequence = MAX(sequence, $1), opens_at = MIN(opens_at, $2) WHERE id = $3", "1, 2, 'i'", "{bigint,bigint,text}", "items_pkey"},
		{"SELECT id FROM orders WHERE id = json_extract($1, $2) AND instr(user_id, $3) > 0", `'["o5"]', '$[0]', 'u'`, "{text,text,text}", "orders_pkey"},
	} {
		name := fmt.Sprintf("q%d", i)
		d.must("PREPARE " + name + " AS " + c.statement)
		d.wantLines("SELECT CAST(parameter_types AS TEXT) FROM pg_prepared_statements WHERE name = '"+name+"'", c.types)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			d.must("SET plan_cache_mode = " + mode)
			plan := strings.Join(d.lines("EXPLAIN (VERBOSE, COSTS OFF) EXECUTE "+name+"("+c.arguments+")"), "\n")
			for _, function := range []string{"json_each(", "json_extract(", "instr(", "max(", "min("} {
				if strings.Contains(plan, function) {
					t.Errorf("%s: %s is called:\n%s", c.statement, function, plan)
				}
			}
			if !strings.Contains(plan, "using "+c.index) {
				t.Errorf("%s: index %s is not used:\n%s", c.statement, c.index, plan)
			}
		}
	}
}

// Postgres can read the functions that it prints, as a database restored from pg_dump does.
func TestPostgres_Functions_Printed(t *testing.T) {
	t.Parallel()
	d := openPostgres(t)
	d.up()
	printed := d.lines("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace")
	if len(printed) == 0 {
		t.Error("no functions")
	}
	for _, statement := range printed {
		d.must(statement)
	}
}

// The columns of items that every batch of orders changes are in no index, neither as a key
// nor in a condition: each index with one of them would grow with every batch.
func TestPostgres_HotColumns(t *testing.T) {
	t.Parallel()
	d := openPostgres(t)
	d.up()
	for table, columns := range map[string][]string{"items": {"sold", "sequence", "revision", "awaiting"}, "buyers": {"quantity"}} {
		got := d.lines(`SELECT DISTINCT a.attname FROM pg_index i JOIN pg_depend d ON d.objid = i.indexrelid AND d.refobjid = i.indrelid
			JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid WHERE i.indrelid = '` + table + `'::regclass`)
		for _, column := range columns {
			if slices.Contains(got, column) {
				t.Errorf("%s.%s is in an index", table, column)
			}
		}
		if table == "items" && !slices.Contains(got, "freed") {
			t.Errorf("the columns of indexes are %q, without those of conditions", got)
		}
	}
}
