package targets_test

import (
	"bytes"
	"testing"

	"flashsale/bench/internal/targets"
)

func TestTargets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	targets.AtLeast(&out, "a", 0.8996, 0.9)
	targets.AtLeast(&out, "b", 5, 5)
	targets.AtMost(&out, "c", 1.51, 1.5)
	targets.AtMost(&out, "d", 0.2, 0.2)
	targets.None(&out, "e", 0)
	targets.None(&out, "f", 2)
	want := `BAR a 0.900 0.90 missed
BAR b 5.00 5.00 met
BAR c 1.51 1.50 missed
BAR d 0.200 0.20 met
BAR e 0 0 met
BAR f 2 0 missed
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
