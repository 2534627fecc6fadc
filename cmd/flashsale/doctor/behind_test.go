package doctor

import (
	"strings"
	"testing"

	"flashsale/order/store"
)

// TestDoctor_behind: items that the database has lost have another remedy than those that it has an
// older row of, and the buckets of an item are one item.
func TestDoctor_behind(t *testing.T) {
	t.Parallel()
	d := &doctor{}
	d.behind([]store.Behind{
		{ItemID: "new", Redis: 3, Lost: true}, {ItemID: "new.1", Redis: 2, Lost: true},
		{ItemID: "old", Database: 1, Redis: 2},
	})
	if len(d.found) != 2 {
		t.Fatalf("findings %+v, want 2", d.found)
	}
	for i, want := range []struct{ says, remedy string }{
		{"Redis has orders of items that it does not have (1): new", "create them again"},
		{"sales are stopped (1), the first is old (revision 1 in the database, 2 in Redis)", "flashsale recover"},
	} {
		if f := d.found[i]; f.level != levelFix || !strings.HasSuffix(f.says, want.says) || !strings.Contains(f.remedy, want.remedy) {
			t.Errorf("finding %+v, want %+v", f, want)
		}
	}
	d = &doctor{}
	d.behind(nil)
	if len(d.found) != 1 || d.found[0].level != levelOK {
		t.Errorf("findings without such items: %+v", d.found)
	}
}
