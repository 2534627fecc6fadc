package longtest_test

import (
	"flag"
	"testing"

	_ "pgregory.net/rapid" // registers the flag that Checks sets

	"flashsale/internal/testing/longtest"
)

func TestOnly(t *testing.T) {
	for _, c := range []struct {
		value string
		runs  bool
	}{{"", false}, {"0", false}, {"true", false}, {"1", true}} {
		t.Setenv(longtest.Variable, c.value)
		ran := false
		t.Run("value "+c.value, func(t *testing.T) {
			longtest.Only(t)
			ran = true
		})
		if ran != c.runs {
			t.Errorf("%s=%q: ran %v, want %v", longtest.Variable, c.value, ran, c.runs)
		}
	}
}

func TestScale(t *testing.T) {
	t.Setenv(longtest.Variable, "")
	if got := longtest.Scale(3, 300); got != 3 {
		t.Errorf("scale without the variable: %d, want 3", got)
	}
	t.Setenv(longtest.Variable, "1")
	if got := longtest.Scale(3, 300); got != 300 {
		t.Errorf("scale with the variable: %d, want 300", got)
	}
}

func TestChecks(t *testing.T) {
	f := flag.Lookup("rapid.checks")
	before := f.Value.String()
	t.Cleanup(func() {
		if err := f.Value.Set(before); err != nil {
			t.Error(err)
		}
	})
	for value, want := range map[string]string{"": "7", "1": f.DefValue} {
		t.Setenv(longtest.Variable, value)
		longtest.Checks(7)
		if got := f.Value.String(); got != want {
			t.Errorf("%s=%q: %s checks, want %s", longtest.Variable, value, got, want)
		}
	}
}
