package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestCatalog_Stock: the live stock is shown if there is one, at most a second old, and is
// read once for all readers.
func TestCatalog_Stock(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "live", StockLeft: 9}, Item{ID: "out", StockLeft: 9}, Item{ID: "cold", StockLeft: 9})
	s.live["live"], s.live["out"] = 4, 0
	inBubble(t, s, Config{OnError: func(err error) { t.Errorf("got error %v", err) }}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "live", 4)
		wantItem(t, c, "out", 0)
		wantItem(t, c, "cold", 9)
		if s.stocks != 3 {
			t.Errorf("the stock was asked for %d times, want 3", s.stocks)
		}
		wantUnknown(t, c, "none")
		for range 100 {
			wantItem(t, c, "live", 4)
		}
		if s.stocks != 3 {
			t.Errorf("the stock was asked for %d times, want no more than 3", s.stocks)
		}
		s.set(func(s *shop) { s.live["live"], s.live["cold"] = 3, 8 })
		pass(stockMax)
		var readers sync.WaitGroup
		for range 100 {
			readers.Go(func() { wantItem(t, c, "live", 3) })
			readers.Go(func() { wantItem(t, c, "cold", 8) })
		}
		readers.Wait()
		// Readers that come while a round reads their item share the next round.
		if s.stocks > 3+2*2 {
			t.Errorf("200 readers of two items asked for the stock %d times, want at most twice per item", s.stocks-3)
		}
		s.set(func(s *shop) { s.live["live"] = 2 })
		pass(stockSoon)
		wantItem(t, c, "live", 3) // the old value, while the item is reloaded
		synctest.Wait()
		wantItem(t, c, "live", 2)
		s.set(func(s *shop) { s.live["live"] = 1 })
		c.StockChanged("live")
		wantItem(t, c, "live", 1)
	})
}

// TestCatalog_StockReadMeanwhile: a reader that saw an old stock, and was slow to ask for a new one, does
// not have it read again after a round that has just read it.
func TestCatalog_StockReadMeanwhile(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	s.live["a"] = 4
	inBubble(t, s, Config{}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 4)
		r, ok := c.known.GetIfPresent("a")
		if !ok {
			t.Fatal("the item is not kept")
		}
		if q := c.wantStock(r, time.Now()); q != nil || s.stocks != 1 {
			t.Errorf("another round %v, and the stock was asked for %d times, want none and 1", q, s.stocks)
		}
	})
}

func TestCatalog_StockAway(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	s.live["a"], s.stockErr = 4, errTest
	var failures []error
	inBubble(t, s, Config{OnError: func(err error) { failures = append(failures, err) }}, func(t *testing.T, c *Catalog) {
		for range 10 {
			wantItem(t, c, "a", 9)
			wantList(t, c, "a9")
		}
		if len(failures) != 1 || !errors.Is(failures[0], errTest) {
			t.Errorf("got %v, want the stock's error once", failures)
		}
		s.set(func(s *shop) { s.stockErr = nil })
		pass(stockPause + time.Millisecond)
		wantItem(t, c, "a", 4)
		s.set(func(s *shop) { s.stockErr = errTest })
		pass(time.Minute)
		wantItem(t, c, "a", 4) // the last known stock, and not the database's
	})
}

// TestCatalog_StockHangs: a Redis that does not answer costs one reader StockTimeout, and the
// next ones nothing.
func TestCatalog_StockHangs(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9}, Item{ID: "b", StockLeft: 9})
	s.stockHangs = true
	inBubble(t, s, Config{StockTimeout: 200 * time.Millisecond}, func(t *testing.T, c *Catalog) {
		start := time.Now()
		var readers sync.WaitGroup
		for range 50 {
			readers.Go(func() { wantItem(t, c, "a", 9) })
		}
		readers.Wait()
		wantItem(t, c, "a", 9)
		wantItem(t, c, "b", 9)
		if d := time.Since(start); d != 200*time.Millisecond {
			t.Errorf("the readers took %v, want one time-out", d)
		}
	})
}

