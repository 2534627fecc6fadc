package catalog

import (
	"testing"

	"flashsale/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
