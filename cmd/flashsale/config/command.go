package config

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flashsale/internal/flagvalue"
)

// NoArgs refuses left-over words, as a mistake in usage.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(fmt.Errorf("unknown command or argument %q; see %s --help", args[0], c.CommandPath()))
	}
	return nil
}

// Group makes a command that does nothing without one of its own commands.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return NoArgs(c, args)
			}
			return Usage(fmt.Errorf("%s needs a command; see %s --help", c.CommandPath(), c.CommandPath()))
		},
	}
	c.AddCommand(commands...)
	return c
}

// FlagError is the refusal of a command line that cannot be read. A value that has
// the wrong form is explained in the same words wherever it comes from.
func FlagError(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return Usage(fmt.Errorf("%w; see %s --help", err, c.CommandPath()))
	}
	name, value := invalid.GetFlag().Name, invalid.GetValue()
	cause, fix := flagvalue.Explain(invalid.GetFlag(), value, err)
	if IsSetting(name) {
		return BadSetting(name, value, cause, fix)
	}
	return Usage(fmt.Errorf("--%s %q: %s; %s", name, value, cause, fix))
}
