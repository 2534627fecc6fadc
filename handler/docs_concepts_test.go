package handler_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// page is a Markdown file of the repository.
type page struct {
	name string // from the repository's root
	text string
}

func readPage(t *testing.T, name string) page {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return page{name, string(text)}
}

// pageLink is a link to another file of the repository.
type pageLink struct {
	text   string
	target string // from the repository's root
	anchor string // "" for none
}

var pageLinkForm = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)

// links returns the links in a part of the page, without those to other sites.
func (p page) links(text string) []pageLink {
	var all []pageLink
	for _, m := range pageLinkForm.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[2], "://") {
			continue
		}
		target, anchor, _ := strings.Cut(m[2], "#")
		all = append(all, pageLink{m[1], path.Join(path.Dir(p.name), target), anchor})
	}
	return all
}

// identifier is a link text that names a declaration in the file: `Lock.Held`.
var identifier = regexp.MustCompile("^`(?:[A-Za-z_]+\\.)?([A-Za-z_]+)`$")

// checkLink checks that the file exists, and contains what the link names.
func checkLink(t *testing.T, p page, l pageLink) {
	t.Helper()
	if info, err := os.Stat("../" + l.target); err != nil {
		t.Errorf("%s: the link %q leads nowhere: %v", p.name, l.text, err)
		return
	} else if info.IsDir() {
		return
	}
	target := readPage(t, l.target).text
	if l.anchor != "" && !slices.Contains(anchorsOf(target), l.anchor) {
		t.Errorf("%s: %s has no heading #%s", p.name, l.target, l.anchor)
	}
	if m := identifier.FindStringSubmatch(l.text); m != nil && !regexp.MustCompile(`\b`+m[1]+`\b`).MatchString(target) {
		t.Errorf("%s: %s has no %s", p.name, l.target, m[1])
	}
}

var (
	heading    = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInSlugs = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchorsOf returns the anchors of a page's headings, in GitHub's form.
func anchorsOf(text string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		slug := notInSlugs.ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(slug, " ", "-"))
	}
	return all
}

// technique is a row of the concepts: a technique and its place in the code.
type technique struct {
	id    string
	cells []string
	links []pageLink
}

var techniqueRow = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|(.+)\\|$")

func (p page) techniques() []technique {
	var all []technique
	for _, m := range techniqueRow.FindAllStringSubmatch(p.text, -1) {
		all = append(all, technique{m[1], strings.Split(m[2], " | "), p.links(m[2])})
	}
	return all
}

var runExample = regexp.MustCompile(`go test (?:-v )?-run '?\^?(Example\w*)\$?'? \./([\w/]+)`)

// checkExample checks that a row's last link runs an example in the linked file.
func checkExample(t *testing.T, p page, row technique) {
	t.Helper()
	l := row.links[len(row.links)-1]
	m := runExample.FindStringSubmatch(l.text)
	if m == nil {
		t.Errorf("%s: the row %s does not end with a link that runs an example", p.name, row.id)
		return
	}
	name, folder := m[1], m[2]
	if path.Dir(l.target) != folder {
		t.Errorf("%s: %s is not in ./%s", p.name, l.target, folder)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "../"+l.target, nil, parser.ParseComments)
	if err != nil {
		t.Error(err)
		return
	}
	examples := doc.Examples([]*ast.File{file}...)
	if !slices.ContainsFunc(examples, func(e *doc.Example) bool { return "Example"+e.Name == name && e.Output != "" }) {
		t.Errorf("%s: %s has no %s with an output", p.name, l.target, name)
	}
}

// TestDocs_Concepts: the two pages of techniques have the same rows, and their links, names and
// commands exist.
func TestDocs_Concepts(t *testing.T) {
	t.Parallel()
	pages := []page{readPage(t, "docs/concepts.md"), readPage(t, "docs/concepts.zh.md")}
	rows := [][]technique{pages[0].techniques(), pages[1].techniques()}
	const least = 30
	if len(rows[0]) < least || len(rows[0]) != len(rows[1]) {
		t.Fatalf("%d rows in English and %d in Chinese, want the same number, at least %d", len(rows[0]), len(rows[1]), least)
	}
	seen := make(map[string]bool)
	for i, row := range rows[0] {
		other := rows[1][i]
		if row.id != other.id {
			t.Fatalf("row %d is %s in English and %s in Chinese", i+1, row.id, other.id)
		}
		if seen[row.id] {
			t.Errorf("%s has two rows", row.id)
		}
		seen[row.id] = true
		if !slices.Equal(row.links, other.links) {
			t.Errorf("%s: the links differ:\n%v\n%v", row.id, row.links, other.links)
		}
		for n, row := range []technique{row, other} {
			if len(row.cells) != 4 || len(row.links) < 2 {
				t.Errorf("%s: the row %s has %d cells and %d links", pages[n].name, row.id, len(row.cells), len(row.links))
				continue
			}
			checkExample(t, pages[n], row)
		}
	}
	for _, p := range pages {
		for _, l := range p.links(p.text) {
			checkLink(t, p, l)
		}
	}
}

var (
	codeBlock    = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```")
	shellComment = regexp.MustCompile(`\s+#.*$`)
	inlineCode   = regexp.MustCompile("`((?:go|make|flashsale) [^`]+)`")
)

// commands returns the lines of the page's code blocks, without comments.
func (p page) commands() []string {
	var all []string
	for _, block := range codeBlock.FindAllStringSubmatch(p.text, -1) {
		for line := range strings.Lines(block[1]) {
			if line = shellComment.ReplaceAllString(strings.TrimSpace(line), ""); line != "" {
				all = append(all, line)
			}
		}
	}
	return all
}

// TestDocs_ReadmeZH: the commands in the Chinese README are all in README.md or in the pages to which
// it leads for commands, its links are valid, and the two link to each other.
func TestDocs_ReadmeZH(t *testing.T) {
	t.Parallel()
	english, chinese := readPage(t, "README.md"), readPage(t, "README.zh.md")
	commands, known, texts := chinese.commands(), english.commands(), english.text
	for _, name := range []string{"docs/operating.md", "docs/api.md", "docs/benchmarks.md"} {
		more := readPage(t, name)
		known, texts = append(known, more.commands()...), texts+more.text
	}
	if len(commands) < 15 {
		t.Errorf("README.zh.md has %d lines of commands, want at least 15", len(commands))
	}
	for _, c := range commands {
		if !slices.Contains(known, c) {
			t.Errorf("README.zh.md has a line in a code block that no English page has: %s", c)
		}
	}
	for _, m := range inlineCode.FindAllStringSubmatch(chinese.text, -1) {
		if !strings.Contains(texts, m[1]) {
			t.Errorf("README.zh.md has a command that no English page has: %s", m[1])
		}
	}
	for _, l := range chinese.links(chinese.text) {
		checkLink(t, chinese, l)
	}
	linked := func(from page, to string) bool {
		return slices.ContainsFunc(from.links(from.text), func(l pageLink) bool { return l.target == to })
	}
	if !linked(english, chinese.name) || !linked(chinese, english.name) {
		t.Error("README.md and README.zh.md do not link to each other")
	}
}
