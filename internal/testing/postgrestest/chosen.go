package postgrestest

import (
	"os"
	"testing"
)

// Variable is the environment variable that selects the database of the tests that run on both:
// "sqlite", the default, or "postgres". `make test-postgres` sets it.
const Variable = "FLASHSALE_TEST_DATABASE"

// Chosen reports whether the tests that run on both databases use Postgres. It fails the test if
// [Variable] has another value than those two.
func Chosen(t testing.TB) bool {
	t.Helper()
	switch name := os.Getenv(Variable); name {
	case "", "sqlite":
		return false
	case "postgres":
		return true
	default:
		t.Fatalf("%s is %q; want sqlite or postgres", Variable, name)
		return false
	}
}
