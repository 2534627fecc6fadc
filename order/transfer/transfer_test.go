package transfer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/postgres"
	"flashsale/order/transfer"
)

// fill gives a migrated SQLite file a shop with n orders of every state, and rows in every
// other table. The counts of items and buyers are those of the orders.
func fill(t *testing.T, path string, n int) {
	t.Helper()
	ordertest.NewFile(t, path)
	db := openFile(t, path)
	for _, statement := range []string{
		`INSERT INTO meta (key, value) VALUES ('partitions', '4')`,
		`WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 6)
			INSERT INTO items (id, name, description, price_minor, currency, initial, total, per_user_limit, opens_at, created_at, updated_at, sequence, revision, image_url)
			SELECT 'item-' || i, 'Thing é ' || i, 'a "quoted" ' || char(10) || 'text \N', 1999, 'EUR', 1000000, 1000005, 3, 1, 1, 1, i, 7 * i, '/images/' || i FROM n`,
		fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
			INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, reason, idempotency_key, created_at, confirmed_at, expires_at, paid_at, closed_at, payment_reference, restocked)
			SELECT printf('%%08x-0000-7000-8000-%%012x', i / 3, (i * 7919) %% 1000003), 'item-' || (i %% 6), CASE WHEN i %% 50 = 0 THEN 'erased-' || i ELSE 'buyer ü' || i END, 1 + i %% 3, 1999, 'EUR',
				CASE i %% 7 WHEN 0 THEN 'paid' WHEN 1 THEN 'cancelled' WHEN 2 THEN 'expired' WHEN 3 THEN 'rejected' WHEN 4 THEN 'refunded' ELSE 'confirmed' END,
				CASE WHEN i %% 7 = 3 THEN 'sold_out' ELSE '' END, 'key ' || i, 1000 + i, 2000 + i, (i %% 2) * (9000000000000 + i), 0, 0, '', (i %% 7 = 4) * (i %% 2) FROM n`, n),
		`INSERT INTO buyers (item_id, user_id, quantity) SELECT item_id, user_id,
			SUM(CASE WHEN status IN ('confirmed', 'paid') OR status = 'refunded' AND restocked = 0 THEN quantity ELSE 0 END) FROM orders GROUP BY item_id, user_id`,
		`UPDATE items SET sold = COALESCE((SELECT SUM(quantity) FROM buyers WHERE item_id = items.id), 0)`,
		`INSERT INTO payments (order_id, reference, amount_minor, currency, received_as, outcome, received_at, refunded_at)
			SELECT id, 'ref-' || id, 1999 * quantity, 'EUR', 'accepted', CASE status WHEN 'refunded' THEN 'refunded' ELSE 'accepted' END, 5, (status = 'refunded') * 6
			FROM orders WHERE status IN ('paid', 'refunded')`,
		`INSERT INTO releases (order_id, item_id, user_id, idempotency_key, quantity, created_at)
			SELECT id, item_id, user_id, idempotency_key, quantity, 1 FROM orders WHERE status = 'expired' LIMIT 20`,
		`INSERT INTO stock_changes (item_id, quantity, reason, actor, idempotency_key, total_after, at) SELECT id, 5, 'more', 'admin', 'k', 1000005, 3 FROM items`,
		`INSERT INTO audit (at, actor, action, item_id, before, after) SELECT 4, 'admin', 'item.create', id, '', '{"a":1}' FROM items`,
		`INSERT INTO webhook_endpoints (id, url, events, secret, created_at, updated_at) VALUES ('e1', 'https://a.example', 'order.paid', 's3cret', 1, 1)`,
		`INSERT INTO webhook_events (id, type, body, at) VALUES ('v1', 'order.paid', '{}', 1), ('v2', 'order.paid', '{}', 1), ('v3', 'order.paid', '{}', 1)`,
		`DELETE FROM webhook_events WHERE id = 'v3'`,
		`INSERT INTO webhook_deliveries (endpoint_id, event_seq, next_at) SELECT 'e1', seq, 9 FROM webhook_events`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	shut(t, db)
}

func openFile(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?_busy_timeout=0&_journal_mode=WAL")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	return db
}

func openURL(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func shut(t *testing.T, db *sql.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// shop returns a filled file.
func shop(t *testing.T, orders int) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "shop.db")
	fill(t, path, orders)
	return path
}

func moved(t *testing.T, c transfer.Config) transfer.Report {
	t.Helper()
	r, err := transfer.Copy(await.Context(t), c)
	if err != nil {
		t.Fatalf("%s to %s: %v", c.From, c.To, err)
	}
	return r
}

// wantFault fails the test unless err blames that database, and contains the words.
func wantFault(t *testing.T, err error, target bool, words ...string) {
	t.Helper()
	var f *transfer.Fault
	if !errors.As(err, &f) || f.Target != target || f.Fix == "" {
		t.Errorf("error %v, want a fault, of the target: %v", err, target)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not name %q: %v", w, err)
		}
	}
}

// dump reads every row of every table except the marks.
func dump(t *testing.T, db *sql.DB) (lines []string) {
	t.Helper()
	tables := texts(t, db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'goose%' AND name <> 'sqlite_stat1' ORDER BY name")
	for _, table := range tables {
		columns := texts(t, db, "SELECT name FROM pragma_table_info('"+table+"')")
		for i := range columns {
			columns[i] = `quote("` + columns[i] + `")`
		}
		row := strings.Join(columns, " || ' ' || ")
		for _, line := range texts(t, db, "SELECT "+row+" FROM "+table+" ORDER BY 1") {
			if !strings.HasPrefix(line, "'moved_to'") {
				lines = append(lines, table+" "+line)
			}
		}
	}
	return lines
}

func texts(t *testing.T, db *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := db.QueryContext(await.Context(t), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
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

// audit checks the invariants of a database with the service's own code.
func audit(t *testing.T, setting string) {
	t.Helper()
	s, err := store.Open(await.Context(t), setting)
	if err != nil {
		t.Fatal(err)
	}
	ordertest.AuditStore(t, s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A shop that moves to Postgres and back is the same, row by row, and so are the numbers that
// the database assigns next. Only the last database is usable.
func TestCopy_ThereAndBack(t *testing.T) {
	t.Parallel()
	const orders = 12_000 // more than two pages
	path, url := shop(t, orders), postgrestest.NewDatabase(t)
	before := func() []string { db := openFile(t, path); defer shut(t, db); return dump(t, db) }()
	r := moved(t, transfer.Config{From: "sqlite:" + path, To: url, Place: "there"})
	if !r.Equal() || r.Completed {
		t.Errorf("report %+v", r)
	}
	rows := map[string]int64{}
	for _, one := range r.Tables {
		rows[one.Name] = one.Rows
		if one.Rows == 0 {
			t.Errorf("the test has no row in %s", one.Name)
		}
	}
	if rows["orders"] != orders {
		t.Errorf("%d orders, want %d", rows["orders"], orders)
	}
	audit(t, url)
	wantUsable(t, openFile(t, path), false, "moved to there")
	pg := openURL(t, url)
	wantUsable(t, pg, true)
	var seq, payment int64
	if err := openURL(t, url).QueryRowContext(t.Context(), "INSERT INTO webhook_events (id, type, body, at) VALUES ('v4', 'x', '', 1) RETURNING seq").Scan(&seq); err != nil || seq != 4 {
		t.Errorf("the next event has the number %d, error %v, want 4: 3 is deleted", seq, err)
	}
	if err := openURL(t, url).QueryRowContext(t.Context(), "SELECT nextval(pg_get_serial_sequence('payments', 'id'))").Scan(&payment); err != nil || payment != rows["payments"]+1 {
		t.Errorf("the next payment has the number %d, error %v, want %d", payment, err, rows["payments"]+1)
	}
	for _, undo := range []string{"DELETE FROM webhook_events WHERE id = 'v4'", "SELECT setval(pg_get_serial_sequence('webhook_events', 'seq'), 3)"} {
		if _, err := pg.ExecContext(t.Context(), undo); err != nil {
			t.Fatal(err)
		}
	}
	back := filepath.Join(t.TempDir(), "back.db")
	moved(t, transfer.Config{From: url, To: "sqlite:" + back, Place: "sqlite:" + back})
	wantUsable(t, pg, false, back)
	shut(t, pg)
	audit(t, "sqlite:"+back)
	db := openFile(t, back)
	defer shut(t, db)
	wantUsable(t, db, true)
	after := dump(t, db)
	if !slices.Equal(before, after) {
		t.Errorf("%d rows before and %d after", len(before), len(after))
		for i := range min(len(before), len(after)) {
			if before[i] != after[i] {
				t.Fatalf("first difference:\n%s\n%s", before[i], after[i])
			}
		}
	}
}

// wantUsable checks the mark of a database.
func wantUsable(t *testing.T, db *sql.DB, usable bool, words ...string) {
	t.Helper()
	err := transfer.CheckUsable(await.Context(t), db)
	if usable != (err == nil) {
		t.Errorf("usable %v, error %v", usable, err)
	}
	var u *transfer.Unusable
	if !usable && (!errors.As(err, &u) || u.Fix == "") {
		t.Errorf("error %v is not of a mark", err)
	}
	for _, w := range words {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not name %q: %v", w, err)
		}
	}
}

// A copy that is interrupted leaves an unusable target and an unchanged source. The next one
// starts over.
func TestCopy_Interrupted(t *testing.T) {
	t.Parallel()
	const orders = 12_000
	for name, target := range map[string]func(t *testing.T) (string, *sql.DB){
		"postgres": func(t *testing.T) (string, *sql.DB) {
			url := postgrestest.NewDatabase(t)
			return url, openURL(t, url)
		},
		"sqlite": func(t *testing.T) (string, *sql.DB) {
			path := filepath.Join(t.TempDir(), "new.db")
			return "sqlite:" + path, openFile(t, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := shop(t, orders)
			setting, db := target(t)
			for _, step := range []transfer.Progress{{Step: "copying", Table: "orders"}, {Step: "copying", Table: "meta"}, {Step: "verifying", Table: "items"}} {
				ctx, cancel := context.WithCancel(await.Context(t))
				_, err := transfer.Copy(ctx, transfer.Config{From: "sqlite:" + path, To: setting, Progress: func(p transfer.Progress) {
					if p.Step == step.Step && p.Table == step.Table {
						cancel()
					}
				}})
				if ctx.Err() == nil || err == nil {
					t.Fatalf("%+v: error %v, want an interrupt", step, err)
				}
				cancel()
				wantUsable(t, db, false, "unfinished")
				db.SetMaxIdleConns(0) // it is no user of the file
				source := openFile(t, path)
				wantUsable(t, source, true)
				shut(t, source)
				_, err = transfer.Copy(await.Context(t), transfer.Config{From: setting, To: "sqlite:" + filepath.Join(t.TempDir(), "third.db")})
				wantFault(t, err, false, "unfinished copy")
			}
			moved(t, transfer.Config{From: "sqlite:" + path, To: setting})
			wantUsable(t, db, true)
			shut(t, db)
			audit(t, setting)
		})
	}
}

// The copy is committed in the source and not in the target yet when the process ends. The
// next run only removes the mark.
func TestCopy_FinishesVerified(t *testing.T) {
	t.Parallel()
	path, url := shop(t, 10), postgrestest.NewDatabase(t)
	c := transfer.Config{From: "sqlite:" + path, To: url, Place: "there"}
	moved(t, c)
	source, target := openFile(t, path), openURL(t, url)
	id := texts(t, source, "SELECT substr(value, 1, 16) FROM meta WHERE key = 'moved_to'")
	mark := func(value string) {
		t.Helper()
		if _, err := target.ExecContext(t.Context(), "INSERT INTO meta (key, value) VALUES ('copy_unfinished', $1) ON CONFLICT (key) DO UPDATE SET value = excluded.value", value); err != nil {
			t.Fatal(err)
		}
	}
	shut(t, source)
	for _, other := range []string{id[0] + " copying", "0123456789abcdef complete"} {
		mark(other)
		_, err := transfer.Copy(await.Context(t), c)
		wantFault(t, err, false, "moved to there")
		wantUsable(t, target, false)
	}
	mark(id[0] + " complete")
	if r := moved(t, c); !r.Completed {
		t.Errorf("report %+v, want only that it is complete", r)
	}
	wantUsable(t, target, true)
	shut(t, target)
	audit(t, url)
}

// Moving back onto the database that the shop came from needs Replace, and no other shop's
// database is overwritten.
func TestCopy_Refused(t *testing.T) {
	t.Parallel()
	path, url := shop(t, 100), postgrestest.NewDatabase(t)
	moved(t, transfer.Config{From: "sqlite:" + path, To: url})
	refused := func(c transfer.Config, target bool, words ...string) {
		t.Helper()
		_, err := transfer.Copy(await.Context(t), c)
		wantFault(t, err, target, words...)
	}
	other := shop(t, 50)
	refused(transfer.Config{From: "sqlite:" + other, To: url, Replace: true}, true, "not empty")
	refused(transfer.Config{From: "sqlite:" + path, To: "sqlite:" + filepath.Join(t.TempDir(), "x.db")}, false, "was moved to")
	refused(transfer.Config{From: url, To: "sqlite:" + path}, true, "--replace")
	refused(transfer.Config{From: url, To: "sqlite:" + other, Replace: true}, true, "not empty")
	refused(transfer.Config{From: postgrestest.NewDatabase(t), To: "sqlite:" + filepath.Join(t.TempDir(), "x.db")}, false, "no shop")

	pg := openURL(t, url)
	busy, err := pg.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := busy.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock_shared($1)", postgres.WriteLock); err != nil {
		t.Fatal(err)
	}
	refused(transfer.Config{From: url, To: "sqlite:" + path, Replace: true}, false, "another process uses it")
	if err := busy.Rollback(); err != nil {
		t.Fatal(err)
	}
	user := openFile(t, path)
	if got := texts(t, user, "SELECT COUNT(*) FROM orders"); got[0] != "100" {
		t.Errorf("%s orders, want 100", got[0])
	}
	refused(transfer.Config{From: url, To: "sqlite:" + path, Replace: true}, true, "another process uses it")
	shut(t, user)
	if _, err := pg.ExecContext(t.Context(), "DELETE FROM releases"); err != nil { // the shop goes on
		t.Fatal(err)
	}
	moved(t, transfer.Config{From: url, To: "sqlite:" + path, Replace: true})
	wantUsable(t, pg, false)
	shut(t, pg)
	user = openFile(t, path)
	defer shut(t, user)
	wantUsable(t, user, true)
	if got := texts(t, user, "SELECT (SELECT COUNT(*) FROM orders) || ' ' || (SELECT COUNT(*) FROM releases)"); got[0] != "100 0" {
		t.Errorf("orders and releases %s, want 100 0", got[0])
	}
}

// A source that is open elsewhere is refused, although nothing writes to it.
func TestCopy_SourceInUse(t *testing.T) {
	t.Parallel()
	path := shop(t, 10)
	user := openFile(t, path)
	texts(t, user, "SELECT id FROM orders")
	_, err := transfer.Copy(await.Context(t), transfer.Config{From: "sqlite:" + path, To: "sqlite:" + filepath.Join(t.TempDir(), "x.db")})
	wantFault(t, err, false, "another process uses it")
	shut(t, user)
}

// Values that Postgres cannot store are found before anything is written.
func TestCopy_UnstorableValues(t *testing.T) {
	t.Parallel()
	path, url := shop(t, 6000), postgrestest.NewDatabase(t)
	db := openFile(t, path)
	for _, statement := range []string{
		"UPDATE orders SET reason = 'a' || char(0) || 'b' WHERE idempotency_key = 'key 5999'",
		"UPDATE audit SET before = CAST(x'61ff62' AS TEXT) WHERE id = 3",
		"UPDATE items SET freed = 70000 WHERE id = 'item-2'",
		"UPDATE items SET description = x'00' WHERE id = 'item-3'",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	order := texts(t, db, "SELECT id FROM orders WHERE idempotency_key = 'key 5999'")[0]
	shut(t, db)
	_, err := transfer.Copy(await.Context(t), transfer.Config{From: "sqlite:" + path, To: url})
	wantFault(t, err, false, "orders.reason of the row with id = \""+order+"\" contains a NUL byte", "audit.before of the row with id = \"3\" is not valid UTF-8",
		"items.freed", "70000", "items.description", "[]uint8")
	pg := openURL(t, url)
	wantUsable(t, pg, true) // it is still an empty shop
	shut(t, pg)
}

// A difference that appears during the copy is found, and the target stays unusable.
func TestCopy_Differs(t *testing.T) {
	t.Parallel()
	path, url := shop(t, 100), postgrestest.NewDatabase(t)
	pg := openURL(t, url)
	defer shut(t, pg)
	r, err := transfer.Copy(await.Context(t), transfer.Config{From: "sqlite:" + path, To: url, Progress: func(p transfer.Progress) {
		if p.Step == "verifying" && p.Table == "audit" && !p.Done {
			if _, err := pg.ExecContext(t.Context(), "UPDATE orders SET quantity = quantity + 1 WHERE idempotency_key = 'key 7'; DELETE FROM releases WHERE order_id = (SELECT MIN(order_id) FROM releases)"); err != nil {
				t.Error(err)
			}
		}
	}})
	if !errors.Is(err, transfer.ErrDiffers) || r.Equal() {
		t.Errorf("error %v, want ErrDiffers", err)
	}
	var differ []string
	for _, one := range slices.Concat(r.Tables, r.Ledger) {
		if !one.Equal() {
			differ = append(differ, one.Name)
		}
	}
	if want := []string{"orders", "releases", "orders by status", "pending releases"}; !slices.Equal(differ[:2], want[:2]) || !slices.Contains(differ, want[2]) || !slices.Contains(differ, want[3]) {
		t.Errorf("%q differ, want %q", differ, want)
	}
	wantUsable(t, pg, false, "unfinished")
	source := openFile(t, path)
	wantUsable(t, source, true)
	shut(t, source)
}
