package redistest

import (
	"flag"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	// Most of the tests mostly wait. The command line overrides this.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	Main(m)
}

// patience bounds waits for expected events. It is long because it only delays a failure.
const patience = 30 * time.Second
