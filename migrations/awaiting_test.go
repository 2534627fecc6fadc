package migrations

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// countAwaiting is what items.awaiting must be.
const countAwaiting = `SELECT i.id || ' ' || COALESCE(SUM(o.quantity), 0) FROM items i
	LEFT JOIN orders o ON o.item_id = i.id AND o.status = 'confirmed' AND o.expires_at > 0 GROUP BY i.id ORDER BY i.id`

// addItems adds the items i0 to i3.
func addItems(d *testDatabase) {
	d.t.Helper()
	for i := range 4 {
		d.must(fmt.Sprintf(`INSERT INTO items (id, name, price_minor, currency, initial, total, per_user_limit, opens_at, created_at, updated_at)
			VALUES ('i%d', 'Thing', 1, 'EUR', 1, 1, 1, 1, 1, 1)`, i))
	}
}

// orderRow draws an order. Its item may be i4, which is not in the table of items.
func orderRow(t *rapid.T) string {
	status := rapid.SampledFrom([]string{"confirmed", "confirmed", "paid", "cancelled", "expired", "rejected", "refunded"}).Draw(t, "status")
	id := rapid.IntRange(0, 40).Draw(t, "id")
	return fmt.Sprintf("('o%02d', 'i%d', 'u', %d, 1, 'EUR', '%s', 'k%d', 1, %d)", id, rapid.IntRange(0, 4).Draw(t, "item"),
		rapid.IntRange(1, 5).Draw(t, "quantity"), status, id, rapid.SampledFrom([]int{0, 9}).Draw(t, "expires"))
}

// change draws a statement that adds or changes any number of orders.
func change(t *rapid.T) string {
	insert := func() string {
		rows := rapid.SliceOfN(rapid.Custom(orderRow), 1, 12).Draw(t, "rows")
		return "INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at, expires_at) VALUES " +
			strings.Join(rows, ", ") + " ON CONFLICT DO NOTHING"
	}
	set := rapid.SampledFrom([]string{
		"", "", "",
		"status = 'paid', paid_at = 1", "status = 'expired', closed_at = 1", "status = 'cancelled'", "status = 'refunded', restocked = 1",
		"status = 'confirmed'", "status = 'confirmed', expires_at = 0", "expires_at = expires_at + 1", "expires_at = 0",
		"status = status", "user_id = 'erased', idempotency_key = id",
	}).Draw(t, "set")
	if set == "" {
		return insert()
	}
	where := rapid.SampledFrom([]string{"true", "id < 'o10'", "id = 'o05'", "id = 'none'", "item_id = 'i1'", "status = 'confirmed'", "expires_at > 0"}).Draw(t, "where")
	return "UPDATE orders SET " + set + " WHERE " + where
}

// Any statement leaves the same units awaiting payment in both dialects, and those of the
// orders.
func TestDialects_SameAwaiting(t *testing.T) {
	t.Parallel()
	lite, pg := openBoth(t)
	lite.up()
	pg.up()
	addItems(lite)
	addItems(pg)
	rapid.Check(t, func(t *rapid.T) {
		both := []*testDatabase{lite, pg}
		for _, d := range both {
			d.must("DELETE FROM orders")
			d.must("UPDATE items SET awaiting = 0")
		}
		for range rapid.IntRange(1, 12).Draw(t, "statements") {
			statement := change(t)
			for _, d := range both {
				d.must(statement)
				got, want := d.lines("SELECT id || ' ' || awaiting FROM items ORDER BY id"), d.lines(countAwaiting)
				if !slices.Equal(got, want) {
					t.Fatalf("%s: after %s\n%q await payment, want %q", d.dialect, statement, got, want)
				}
			}
			if a, b := lite.lines(countAwaiting), pg.lines(countAwaiting); !slices.Equal(a, b) {
				t.Fatalf("after %s\n%q in SQLite, %q in Postgres", statement, a, b)
			}
		}
	})
}

// A statement updates the row of each of its items once, in the order of their ids, and none if
// no units begin or end to await payment.
func TestPostgres_Awaiting_OncePerStatement(t *testing.T) {
	t.Parallel()
	d := openPostgres(t)
	d.up()
	addItems(d)
	d.must("CREATE TABLE updated (n BIGINT GENERATED ALWAYS AS IDENTITY, item TEXT)")
	d.must(`CREATE FUNCTION note() RETURNS TRIGGER LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO updated (item) VALUES (NEW.id || ' ' || NEW.awaiting); RETURN NULL; END $$`)
	d.must("CREATE TRIGGER note AFTER UPDATE ON items FOR EACH ROW EXECUTE FUNCTION note()")
	const insert = `INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at, expires_at)
		SELECT 'o' || g, 'i' || (3 - g %% 3), 'u', 2, 1, 'EUR', 'confirmed', 'k' || g, 1, %s FROM generate_series(%s) g ON CONFLICT DO NOTHING`
	for _, c := range []struct {
		statement string
		want      []string
	}{
		{fmt.Sprintf(insert, "9", "1, 600"), []string{"i1 400", "i2 400", "i3 400"}},
		{fmt.Sprintf(insert, "9", "1, 601"), []string{"i2 402"}},
		{fmt.Sprintf(insert, "9", "1, 600"), nil},
		{fmt.Sprintf(insert, "0", "700, 710"), nil},
		{"UPDATE orders SET user_id = 'erased', idempotency_key = id", nil},
		{"UPDATE orders SET expires_at = expires_at + 1 WHERE expires_at > 0", nil},
		{"UPDATE orders SET status = 'paid' WHERE expires_at > 0 AND item_id <> 'i2'", []string{"i1 0", "i3 0"}},
		{"UPDATE orders SET status = 'refunded' WHERE status = 'paid'", nil},
		{"UPDATE orders SET status = 'expired' WHERE id = 'o601'", []string{"i2 400"}},
	} {
		d.must("DELETE FROM updated")
		d.must(c.statement)
		if got := d.lines("SELECT item FROM updated ORDER BY n"); !slices.Equal(got, c.want) {
			t.Errorf("%s\nupdated %q, want %q", c.statement, got, c.want)
		}
	}
}
