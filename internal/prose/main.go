// The program prose counts constructions that make English hard to read, per 1,000 words, in
// the strings, documents and comments of the repository. `make prose` runs it. rules.txt lists
// the constructions and the wording to use instead.
//
// It prints each finding with its file and line, and a table of the counts against the
// targets. It exits 1 if a target is missed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// target is the highest number of findings per 1,000 words of one kind of text.
type target struct {
	kind string
	rate float64
}

var targets = []target{
	{kindStrings, 0},
	{kindReadme, 0},
	{kindDocs, 0.5},
	{kindComments, 1},
	{kindTests, 2},
}

var errMissed = errors.New("prose: a target is missed")

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("prose", flag.ContinueOnError)
	root := flags.String("root", ".", "folder to read")
	kinds := flags.String("kinds", "", "kinds whose findings are printed, separated by commas (default: all)")
	under := flags.String("under", "", "print only findings of paths that begin with this")
	quiet := flags.Bool("quiet", false, "print only the table")
	if err := flags.Parse(args); err != nil {
		return err
	}
	rules, err := parseRules(ruleFile)
	if err != nil {
		return err
	}
	texts, err := readTree(*root)
	if err != nil {
		return err
	}

	words := make(map[string]int)
	counts := make(map[string]int)
	for _, t := range texts {
		words[t.kind] += t.words()
		for _, f := range findings(rules, t) {
			counts[f.kind]++
			chosen := *kinds == "" || slices.Contains(strings.Split(*kinds, ","), f.kind)
			if !*quiet && chosen && strings.HasPrefix(f.path, *under) {
				fmt.Fprintf(out, "%s:%d: %s: [%s] %q; write: %s\n", f.path, f.line, f.kind, f.rule.name, clip(f.match), f.rule.write)
			}
		}
	}
	return report(out, words, counts)
}

// clip shortens a long match for the output.
func clip(match string) string {
	match = strings.TrimSpace(match)
	if len(match) > 60 {
		return match[:57] + "..."
	}
	return match
}

// report prints the table and returns errMissed if a kind exceeds its target.
func report(out io.Writer, words, counts map[string]int) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "kind\twords\tfindings\tper 1,000\ttarget\t")
	var result error
	for _, t := range targets {
		rate := perThousand(counts[t.kind], words[t.kind])
		verdict := "ok"
		if rate > t.rate {
			verdict, result = "missed", errMissed
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%.2f\t%g\t%s\n", t.kind, words[t.kind], counts[t.kind], rate, t.rate, verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return result
}

func perThousand(count, words int) float64 {
	if words == 0 {
		return 0
	}
	return 1000 * float64(count) / float64(words)
}
