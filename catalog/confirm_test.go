package catalog

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestCatalog_NotLoaded: an item whose sale is not loaded any more keeps its last stock until
// it is read from the database again. A process that died between restocking a sold-out item
// and loading it would otherwise leave it sold out for all readers.
func TestCatalog_NotLoaded(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 5})
	s.live["a"] = 0
	inBubble(t, s, Config{Fresh: 10 * time.Second}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 0)
		wantList(t, c, "a0")
		s.set(func(s *shop) { delete(s.live, "a") })
		pass(time.Second)
		wantItem(t, c, "a", 0)
		wantList(t, c, "a0")
		pass(10 * time.Second)
		for range 2 { // the first begins to read the item and the list again
			_, err := c.View(t.Context(), "a")
			_, err2 := c.List(t.Context())
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			synctest.Wait()
		}
		wantItem(t, c, "a", 5)
		wantList(t, c, "a5")
	})
}

// TestCatalog_Confirm_Outdated: an item that has changed and could not be loaded again is not
// used for purchases, although its sale still confirms the version before the change.
func TestCatalog_Confirm_Outdated(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", PriceMinor: 10, Version: 1})
	inBubble(t, s, Config{Life: time.Second, Fresh: time.Minute, Keep: time.Hour}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 0)
		s.set(func(s *shop) { s.err = errTest })
		c.Changed(t.Context(), "a", 2)
		v, err := c.View(t.Context(), "a") // which marks it as stale
		synctest.Wait()
		if err != nil || !v.Stale {
			t.Fatalf("%+v, %v, want the stale item", v, err)
		}
		c.Confirm("a", 1, time.Now())
		if i, err := c.Item(t.Context(), "a"); err == nil {
			t.Errorf("bought by %+v", i)
		}
	})
}

// TestCatalog_Confirm: an item whose version a sale confirms is not loaded again for
// purchases; another version, and a change, end that.
func TestCatalog_Confirm(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", PriceMinor: 10, Version: 1})
	inBubble(t, s, Config{Life: time.Second, Fresh: time.Minute, Keep: time.Hour}, func(t *testing.T, c *Catalog) {
		price := func(want int64) {
			t.Helper()
			i, err := c.Item(t.Context(), "a")
			if err != nil || i.PriceMinor != want {
				t.Errorf("price %d, %v, want %d", i.PriceMinor, err, want)
			}
			synctest.Wait()
		}
		price(10)
		for range 20 {
			pass(400 * time.Millisecond)
			c.Confirm("a", 1, time.Now())
			price(10)
		}
		wantCalls(t, s, 1, 0)
		s.set(func(s *shop) { s.items["a"] = Item{ID: "a", PriceMinor: 20, Version: 2} })
		for range 3 {
			pass(400 * time.Millisecond)
			c.Confirm("a", 2, time.Now()) // of another version: the price in memory is not confirmed
		}
		price(20)
		wantCalls(t, s, 2, 0)
		s.set(func(s *shop) { s.items["a"] = Item{ID: "a", PriceMinor: 30, Version: 3} })
		c.Changed(t.Context(), "a", 3)
		c.Confirm("a", 2, time.Now()) // of a script that ran before the change
		price(30)
		c.Confirm("unknown", 1, time.Now())
		// A sale may lack a change: its item is loaded again once it is older than Fresh.
		s.set(func(s *shop) { s.items["a"] = Item{ID: "a", PriceMinor: 40, Version: 4} })
		for range 152 {
			pass(400 * time.Millisecond)
			c.Confirm("a", 3, time.Now())
			if _, err := c.Item(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		price(40)
	})
}
