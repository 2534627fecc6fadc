package ordertest

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"flashsale/internal/testing/redistest"
	"flashsale/order/timeouts"
)

// Main runs the tests of a package. It also checks that services, workers and listeners
// leave no goroutine behind.
func Main(m *testing.M) {
	// Most of the tests wait for a disk or for other goroutines. The command line takes
	// precedence.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	// A slow machine must not exceed these timeouts. Their effect is tested with a database
	// or a Redis that is down, which needs no waiting. Only the number of changes bounds a
	// group here.
	timeouts.Group, timeouts.GroupLeast = Limit, Limit
	for _, timeout := range []*time.Duration{&timeouts.Read, &timeouts.Write, &timeouts.Show, &timeouts.Release, &timeouts.Notify, &timeouts.Announce, &timeouts.Revisions, &timeouts.Refill, &timeouts.Inspect} {
		*timeout = Limit
	}
	redistest.Main(m,
		// gorm's cache of statements has a goroutine that Close does not end, and the
		// catalogue's cache has one that lives as long as the process.
		goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"),
		goleak.IgnoreTopFunction("github.com/maypok86/otter/v2.periodicCleanUp[...]"))
}
