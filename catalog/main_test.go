package catalog

import (
	"flag"
	"testing"

	"flashsale/internal/redistest"
)

func TestMain(m *testing.M) {
	// Most of the tests wait most of the time. The command line overrides this.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	redistest.Main(m)
}
