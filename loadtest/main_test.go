package main

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"flashsale/internal/testing/atend"
	"flashsale/internal/testing/process"
)

// TestMain also checks that a burst, its progress and the service it starts
// leave no goroutine behind.
func TestMain(m *testing.M) {
	code := m.Run()
	atend.Run()
	if code == 0 {
		// A server keeps a connection open for half a second if it did not read the request to
		// the end, and does not wait for that when it is closed.
		if err := goleak.Find(goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait")); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
			code = 1
		}
	}
	process.Shutdown()
	os.Exit(code)
}
