package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var (
	codeSpan  = regexp.MustCompile("`(flashsale [^`]+)`")
	codeLine  = regexp.MustCompile(`(?m)^(?:[A-Z_]+=\S+ )*(flashsale .*)$`)
	codeShell = regexp.MustCompile("(?s)\n *```sh\n(.*?)```")
	htmlCode  = regexp.MustCompile(`<code>(flashsale [^<]+)</code>`)
	inText    = regexp.MustCompile(`flashsale [a-z]+(?: [a-z]+)?`)
)

// The commands and flags that the documents and the dashboard name exist.
func TestDocumentedCommands_Exist(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*/*", "web/*/*"} {
		files, err := filepath.Glob("../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if info, err := os.Stat(file); err != nil || info.IsDir() {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, command := range commandsIn(filepath.Ext(file), string(text)) {
				seen++
				if wrong := unknownIn(commandLine(), command); wrong != "" {
					t.Errorf("%s: %q: there is no %s", file, command, wrong)
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d commands were looked at: the test saw too few", seen)
	}
}

// commandsIn returns the commands in a file with the extension.
func commandsIn(ext, text string) []string {
	var found []string
	add := func(matches [][]string) {
		for _, m := range matches {
			found = append(found, m[1])
		}
	}
	switch ext {
	case ".md":
		add(codeSpan.FindAllStringSubmatch(text, -1))
		for _, block := range codeShell.FindAllStringSubmatch(text, -1) {
			var lines strings.Builder
			for line := range strings.Lines(block[1]) {
				lines.WriteString(strings.TrimLeft(line, " "))
			}
			add(codeLine.FindAllStringSubmatch(strings.ReplaceAll(lines.String(), "\\\n", ""), -1))
		}
	case ".html":
		add(htmlCode.FindAllStringSubmatch(text, -1))
	case ".js":
		for _, s := range inText.FindAllString(text, -1) {
			if word := strings.Fields(s)[1]; subcommand(commandLine(), word) != nil {
				found = append(found, s)
			}
		}
	}
	return found
}

// unknownIn returns the first word of a command line that is neither a command nor a flag, of those that must
// be one; "" for none.
func unknownIn(c *cobra.Command, line string) string {
	line, _, _ = strings.Cut(strings.ReplaceAll(line, `\|`, "|"), " #")
	for _, word := range strings.Fields(line)[1:] {
		word = strings.Trim(word, "[]&,;")
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(name, "=")
		switch {
		case word == "|" || word == ">":
			return ""
		case isFlag && name != "help" && name != "version" && c.Flags().Lookup(name) == nil && c.InheritedFlags().Lookup(name) == nil:
			return "flag " + word + " of " + c.CommandPath()
		case isFlag || !c.HasSubCommands() || word == "COMMAND":
			continue
		}
		for one := range strings.SplitSeq(word, "|") {
			sub := subcommand(c, one)
			if sub == nil {
				return "command " + one + " of " + c.CommandPath()
			}
			if one == word {
				c = sub
			}
		}
	}
	return ""
}

// subcommand returns the command's subcommand with the name, or nil.
func subcommand(c *cobra.Command, name string) *cobra.Command {
	for _, sub := range c.Commands() {
		if sub.Name() == name {
			return sub
		}
	}
	return nil
}
