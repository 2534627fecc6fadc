//go:build unix

package main_test

import (
	"strconv"
	"testing"
)

// TestCatalog_KilledLoaderIsReplaced kills a process that loads an item while it holds the load
// lock: another process loads the item as soon as the lock has expired, and waiting buyers get
// their orders.
func TestCatalog_KilledLoaderIsReplaced(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker()
	healthy := s.api(noLimit...)
	c := dial(t, healthy)
	const stock = 100
	item := s.newItem(c, stock, 1)
	// The lock may have expired before the test checks. That would test something else, so the
	// test is repeated.
	for try := range tries {
		doomed := s.faulty("catalog.loading", "api", noLimit...)
		d := dial(t, doomed)
		cut := make(chan purchase, 1)
		go func() {
			// A page may be stale, but a purchase requires that the item is loaded.
			for i := 0; ; i++ {
				p := d.buy(item, "d"+strconv.Itoa(try)+"-"+strconv.Itoa(i), "k")
				if p.err != nil || i == stock/tries {
					cut <- p
					return
				}
				<-lasting(t, lockLife)
			}
		}()
		struck(t, doomed)
		if p := <-cut; p.err == nil {
			t.Fatalf("the process was killed, and answered %s", p.verdict())
		}
		held, err := s.rdb.Exists(t.Context(), "fs:{p0}:item:"+item+":lock").Result()
		if err != nil {
			t.Fatal(err)
		}
		got := crowd(8, func(i int) purchase {
			return c.settle(item, c.buy(item, "u"+strconv.Itoa(try)+"-"+strconv.Itoa(i), "k", untilCommitted...))
		})
		only(t, got, "201")
		if held == 1 {
			return
		}
	}
	t.Error("the lock of the dead process was never found")
}
