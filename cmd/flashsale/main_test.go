//go:build unix

// The tests of this folder run the service as its operators do: real processes,
// a real redis-server, and a database that is looked at from outside.
package main_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// parallel is how many tests run at once unless -parallel is given: they mostly wait
// for processes that wait for each other.
const parallel = "6"

func TestMain(m *testing.M) {
	// The flags on the command line are parsed later, and override this one.
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	code := m.Run()
	redistest.Shutdown()
	process.Shutdown()
	os.Exit(code)
}

// needProcesses skips what -short leaves out, and lets the test run beside others.
func needProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: it starts processes of the service, and -short asks for the quick tests")
	}
	t.Parallel()
}

const (
	// soon bounds the wait for what takes a moment. It is far above what is
	// needed, so that a busy machine does not fail a test.
	soon = 20 * time.Second
	// lookEvery is the pause between two looks at a condition.
	lookEvery = 15 * time.Millisecond
)

// eventually looks until ok says so, and fails the test when that takes longer
// than within. ok also says what it saw, for the message.
func eventually(t testing.TB, what string, within time.Duration, ok func() (bool, any)) {
	t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		good, saw := ok()
		if good {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("%s: not within %v; last seen: %+v", what, within, saw)
		}
	}
}
