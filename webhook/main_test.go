package webhook

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain also checks that clients leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
