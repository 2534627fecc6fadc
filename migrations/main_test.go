package migrations

import (
	"testing"

	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	// The properties use a server.
	longtest.Checks(20)
	redistest.Main(m)
}
