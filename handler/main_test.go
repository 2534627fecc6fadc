package handler

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain also checks that requests, streams and servers leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
