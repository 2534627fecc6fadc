package catalog

import (
	"testing"
	"testing/synctest"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestListen_DuringLook: items that were read before a new subscription may have changed
// without a message, also if the result arrives after it.
func TestListen_DuringLook(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "old", StockLeft: 5, Version: 1})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		done := make(chan struct{})
		go func() {
			defer close(done)
			wantItem(t, c, "old", 5)
		}()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			wantUnknown(t, c, "new")
		}()
		synctest.Wait() // the queries are under way, and their answers are fixed
		s.set(func(s *shop) {
			s.items["old"] = Item{ID: "old", StockLeft: 4, Version: 2}
			s.items["new"] = Item{ID: "new", StockLeft: 1, Version: 1}
			s.pause = nil
		})
		c.resubscribed() // the messages of both were missed
		close(gate)
		<-done
		<-ended
		wantItem(t, c, "new", 1)
		wantItem(t, c, "old", 5) // the old item, while it is reloaded
		synctest.Wait()
		wantItem(t, c, "old", 4)
	})
}

// TestFilter_CountGoneBack: a Redis that has lost the latest creations continues from a lower
// count. A process that has the lost ones and has missed a later one must not conclude from an
// equal count that it has the same ids.
func TestFilter_CountGoneBack(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	s := newShop()
	a, b := newProcess(t, s, rdb, patient()), newProcess(t, s, rdb, patient())
	b.resubscribed()
	for range 2 {
		a.Created(await.Context(t), "first")
	}
	await.True(t, "the ids to be read", func() bool { return b.buildFilterNow(await.Context(t)) == nil })
	if err := rdb.HIncrBy(await.Context(t), generationKey, "count", -1).Err(); err != nil {
		t.Fatal(err)
	}
	s.set(func(s *shop) { s.items["second"] = Item{ID: "second", Version: 1} })
	a.Created(await.Context(t), "second") // while b's subscription is down
	b.resubscribed()
	wantItem(t, b, "second", 0)
	await.True(t, "the filter to refuse", func() bool {
		wantUnknown(t, b, newID(t))
		return b.Stats().Refused > 0
	})
}

// TestNone_GoneBack: a Redis that has lost an item's creation, but still has its negative
// entry, does not hide the item from a process that has it.
func TestNone_GoneBack(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	id := newID(t)
	s := newShop(Item{ID: id, Version: 1})
	c := newProcess(t, s, rdb, patient())
	wantItem(t, c, id, 0)
	key := c.remote.keys.item(id)
	if err := rdb.Del(await.Context(t), key).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.remote.write(await.Context(t), id, answer{loadedAt: time.Now()}, maxNegative); err != nil {
		t.Fatal(err)
	}
	if _, err := c.fetch(await.Context(t), id, toRenew); err != nil {
		t.Errorf("%v, want the item", err)
	}
	wantItem(t, c, id, 0)
}
