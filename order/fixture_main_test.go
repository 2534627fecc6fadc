package order

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
)

// runTests runs the tests of a package. It also checks that services, workers and listeners
// leave no goroutine behind.
func runTests(m *testing.M) {
	// The models are driven over the database, where a check takes a part of a
	// second. Each run draws other checks; -rapid.checks on the command line wins.
	longtest.Checks(25)
	// Most of the tests wait for a disk or for each other. The command line overrides this.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	// What one of these cuts off comes later, or is refused; that is tested where
	// the database or Redis is away, which takes no time to notice.
	// Groups of changes are bounded by their number alone.
	groupTime, groupLeast = limit, limit
	for _, timeout := range []*time.Duration{&readTimeout, &writeTimeout, &showTimeout, &giveTimeout, &tellTimeout, &ringTimeout, &lookHold} {
		*timeout = limit
	}
	redistest.Main(m,
		// gorm's cache of statements runs a goroutine that closing does not end,
		// and the catalogue's cache one that lives as long as the process.
		goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"),
		goleak.IgnoreTopFunction("github.com/maypok86/otter/v2.periodicCleanUp[...]"))
}
