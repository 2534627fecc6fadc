package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func mustRules(t *testing.T) []rule {
	t.Helper()
	rules, err := parseRules(ruleFile)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// prose returns the names of the rules that a text of one kind matches.
func prose(t *testing.T, kind, sentence string) string {
	t.Helper()
	d := new(draft)
	d.add(sentence, 1)
	var names []string
	for _, f := range findings(mustRules(t), d.text("x.md", kind)) {
		names = append(names, f.rule.name)
	}
	return strings.Join(names, ", ")
}

func TestRules_Find(t *testing.T) {
	t.Parallel()
	for sentence, want := range map[string]string{
		"Who waits gets the order.":                          "free who",
		"It is done; who comes later gets 204.":              "free who",
		"the reason, for who reads the log":                  "free who",
		"Whoever holds the lock sells.":                      "whoever",
		"It tells the API of the order.":                     "tell of",
		"It tells whether the sale is open.":                 "tells whether",
		"The worker is told at once.":                        "is told",
		"A buyer hears sold_out.":                            "hear",
		"The sale is built anew.":                            "anew",
		"Repair mends what differs.":                         "mend",
		"The lock lapses within 1 s.":                        "lapse",
		"The rule stands in the document.":                   "stands",
		"That is a matter of Redis alone.":                   "alone",
		"Stock is checked. What prevents more is the guard.": "fronted what",
		"The lock was not to be had":                         "to be had",
		"Nobody waits for it.":                               "nobody",
		"It did not answer of late, so calls are refused.":   "of late",
		"The client comes again later.":                      "comes again",
		"The sweeper looks after late orders.":               "looks after",
		"It fails for want of space.":                        "for want of",
		"It is as good as lost.":                             "as good as",
		"The job ends by itself.":                            "by itself",
		"The epoch is of another database.":                  "is of",
		"Four loads run at a time.":                          "at a time",
		"It looks for lost tasks.":                           "looks for",
		"The crew drains.":                                   "retired name",
	} {
		if got := prose(t, kindDocs, sentence); got != want {
			t.Errorf("%q: found [%s], want [%s]", sentence, got, want)
		}
	}
}

func TestRules_AllowGoodEnglish(t *testing.T) {
	t.Parallel()
	for _, sentence := range []string{
		"A buyer who waits gets the order, and one who does not gets 202.",
		"The process, who is slow, waits.",
		"The log shows who changed the item.",
		"Who may read it? Admins.",
		"It means what it says.",
		"What an answer means",
		"What does it cost?",
		"It stands for itself? No: JSON stands for a notation.",
		"Leave the sale alone.",
		"NoBody ends a request, and REPLICAOF NO ONE a replication.",
		"A client cannot tell whether it was made.",
		"A stand-alone program.",
		"One order at a time, at a time when no sale is open.",
		"It reads 500 rows at a time.",
		"Of course it is of interest.",
		"The table of late orders.",
		"The latest order is there.",
		"An order that is recommended.",
	} {
		if got := prose(t, kindDocs, sentence); got != "" {
			t.Errorf("%q: found [%s]", sentence, got)
		}
	}
}

func TestRules_KindLimit(t *testing.T) {
	t.Parallel()
	const sentence = "commit failed, trying again"
	if got := prose(t, kindStrings, sentence); got != "trying again" {
		t.Errorf("in strings: found [%s]", got)
	}
	if got := prose(t, kindDocs, sentence); got != "" {
		t.Errorf("in docs: found [%s]", got)
	}
}

func TestParseRules_Errors(t *testing.T) {
	t.Parallel()
	for _, file := range []string{
		"find: x",
		"[a]\nfind: x",
		"[a]\nwrite: y",
		"[a]\nfind: (\nwrite: y",
		"[a]\nfind: x\nfind: z\nwrite: y",
		"[a]\nseek: x\nwrite: y",
		"[a]\nfind x",
	} {
		if _, err := parseRules(file); err == nil {
			t.Errorf("no error for %q", file)
		}
	}
}

// places formats findings as "line kind rule".
func places(t *testing.T, texts []text) string {
	t.Helper()
	var lines []string
	for _, text := range texts {
		for _, f := range findings(mustRules(t), text) {
			lines = append(lines, fmt.Sprintf("%d %s %s", f.line, f.kind, f.rule.name))
		}
	}
	return strings.Join(lines, "\n")
}

const goSource = `// Package p sells.
//
// Its stock is built
// anew.
package p

import _ "is/told/of a thing"

// F is called by nobody.
//
//nolint:mend // a directive
func F() string {
	const query = "SELECT a FROM nobody WHERE b"
	const key = "nobody"
	log("the lock was not " +
		"to be had")
	return ` + "`first line here\nand the sale is mended`" + `
}

type t struct {
	A int ` + "`doc:\"not to be mended here\"`" + `
}
`

func TestReadGo(t *testing.T) {
	t.Parallel()
	texts, err := readGo("p/p.go", []byte(goSource))
	if err != nil {
		t.Fatal(err)
	}
	want := "4 comments anew\n9 comments nobody\n16 strings to be had\n18 strings mend"
	if got := places(t, texts); got != want {
		t.Errorf("found:\n%s\nwant:\n%s", got, want)
	}
	texts, err = readGo("p/p_test.go", []byte(goSource))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := places(t, texts), "4 tests anew\n9 tests nobody"; got != want {
		t.Errorf("in a test, found:\n%s\nwant:\n%s", got, want)
	}
}

func TestReadMarkdown(t *testing.T) {
	t.Parallel()
	source := strings.Join([]string{
		"# Built anew",
		"",
		"A sale is `mended` and [told](of/nobody.md) again,",
		"for",
		"who waits.",
		"",
		"```",
		"nobody",
		"```",
		"| a | b |",
		"| is | of late |",
		"- it looks",
		"  after them",
	}, "\n")
	want := "1 docs anew\n11 docs of late\n12 docs looks after\n4 docs free who"
	got := places(t, readMarkdown("x.md", kindDocs, []byte(source)))
	for _, line := range strings.Split(want, "\n") {
		if !strings.Contains(got, line) {
			t.Errorf("missing %q in:\n%s", line, got)
		}
	}
	if strings.Count(got, "\n") != strings.Count(want, "\n") {
		t.Errorf("found:\n%s\nwant:\n%s", got, want)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("README.md", "A sale opens on time.\n")
	write("README.zh.md", "built anew\n")
	write(".cache/README.md", "built anew\n")
	if err := run([]string{"-root", root}, io.Discard); err != nil {
		t.Errorf("plain text: %v", err)
	}

	write("README.md", "A sale is\nbuilt anew.\n")
	var out strings.Builder
	if err := run([]string{"-root", root}, &out); !errors.Is(err, errMissed) {
		t.Errorf("a missed target: %v", err)
	}
	for _, want := range []string{`README.md:2: README: [anew] "anew"`, "README    5      1         200.00"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// Comments may have findings as long as they stay below their rate.
func TestReport_Rates(t *testing.T) {
	t.Parallel()
	words := map[string]int{kindComments: 2000}
	if err := report(io.Discard, words, map[string]int{kindComments: 2}); err != nil {
		t.Errorf("at the target: %v", err)
	}
	if err := report(io.Discard, words, map[string]int{kindComments: 3}); !errors.Is(err, errMissed) {
		t.Errorf("above the target: %v", err)
	}
}
