package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"flashsale/internal/testing/process"
)

// TestMain also checks that a burst, its progress and the service it starts
// leave no goroutine behind.
func TestMain(m *testing.M) {
	// A server keeps a connection open for half a second if it did not read the request to the
	// end, and does not wait for that when it is closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"), goleak.Cleanup(func(code int) {
		process.Shutdown()
		os.Exit(code)
	}))
}
