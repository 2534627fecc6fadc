package flagvalue

import (
	"errors"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Int("connections", 256, "")
	f.Int64("stock", 0, "")
	f.Uint64("seed", 1, "")
	f.Float64("rate", 20, "")
	f.Float64("share", 0, "")
	f.Bool("demo", false, "")
	f.Duration("lease", 5*time.Second, "")
	f.Duration("timeout", time.Minute, "")
	f.Duration("ttl", time.Hour, "")
	f.Duration("long", 90*time.Minute, "")
	f.Duration("window", 0, "")
	f.StringSlice("proxies", nil, "")
	for _, c := range []struct{ flag, value, cause, fix string }{
		{"connections", "many", "it is not a whole number", "write a whole number, for example 256"},
		{"connections", "1.5", "it is not a whole number", "write a whole number, for example 256"},
		{"connections", "99999999999999999999", "it is out of range", "write a whole number, for example 256"},
		{"stock", "x", "it is not a whole number", "write a whole number, for example 100"},
		{"stock", "", "it is not a whole number", "write a whole number, for example 100"},
		{"seed", "-1", "it is not a whole number of 0 or more", "write a whole number of 0 or more, for example 1"},
		{"rate", "abc", "it is not a number", "write a number, for example 20"},
		{"rate", "1e999", "it is out of range", "write a number, for example 20"},
		{"share", "half", "it is not a number", "write a number, for example 0.5"},
		{"demo", "perhaps", "it is neither true nor false", "write true or false, for example true"},
		{"lease", "5", "it has no unit", "write a number and a unit (ms, s, m or h), for example 5s"},
		{"lease", "1.5", "it has no unit", "write a number and a unit (ms, s, m or h), for example 5s"},
		{"lease", "soon", "it is not a duration", "write a number and a unit (ms, s, m or h), for example 5s"},
		{"timeout", "", "it is not a duration", "write a number and a unit (ms, s, m or h), for example 1m"},
		{"ttl", "1d", "it is not a duration", "write a number and a unit (ms, s, m or h), for example 1h"},
		{"long", "1d", "it is not a duration", "write a number and a unit (ms, s, m or h), for example 1h30m"},
		{"window", "15", "it has no unit", "write a number and a unit (ms, s, m or h), for example 10m"},
		{"proxies", `"`, "it is not a list with commas", "write values with commas between them and without quotation marks, for example a,b"},
	} {
		var invalid *pflag.InvalidValueError
		if err := f.Parse([]string{"--" + c.flag + "=" + c.value}); !errors.As(err, &invalid) {
			t.Fatalf("--%s %q: %v, want it refused", c.flag, c.value, err)
		}
		if cause, fix := Explain(invalid.GetFlag(), invalid.GetValue(), invalid); cause != c.cause || fix != c.fix {
			t.Errorf("--%s %q: %q; %q\nwant %q; %q", c.flag, c.value, cause, fix, c.cause, c.fix)
		}
	}
}
