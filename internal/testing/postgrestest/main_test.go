package postgrestest

import (
	"testing"

	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
