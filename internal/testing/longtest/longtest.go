// Package longtest separates the tests that need minutes from those that run on
// every change.
//
// `make test` runs without the variable and must end in a few minutes; `make test-long` sets it
// and runs every test with the race detector. The name of a long test ends in _Long, for
// readers of a report, and its body begins with [Only]:
//
//	func TestCheck_MillionCalls_Long(t *testing.T) {
//		longtest.Only(t)
//		...
//	}
//
// A test that is also useful at a small size has two functions:
//
//	func TestQueue_Model(t *testing.T)      { testModel(t, 20) }
//	func TestQueue_Model_Long(t *testing.T) { longtest.Only(t); testModel(t, 2000) }
//
// [Checks] does the same for the number of cases that rapid draws. [Scale] is for a
// size that is set in one place only, such as a table of sizes.
package longtest

import (
	"flag"
	"os"
	"strconv"
	"testing"
)

// Variable is the environment variable that enables the long tests. Its only valid value is
// "1"; any other value leaves them disabled.
const Variable = "FLASHSALE_TEST_LONG"

// On reports whether the long tests are enabled.
func On() bool { return os.Getenv(Variable) == "1" }

// Only skips the test unless the long tests are enabled.
func Only(t testing.TB) {
	t.Helper()
	if !On() {
		t.Skipf("a long test: `make test-long` runs it (%s=1)", Variable)
	}
}

// Scale returns short, or long if the long tests are enabled.
func Scale(short, long int) int {
	if On() {
		return long
	}
	return short
}

// rapidChecks is rapid's default number of cases for a property.
const rapidChecks = 100

// Checks limits the number of cases that rapid draws for each property to short, or to rapid's
// default if the long tests are enabled. A TestMain calls it before the flags are parsed, so
// -rapid.checks on the command line overrides it. It is for packages whose properties use a
// server; others can afford the default.
func Checks(short int) {
	// Every test binary that imports rapid registers the flag.
	if err := flag.Set("rapid.checks", strconv.Itoa(Scale(short, rapidChecks))); err != nil {
		panic(err)
	}
}
