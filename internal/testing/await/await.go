// Package await provides waiting for tests: one limit, a context bound to it, and polling for
// conditions that no signal announces.
package await

import (
	"context"
	"testing"
	"time"
)

// Limit bounds everything that a test waits for. It is long because it only delays a failure:
// a busy machine must not cause one.
const Limit = 5 * time.Minute

// Context returns a context that ends with the test, or after [Limit].
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	t.Cleanup(cancel)
	return ctx
}

// True polls ok every 2 ms until it returns true. It fails the test after [Limit]; the message
// contains what, the name of the condition.
func True(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Every(t, 2*time.Millisecond, what, ok)
}

// Every is [True] with a pause of its own, for conditions that are expensive to check.
func Every(t testing.TB, pause time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	limit := time.NewTimer(Limit)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited %v in vain for: %s", Limit, what)
		}
	}
}
