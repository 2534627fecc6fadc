package catalog

import (
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestBuckets_ChangedBucket: a change of a bucket reaches the other processes, as that of an item.
func TestBuckets_ChangedBucket(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	for _, id := range []string{"item", "item.1"} {
		s := newShop(Item{ID: id, Version: 1})
		c := newProcess(t, s, rdb, patient())
		if _, err := c.Item(await.Context(t), id); err != nil {
			t.Fatal(err)
		}
		c.handle("changed 2 " + id)
		r, ok := c.known.GetIfPresent(id)
		if !ok || !r.view.Load().changed {
			t.Errorf("%s is not known as changed", id)
		}
	}
}
