package catalog

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestList_ManyChanges: if items change one after the other while a crowd reads the list, not
// each change begins another load from a slow database.
func TestList_ManyChanges(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 1, Version: 1})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		wantList(t, c, "a1")
		gate := s.holdBack()
		var readers sync.WaitGroup
		for n := int64(2); n < 50; n++ {
			pass(time.Millisecond)
			s.set(func(s *shop) { s.items["a"] = Item{ID: "a", StockLeft: n, Version: n} })
			c.Changed(t.Context(), "a", n)
			readers.Go(func() {
				v, err := c.List(t.Context())
				if err != nil || v.Items[0].Version < n {
					t.Errorf("%+v, %v, want version %d or later", v, err, n)
				}
			})
			synctest.Wait()
		}
		wantCalls(t, s, 0, 1+maxListLoads)
		close(gate)
		readers.Wait()
		wantList(t, c, "a49")
		if _, lists := s.counts(); lists > 1+2*maxListLoads {
			t.Errorf("48 changes cost %d looks", lists-1)
		}
	})
}

// TestList_Overtaken: a load that began before a change, and ends after the load that includes
// it, does not restore the old list.
func TestList_Overtaken(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 1, Version: 1})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := c.List(t.Context()); err != nil { // it may get either
				t.Error(err)
			}
		}()
		synctest.Wait()
		pass(time.Millisecond)
		s.set(func(s *shop) { s.items["a"], s.pause = Item{ID: "a", StockLeft: 2, Version: 2}, nil })
		c.Changed(t.Context(), "a", 2)
		wantList(t, c, "a2")
		close(gate)
		<-done
		s.set(func(s *shop) { s.err = errTest })
		wantList(t, c, "a2")
		wantCalls(t, s, 0, 2)
	})
}

// TestReaderLeaves: a reader that leaves while a changed item is being loaded does not make
// the others see the old item.
func TestReaderLeaves(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 1, Version: 1})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 1)
		wantList(t, c, "a1")
		gate := s.holdBack()
		c.Changed(t.Context(), "a", 2)
		gone, leave := context.WithCancel(t.Context())
		var leaving sync.WaitGroup
		leaving.Go(func() {
			if _, err := c.View(gone, "a"); !errors.Is(err, context.Canceled) {
				t.Errorf("item: %v, want the reader's own end", err)
			}
		})
		leaving.Go(func() {
			if _, err := c.List(gone); !errors.Is(err, context.Canceled) {
				t.Errorf("items: %v, want the reader's own end", err)
			}
		})
		synctest.Wait()
		leave()
		leaving.Wait()
		var staying sync.WaitGroup
		staying.Go(func() {
			if v, err := c.View(t.Context(), "a"); err != nil || v.Stale {
				t.Errorf("%+v, %v, want the item as it is", v, err)
			}
		})
		staying.Go(func() {
			if v, err := c.List(t.Context()); err != nil || v.Stale {
				t.Errorf("%+v, %v, want the items as they are", v, err)
			}
		})
		synctest.Wait()
		close(gate)
		staying.Wait()
	})
}

// TestLateFailure: if a load that was overtaken by a change fails, the result of a later load
// stays.
func TestLateFailure(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 1, Version: 1})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 1)
		wantList(t, c, "a1")
		c.Changed(t.Context(), "a", 2)
		gate := s.holdBack()
		s.set(func(s *shop) { s.err = errTest })
		var early sync.WaitGroup
		early.Go(func() { wantItem(t, c, "a", 3) })
		early.Go(func() { wantList(t, c, "a3") })
		synctest.Wait()
		s.set(func(s *shop) {
			s.items["a"] = Item{ID: "a", StockLeft: 3, Version: 3}
			s.pause, s.err = nil, nil
		})
		c.Changed(t.Context(), "a", 3)
		wantItem(t, c, "a", 3)
		wantList(t, c, "a3")
		close(gate)
		early.Wait()
		v, err1 := c.View(t.Context(), "a")
		l, err2 := c.List(t.Context())
		if err := errors.Join(err1, err2); err != nil || v.Stale || l.Stale {
			t.Errorf("item stale: %v, list stale: %v, %v, want neither", v.Stale, l.Stale, err)
		}
		if _, err := c.Item(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		wantCalls(t, s, 3, 3)
	})
}
