package auth_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain also checks that refreshed key sets leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
