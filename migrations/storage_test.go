package migrations

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"flashsale/internal/testing/await"
)

// storageStep is the migration that copies the orders to a table with row numbers.
const storageStep = 7

// Every column of every order is the same after the step and after its reversal. The key stays
// unique, and both directions leave no second copy of the orders.
func TestMigrator_Storage_KeepsEveryOrder(t *testing.T) {
	t.Parallel()
	d := openDatabase(t, "?_secure_delete=on")
	d.up()
	const all = `SELECT id || ' ' || item_id || ' ' || user_id || ' ' || quantity || ' ' || unit_price_minor || ' ' || currency || ' ' || status || ' ' || reason
		|| ' ' || idempotency_key || ' ' || created_at || ' ' || confirmed_at || ' ' || expires_at || ' ' || paid_at || ' ' || closed_at
		|| ' ' || payment_reference || ' ' || restocked FROM orders ORDER BY id`
	const add = `INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at) VALUES `
	check := func(what string, want []string) {
		t.Helper()
		if got := d.lines(all); !slices.Equal(got, want) {
			t.Errorf("%s: %d orders, want the same %d; first %q and %q", what, len(got), len(want), got[0], want[0])
		}
		for _, again := range []string{"('p', 'i1', 'u1', 1, 1, 'EUR', 'confirmed', 'key 1', 1)", "('o001', 'x', 'x', 1, 1, 'EUR', 'confirmed', 'x', 1)", "('p', 'x', 'x', 1, 1, 'EUR', 'queued', 'x', 1)"} {
			if d.exec(add+again) == nil {
				t.Errorf("%s: the schema allows %s", what, again)
			}
		}
		if got := d.lines("PRAGMA integrity_check"); !slices.Equal(got, []string{"ok"}) {
			t.Errorf("%s: integrity %q", what, got)
		}
		if got := d.lines("SELECT name FROM sqlite_schema WHERE name GLOB 'orders_before*' OR name GLOB 'orders_after*'"); len(got) > 0 {
			t.Errorf("%s: left over %q", what, got)
		}
	}
	d.downBelow(storageStep)
	d.must(`WITH RECURSIVE n(i) AS (SELECT 999 UNION ALL SELECT i - 1 FROM n WHERE i > 0)
		INSERT INTO orders SELECT printf('o%03d', i), 'i' || (i % 7), 'u' || i, 1 + i % 3, i, 'EUR', (CASE i % 4 WHEN 0 THEN 'confirmed' WHEN 1 THEN 'paid' WHEN 2 THEN 'refunded' ELSE 'rejected' END),
			'r' || i, 'key ' || i, 1000 + i, i + 2, i + 3, i + 4, i + 5, 'pay ' || i, i % 2 FROM n`)
	want := d.lines(all)
	check("before", want)
	d.up()
	check("up", want)
	d.downBelow(storageStep)
	check("down", want)
	d.up()
	check("up again", want)
}

// A migration keeps no data in memory that grows with the database, and leaves the connection
// unchanged.
func TestOnDisk(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"), "")
	db.SetMaxOpenConns(1)
	ctx := await.Context(t)
	if _, err := db.ExecContext(ctx, "PRAGMA temp_store = MEMORY"); err != nil {
		t.Fatal(err)
	}
	want := func(when string, value int) {
		t.Helper()
		var got int
		if err := db.QueryRowContext(ctx, "PRAGMA temp_store").Scan(&got); err != nil || got != value {
			t.Errorf("%s: temp_store %d, %v, want %d", when, got, err, value)
		}
	}
	failed := errors.New("failed")
	err := onDisk(ctx, &Migrator{db: db}, func() error {
		want("meanwhile", 1)
		return failed
	})
	if !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	want("afterwards", 2)
	if _, err := newMigrator(t, db).Up(ctx); err != nil {
		t.Fatal(err)
	}
	want("after up", 2)
}