// TestCatalog_SourceAway: if the memory is empty there is nothing to show, and the error is
// not cached.
func TestCatalog_SourceAway(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	s.err = errTest
	inBubble(t, s, Config{}, func(t *testing.T, c *Catalog) {
		for range 3 {
			if _, err := c.View(t.Context(), "a"); !errors.Is(err, errTest) {
				t.Errorf("item: %v, want the source's error", err)
			}
			if _, err := c.List(t.Context()); !errors.Is(err, errTest) {
				t.Errorf("items: %v, want the source's error", err)
			}
		}
		wantCalls(t, s, 3, 3)
		s.set(func(s *shop) { s.err = nil })
		wantItem(t, c, "a", 9)
		wantList(t, c, "a9")
	})
}

// TestCatalog_SourceAway_KeepsMemory: cached items stay when the source is away, are marked as
// stale, and are not used for purchases.
func TestCatalog_SourceAway_KeepsMemory(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9, Version: 1})
	inBubble(t, s, Config{Life: time.Second, Fresh: 5 * time.Second, Keep: time.Hour}, func(t *testing.T, c *Catalog) {
		wantStale := func(want bool) {
			t.Helper()
			v, err1 := c.View(t.Context(), "a")
			l, err2 := c.List(t.Context())
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if v.Stale != want || l.Stale != want {
				t.Errorf("item stale: %v, list stale: %v, want %v", v.Stale, l.Stale, want)
			}
			if age := time.Since(v.LoadedAt); want && age < 4*time.Second {
				t.Errorf("the item says it is %v old", age)
			}
		}
		wantStale(false)
		s.set(func(s *shop) { s.err = errTest })
		pass(5 * time.Second)
		lookBoth(t, c) // the first reader finds out for the others
		wantStale(true)
		if _, err := c.Item(t.Context(), "a"); !errors.Is(err, errTest) {
			t.Errorf("buy: %v, want the source's error", err)
		}
		byID, lists := s.counts()
		for range 100 {
			wantStale(true)
			synctest.Wait()
		}
		wantCalls(t, s, byID, lists) // it is not queried for a while
		// Items are also shown if their change cannot be read.
		c.Changed(t.Context(), "a", 2)
		wantStale(true)
		s.set(func(s *shop) { s.err, s.items["a"] = nil, Item{ID: "a", StockLeft: 8, Version: 2} })
		pass(retryPause)
		lookBoth(t, c)
		wantStale(false)
		wantItem(t, c, "a", 8)
		if _, err := c.Item(t.Context(), "a"); err != nil {
			t.Errorf("buy: %v", err)
		}
	})
}

// lookBoth reads items that have to be renewed, and returns when that has ended.
func lookBoth(t *testing.T, c *Catalog) {
	t.Helper()
	_, err1 := c.View(t.Context(), "a")
	_, err2 := c.List(t.Context())
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// TestCatalog_Wait: a reader without a cached item waits for Wait, and a slow query goes on
// for the next reader.
func TestCatalog_Wait(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 3})
	inBubble(t, s, Config{Wait: 2 * time.Second, LoadTimeout: 5 * time.Second}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		start := time.Now()
		var readers sync.WaitGroup
		for range 10 {
			readers.Go(func() {
				if _, err := c.View(t.Context(), "a"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("item: %v, want the deadline's error", err)
				}
			})
		}
		readers.Go(func() {
			if _, err := c.List(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("items: %v, want the deadline's error", err)
			}
		})
		readers.Wait()
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("the readers waited for %v, want Wait", d)
		}
		pass(time.Second)
		close(gate)
		synctest.Wait()
		wantItem(t, c, "a", 3)
		wantList(t, c, "a3")
		wantCalls(t, s, 1, 1)
	})
}

