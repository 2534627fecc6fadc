package auth_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain also checks that key sets which are fetched again and again leave no
// goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
