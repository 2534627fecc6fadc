//go:build unix

// The tests of this folder run the service like operators: with real processes and a real
// redis-server, and with checks that read the database directly.
package main_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// parallel is the number of concurrent tests unless -parallel is given: they mostly wait for
// processes that wait for each other.
const parallel = "6"

func TestMain(m *testing.M) {
	// The flags on the command line are parsed later and override this.
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	code := m.Run()
	redistest.Shutdown()
	process.Shutdown()
	os.Exit(code)
}

// needProcesses skips the test with -short, and marks it as parallel.
func needProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: it starts processes of the service, and -short asks for the quick tests")
	}
	t.Parallel()
}

const (
	// soon bounds the wait for events that take a moment. It is far longer than necessary, so
	// that a busy machine does not fail a test.
	soon = 2 * time.Minute
	// lookEvery is the pause between two checks of a condition.
	lookEvery = 15 * time.Millisecond
)

// eventually calls ok until it returns true, and fails the test if that takes longer than
// within. The second result of ok describes the state, for the message.
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
