package main

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain also checks that a burst, its progress and the service it starts
// leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
