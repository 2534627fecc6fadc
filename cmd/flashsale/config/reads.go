package config

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every command accepts every setting as a flag, so that scripts can pass all commands the same
// flags. Reads says which of them a command reads.

// readsKey is the annotation of a command with the settings that it reads.
const readsKey = "flashsale_reads"

// Any is the name, in Reads, for all settings that the help need not show.
const Any = "*"

// APISettings are those of commands that go through the API.
var APISettings = []string{"addr", "data-dir", "jwt-secret", "config"}

// Reads declares the settings that a command and its subcommands read. Their help shows only these, and
// flags of others are reported as having no effect. A command that reads jwt-secret reads all settings
// of identity. A command without a declaration reads all settings.
func Reads(c *cobra.Command, settings ...string) *cobra.Command {
	if c.Annotations == nil {
		c.Annotations = make(map[string]string)
	}
	c.Annotations[readsKey] = strings.Join(settings, " ")
	return c
}

// readsOf returns the settings that a command has declared; all: it reads every one.
func readsOf(c *cobra.Command) (settings []string, all bool) {
	for ; c.HasParent(); c = c.Parent() {
		if declared, ok := c.Annotations[readsKey]; ok {
			return strings.Fields(declared), false
		}
		if name := c.Name(); name == "help" || name == "completion" { // cobra's own
			return nil, false
		}
	}
	return nil, true
}

// hideUnread hides the settings that the help of a command need not show, and reports whether
// there are any.
func hideUnread(c *cobra.Command) bool {
	shown, all := readsOf(c)
	if all {
		return false
	}
	c.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Hidden || IsSetting(f.Name) && !slices.Contains(shown, f.Name)
	})
	return true
}

// ShowReads makes the help and the completion of every command show only the settings that the
// command reads, and prints a note about flags of other settings. helpErr returns the error of
// writing the help, which the library ignores.
func ShowReads(root *cobra.Command) (helpErr func() error) {
	var failed error
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		var text bytes.Buffer
		out := c.OutOrStdout()
		c.SetOut(&text)
		hidden := hideUnread(c)
		help(c, args)
		c.SetOut(out)
		if hidden {
			fmt.Fprintf(&text, "\nAll settings of the service: %s serve --help\n", root.Name())
		}
		_, failed = out.Write(text.Bytes())
	})
	root.PersistentPreRun = func(c *cobra.Command, args []string) {
		if name := c.Name(); name == cobra.ShellCompRequestCmd || name == cobra.ShellCompNoDescRequestCmd {
			if completed, _, err := root.Find(args); err == nil {
				hideUnread(completed)
			}
			return
		}
		read, all := readsOf(c)
		if all || slices.Contains(read, Any) {
			return
		}
		if slices.Contains(read, "jwt-secret") {
			read = append(read, identitySettings()...)
		}
		c.Flags().Visit(func(f *pflag.Flag) {
			if IsSetting(f.Name) && !slices.Contains(read, f.Name) {
				fmt.Fprintf(c.ErrOrStderr(), "%s: --%s has no effect on %s\n", root.Name(), f.Name, c.CommandPath())
			}
		})
	}
	return func() error { return failed }
}

// identitySettings are the settings that define keys and tokens.
func identitySettings() []string {
	names := []string{"jwks"}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	defineIdentity(f)
	f.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}
