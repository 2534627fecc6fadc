package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flashsale/internal/flagvalue"
)

// NoArgs refuses arguments with a usage error.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if args[0] == "true" || args[0] == "false" {
		return Usage(fmt.Errorf("unknown argument %q; write the value of a boolean flag as --name=%s", args[0], args[0]))
	}
	return Usage(fmt.Errorf("unknown command or argument %q; see %s --help", args[0], c.CommandPath()))
}

// Group returns a command that only has subcommands.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short,
		RunE: NeedCommand,
	}
	c.AddCommand(commands...)
	return c
}

// NeedCommand refuses a command that only has subcommands and was called without one of them.
func NeedCommand(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return NoArgs(c, args)
	}
	return Usage(fmt.Errorf("%s needs a command; see %s --help", CommandName(c), c.CommandPath()))
}

// FlagError converts a command-line error to a usage error. It explains a malformed value in
// the same words as one from the environment or a file.
func FlagError(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && strings.ContainsAny(firstByte(unknown.GetSpecifiedShortnames()), "0123456789.") {
		number := "-" + unknown.GetSpecifiedShortnames()
		return Usage(fmt.Errorf("argument %q: it is read as a flag, because it begins with -; give a flag's value as --name=%s, and write an id without the -; see %s --help",
			number, number, c.CommandPath()))
	}
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

// firstByte is the first byte of a text, or "".
func firstByte(text string) string { return text[:min(1, len(text))] }

// NoEmpty refuses flags that are given without a value, as in --item "$ITEM" when ITEM is not set.
// Without this, such a command would act on everything, or on a default instead of the value.
func NoEmpty(c *cobra.Command, names ...string) error {
	for _, name := range names {
		f := c.Flags().Lookup(name)
		list, isList := f.Value.(pflag.SliceValue)
		empty := !isList && f.Value.String() == "" || isList && len(list.GetSlice()) == 0
		if f.Changed && empty {
			return Usage(fmt.Errorf("--%s \"\": it is empty; write a value, or omit the flag", name))
		}
	}
	return nil
}

// CommandName is the name of a command in an error: without the program's, with which each error
// line begins.
func CommandName(c *cobra.Command) string {
	return strings.TrimPrefix(c.CommandPath(), "flashsale ")
}