func TestCatalog_LoadTimeout(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a"})
	inBubble(t, s, Config{LoadTimeout: 2 * time.Second, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		s.holdBack() // for ever
		start := time.Now()
		if _, err := c.View(t.Context(), "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("item: %v, want the deadline's error", err)
		}
		if _, err := c.List(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("items: %v, want the deadline's error", err)
		}
		if d := time.Since(start); d != 4*time.Second {
			t.Errorf("two looks took %v, want LoadTimeout each", d)
		}
	})
}

// TestCatalog_ContextEnds: a caller whose context ends returns immediately. The load
// continues for the other callers, and its result is kept.
func TestCatalog_ContextEnds(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.View(ctx, "a"); !errors.Is(err, errTest) {
				t.Errorf("item: %v, want the context's cause", err)
			}
		})
		wg.Go(func() {
			if _, err := c.List(ctx); !errors.Is(err, errTest) {
				t.Errorf("items: %v, want the context's cause", err)
			}
		})
		synctest.Wait()
		cancel(errTest)
		wg.Wait()
		close(gate)
		synctest.Wait()
		wantItem(t, c, "a", 9)
		wantList(t, c, "a9")
		wantCalls(t, s, 1, 1)
	})
}

// TestCatalog_Bounded: memory is bounded by MaxItems, whatever is requested, and invented ids
// evict no item.
func TestCatalog_Bounded(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 1})
	inBubble(t, s, Config{MaxItems: 50, Fresh: time.Hour}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 1)
		for i := range 2000 {
			wantUnknown(t, c, fmt.Sprintf("ghost-%d", i))
		}
		c.unknown.CleanUp()
		if n := c.unknown.EstimatedSize(); n > 50 {
			t.Errorf("%d ids are remembered, want at most 50", n)
		}
		byID, lists := s.counts()
		wantItem(t, c, "a", 1)
		wantCalls(t, s, byID, lists)
	})
}

// TestCatalog_Avalanche: items that were loaded at the same moment expire at different
// times, unless that defence is off.
func TestCatalog_Avalanche(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]Defence{"on": 0, "off": Avalanche} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const items = 1000
			s := newShop()
			for i := range items {
				id := fmt.Sprintf("i%d", i)
				s.items[id] = Item{ID: id}
			}
			inBubble(t, s, Config{Fresh: 10 * time.Second, Keep: 100 * time.Second, Off: off}, func(t *testing.T, c *Catalog) {
				start := time.Now()
				var readers sync.WaitGroup
				for i := range items {
					readers.Go(func() { wantItem(t, c, fmt.Sprintf("i%d", i), 0) })
				}
				readers.Wait()
				if d := time.Since(start); d != 0 {
					t.Fatalf("loading took %v on a clock that stands still", d)
				}
				var fresh, keep [10]int // by tenth of the last fifth
				for i := range items {
					e, ok := c.known.GetEntry(fmt.Sprintf("i%d", i))
					if !ok {
						t.Fatal("not in memory")
					}
					fresh[tenth(e.Value.view.Load().freshUntil.Sub(start), c.cfg.Fresh)]++
					keep[tenth(e.ExpiresAt().Sub(start), c.cfg.Keep)]++
				}
				for tenth := range 10 {
					// Of 1000 in ten parts, fewer than 50 in one is practically impossible.
					if off == 0 && (fresh[tenth] < 50 || keep[tenth] < 50) {
						t.Fatalf("not spread: renewals by tenth %v, expiries %v", fresh, keep)
					}
				}
				if off != 0 && (fresh[9] != items || keep[9] != items) {
					t.Errorf("without the defence, renewals by tenth %v, expiries %v, want all in the last", fresh, keep)
				}
			})
		})
	}
}

// tenth returns the tenth of the last fifth of a life in which a time is.
func tenth(d, life time.Duration) int {
	from := life - life/5
	return min(9, int(10*(d-from)/(life/5)))
}
