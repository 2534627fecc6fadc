package service

import (
	"os"
	"testing"

	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	redistest.Shutdown()
	os.Exit(code)
}
