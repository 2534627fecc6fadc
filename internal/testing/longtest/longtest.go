// Package longtest separates the tests that need minutes from those that run on
// every change.
//
// `make test` runs without the variable and must end in a few minutes; `make test-long`
// sets it and runs every test, with the race detector. A long test ends its name in
// _Long, for readers of a report, and begins with [Only]:
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

// Variable is the name of the environment variable that turns the long tests
// on. Its only valid value is "1"; anything else leaves them off.
const Variable = "FLASHSALE_TEST_LONG"

// On reports whether the long tests are to run.
func On() bool { return os.Getenv(Variable) == "1" }

// Only skips the test, unless the long tests are to run.
func Only(t testing.TB) {
	t.Helper()
	if !On() {
		t.Skipf("a long test: `make test-long` runs it (%s=1)", Variable)
	}
}

// Scale returns short, or long if the long tests are to run.
func Scale(short, long int) int {
	if On() {
		return long
	}
	return short
}

// rapidChecks is how many cases rapid draws for a property unless told otherwise.
const rapidChecks = 100

// Checks limits the cases that rapid draws for each property to short, and to
// rapid's own default if the long tests are to run. A TestMain calls it before
// the flags are parsed, so -rapid.checks on the command line overrides it. It is
// for packages whose properties talk to a server; the others can afford the
// default.
func Checks(short int) {
	// The flag is registered by every test binary that imports rapid.
	if err := flag.Set("rapid.checks", strconv.Itoa(Scale(short, rapidChecks))); err != nil {
		panic(err)
	}
}
