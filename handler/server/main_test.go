package server

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain also checks that requests, streams and servers leave no goroutine behind.
func TestMain(m *testing.M) {
	// A server lingers for half a second on a connection whose request it did not read
	// completely, and its Close does not wait for that.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
