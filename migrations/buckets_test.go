package migrations

import (
	"errors"
	"testing"

	"flashsale/internal/testing/await"
)

// TestMigrator_Buckets_Down: the step that divides items is not undone while an item is divided.
func TestMigrator_Buckets_Down(t *testing.T) {
	t.Parallel()
	lite, pg := openBoth(t)
	for _, d := range []*testDatabase{lite, pg} {
		d.up()
		addItems(d)
		d.must("UPDATE items SET buckets = 2 WHERE id = 'i1'")
		if done, err := d.Down(await.Context(t)); done || !errors.Is(err, ErrDivided) {
			t.Errorf("%s: down with a divided item: %v, %v", d.dialect, done, err)
		}
		d.wantLines("SELECT CAST(buckets AS TEXT) FROM items WHERE id = 'i1'", "2")
		d.must("UPDATE items SET buckets = 1")
		d.downBelow(13)
	}
}
