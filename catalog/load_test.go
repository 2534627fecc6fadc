package catalog

import (
	"errors"
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
	l := held(t, rdb, c.remote.keys.lock(id), steadyTTL)
	if i, err := c.Item(await.Context(t), id); err != nil || i.Version != 1 {
		t.Errorf("%+v, %v, want the item", i, err)
	}
	wantCalls(t, s, 1, 0)
	if err := l.Release(await.Context(t)); err != nil {
		t.Error(err)
	}
}

// A reader that looked into memory before a load ended, and asks for one afterwards, gets the
// result of the load that ended.
func TestFetch_AfterALoad(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]kind{"shown": toShow, "bought": toBuy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Embedded(t)
			id := newID(t)
			s := newShop(Item{ID: id, Version: 1})
			c := newProcess(t, s, rdb, patient())
			for range 2 {
				if v, err := c.fetch(await.Context(t), id, k); err != nil || v.Item.Version != 1 {
					t.Errorf("%+v, %v, want the item", v, err)
				}
				if err := rdb.Del(await.Context(t), c.remote.keys.item(id)).Err(); err != nil {
					t.Fatal(err)
				}
			}
			wantCalls(t, s, 1, 0)
		})
	}
}

// The same holds for an item that does not exist.
func TestFetch_AfterALoad_Unknown(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	id := newID(t)
	s := newShop()
	c := newProcess(t, s, rdb, patient())
	f := c.join(id, toShow, nil)
	<-f.done
	if err := rdb.Del(await.Context(t), c.remote.keys.item(id)).Err(); err != nil {
		t.Fatal(err)
	}
	if f = c.join(id, toBuy, nil); !errors.Is(f.err, ErrItemNotFound) {
		t.Errorf("%v, want ErrItemNotFound", f.err)
	}
	wantCalls(t, s, 1, 0)
}
