package catalog

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	// Most tests wait most of the time. The command line overrides this.
	if err := flag.Set("test.parallel", strconv.Itoa(8*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	redistest.Main(m)
}
