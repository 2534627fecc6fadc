// Package flagvalue explains why the value of a flag cannot be read, with an example of a valid
// one. The value may come from the command line, the environment or a file.
package flagvalue

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// kinds are the types of flags whose values can be malformed. example replaces an uninformative
// default such as 0.
var kinds = map[string]struct{ cause, want, example string }{
	"int":         {"it is not a whole number", "a whole number", "100"},
	"int64":       {"it is not a whole number", "a whole number", "100"},
	"uint64":      {"it is not a whole number of 0 or more", "a whole number of 0 or more", "1"},
	"float64":     {"it is not a number", "a number", "0.5"},
	"bool":        {"it is neither true nor false", "true or false", "true"},
	"duration":    {"it is not a duration", "a number and a unit (ms, s, m or h)", "10m"},
	"window":      {"it is neither a time in whole seconds nor none", "a number and a unit (s, m or h), or none", "15m"},
	"stringSlice": {"it is not a list with commas", "values with commas between them and without quotation marks", "a,b"},
}

// Explain returns the cause and the fix for a value that the flag refused with err.
func Explain(f *pflag.Flag, value string, err error) (cause, fix string) {
	k, known := kinds[f.Value.Type()]
	if !known {
		return err.Error(), "see --help"
	}
	cause = k.cause
	if errors.Is(err, strconv.ErrRange) {
		cause = "it is out of range"
	}
	if _, err := strconv.ParseFloat(value, 64); err == nil && (f.Value.Type() == "duration" || f.Value.Type() == "window") {
		cause = "it has no unit"
	}
	return cause, "write " + k.want + ", for example " + example(f, k.example)
}

// example returns the flag's default, or other if the default is uninformative.
func example(f *pflag.Flag, other string) string {
	switch f.DefValue {
	case "", "0", "0s", "[]", "false":
		return other
	}
	// A duration prints as 1h0m0s, which users do not write.
	text := f.DefValue
	for _, zero := range []struct{ end, short string }{{"m0s", "m"}, {"h0m", "h"}} {
		if head, ok := strings.CutSuffix(text, zero.end); ok {
			text = head + zero.short
		}
	}
	return text
}
