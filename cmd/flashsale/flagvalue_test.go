package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flashsale/cmd/flashsale/config"
)

func commandLine() *cobra.Command {
	root, _ := newRoot()
	return root
}

// parsed are the types of flags whose values can be malformed.
var parsed = []string{"int", "int64", "uint64", "float64", "bool", "duration", "window", "stringSlice"}

// wantExplained runs the program and wants a usage error without the text of Go's parser.
func wantExplained(t *testing.T, name, value string, args []string) {
	t.Helper()
	root := commandLine()
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	var usage config.UsageError
	if !errors.As(err, &usage) {
		t.Errorf("%v: %v, want a usage error", args, err)
		return
	}
	text := err.Error()
	for _, word := range []string{name, strconv.Quote(value), "; write ", "for example "} {
		if !strings.Contains(text, word) {
			t.Errorf("%v: %q lacks %q", args, text, word)
		}
	}
	for _, word := range []string{"strconv.", "parsing", "time:", "invalid", "syntax"} {
		if strings.Contains(text, word) {
			t.Errorf("%v: %q says %q", args, text, word)
		}
	}
}

// A malformed value is explained with an example of a valid one, for every flag of every
// command, and for a setting from any source.
func TestFlags_Explained(t *testing.T) {
	seen := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			value := "x!"
			switch {
			case !slices.Contains(parsed, f.Value.Type()):
				return
			case f.Value.Type() == "stringSlice":
				value = "a\x22b"
			}
			seen++
			wantExplained(t, f.Name, value, append(strings.Fields(c.CommandPath())[1:], "--"+f.Name+"="+value))
			if !config.IsSetting(f.Name) || f.Value.Type() == "stringSlice" {
				return
			}
			file := filepath.Join(t.TempDir(), "settings.yaml")
			if err := os.WriteFile(file, []byte(f.Name+": "+value+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			wantExplained(t, config.EnvName(f.Name), value, []string{"config", "--config", file})
			t.Setenv(config.EnvName(f.Name), value)
			wantExplained(t, config.EnvName(f.Name), value, []string{"config"})
			t.Setenv(config.EnvName(f.Name), "")
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(commandLine())
	if seen < 30 {
		t.Errorf("%d flags were looked at: the test saw too few", seen)
	}
	for args, want := range map[string]string{
		"config --rate-buyer abc":            `setting rate-buyer (FLASHSALE_RATE_BUYER): value "abc": it is not a number; write a number, for example 20`,
		"config --lease 5":                   `setting lease (FLASHSALE_LEASE): value "5": it has no unit; write a number and a unit (ms, s, m or h), for example 5s`,
		"item create --payment-window 15":    `--payment-window "15": it has no unit; write a number and a unit (s, m or h), or none, for example 15m`,
		"item create --payment-window 1.5s":  `--payment-window "1.5s": it is neither a time in whole seconds nor none; write a number and a unit (s, m or h), or none, for example 15m`,
		"item change a --payment-window -5s": `--payment-window "-5s": it is neither a time in whole seconds nor none; write a number and a unit (s, m or h), or none, for example 15m`,
		"item create --stock x":              `--stock "x": it is not a whole number; write a whole number, for example 100`,
	} {
		root := commandLine()
		root.SetArgs(strings.Fields(args))
		if err := root.ExecuteContext(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", args, err, want)
		}
	}
}
