package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/handler/problem"
	"flashsale/internal/histogram"
)

// errTest has a code that is known before New is called.
var errTest = problem.New(400, "code_in_tests", "Title", "Detail.")

// After its first use, a counter is not looked up again, and incrementing it allocates nothing.
func TestMetrics_LazyAllocations(t *testing.T) {
	m, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := m.Route("/somewhere")
	use := func() { r.Observe(1, 200, time.Millisecond); m.Problem(errTest.Code) }
	use()
	again := func() prometheus.Counter { t.Error("a counter is looked up again"); return nil }
	r.byClass[2].make, m.byCode[errTest.Code].make = again, again
	r.make = func() *histogram.Histogram { t.Error("a histogram is looked up again"); return nil }
	if n := testing.AllocsPerRun(100, use); n != 0 {
		t.Errorf("%g allocations for a request that is counted", n)
	}
}

// Every code has a counter from the start, so that counting a refusal takes no lock.
func TestNew_KnowsEveryCode(t *testing.T) {
	t.Parallel()
	m, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	for code := range problem.Statuses() {
		if m.byCode[code] == nil {
			t.Errorf("the code %s is not counted", code)
		}
	}
	m.Problem("undeclared") // an unknown code is counted, too
}
