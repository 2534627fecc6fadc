package catalog

import (
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestLook_ToBuy: a buyer does not wait for another process's load after its result would be
// too old for a purchase.
func TestLook_ToBuy(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	id := newID(t)
	s := newShop(Item{ID: id, Version: 1})
	cfg := patient()
	cfg.Life, cfg.Wait = time.Second, 20*time.Second
	c := newProcess(t, s, rdb, cfg)
	l := held(t, rdb, c.far.keys.lock(id), steadyTTL)
	if i, err := c.Item(await.Context(t), id); err != nil || i.Version != 1 {
		t.Errorf("%+v, %v, want the item", i, err)
	}
	wantCalls(t, s, 1, 0)
	if err := l.Release(await.Context(t)); err != nil {
		t.Error(err)
	}
}
