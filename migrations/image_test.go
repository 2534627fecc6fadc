package migrations

import (
	"strings"
	"testing"
)

// TestMigrator_Image: items from before the step have no image, a version of the program that
// does not know the column can still insert items, and no item is lost going down.
func TestMigrator_Image(t *testing.T) {
	t.Parallel()
	const insert = `INSERT INTO items (id, name, price_minor, currency, initial, total, per_user_limit, opens_at, created_at, updated_at)
		VALUES ('%', 'Thing', 1, 'EUR', 1, 1, 1, 1, 1, 1)`
	const imageStep = 12
	d := openDatabase(t, "")
	d.up()
	d.downBelow(imageStep)
	d.must(strings.ReplaceAll(insert, "%", "before"))
	d.up()
	d.must(strings.ReplaceAll(insert, "%", "since"))
	d.wantLines("SELECT id || image_url FROM items ORDER BY id", "before", "since")
	d.must("UPDATE items SET image_url = '/a.jpg' WHERE id = 'before'")
	d.downBelow(imageStep)
	d.wantLines("SELECT id || name FROM items ORDER BY id", "beforeThing", "sinceThing")
	d.up()
	d.wantLines("SELECT id || image_url FROM items ORDER BY id", "before", "since")
	d.wantLines("PRAGMA integrity_check", "ok")
}
