package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// The kinds of text, in the order of the table.
const (
	kindStrings  = "strings"  // string literals with prose: logs, errors, help, output
	kindReadme   = "README"   // README.md of the repository and of its libraries
	kindDocs     = "docs"     // the other Markdown files, decisions and changelog included
	kindComments = "comments" // comments of the Go code
	kindTests    = "tests"    // comments of the Go tests
)

// text is a piece of prose. Words are separated by one space, paragraphs by a line break.
type text struct {
	path  string
	kind  string
	body  string
	lines []int // the source line of each byte of body
}

func (t text) line(offset int) int {
	for offset < len(t.body)-1 && (t.body[offset] == ' ' || t.body[offset] == '\n') {
		offset++
	}
	return t.lines[offset]
}

var word = regexp.MustCompile(`[A-Za-z][A-Za-z'’-]*`)

func (t text) words() int { return len(word.FindAllStringIndex(t.body, -1)) }

// draft collects the lines of a text.
type draft struct {
	body  []byte
	lines []int
}

func (d *draft) add(s string, line int) {
	for i := range len(s) {
		d.body = append(d.body, s[i])
		d.lines = append(d.lines, line)
	}
}

// text returns the collected text with runs of white space reduced to one character:
// a line break if the run contains a paragraph mark, which the readers write as \n.
func (d *draft) text(path, kind string) text {
	t := text{path: path, kind: kind}
	var body []byte
	for i, c := range d.body {
		if c == '\t' {
			c = ' '
		}
		last := len(body) - 1
		if last >= 0 && (c == ' ' || c == '\n') && (body[last] == ' ' || body[last] == '\n') {
			if c == '\n' {
				body[last] = c
			}
			continue
		}
		body = append(body, c)
		t.lines = append(t.lines, d.lines[i])
	}
	t.body = string(body)
	return t
}

// readGo returns the comments of a Go file and, unless it is a test, its strings.
func readGo(path string, source []byte) ([]text, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("prose: %w", err)
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	kind := kindComments
	if strings.HasSuffix(path, "_test.go") {
		kind = kindTests
	}
	var texts []text
	for _, group := range file.Comments {
		texts = append(texts, comment(group, files).text(path, kind))
	}
	if kind == kindTests {
		return texts, nil
	}
	skipped := make(map[ast.Node]bool) // imports, tags, and parts of a sum that was read as a whole
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			if n.Tag != nil {
				skipped[n.Tag] = true
			}
		case ast.Expr:
			if skipped[n] {
				return false
			}
			if d := new(draft); concatenated(n, files, d) {
				if t := d.text(path, kindStrings); isProse(t) {
					texts = append(texts, t)
				}
				return false
			}
		}
		return true
	})
	return texts, nil
}

// comment returns the sentences of a comment without its markers and directives.
func comment(group *ast.CommentGroup, files *token.FileSet) *draft {
	d := new(draft)
	for _, c := range group.List {
		first := files.Position(c.Pos()).Line
		for i, line := range strings.Split(c.Text, "\n") {
			line = strings.TrimSuffix(strings.TrimPrefix(line, "/*"), "*/")
			line = strings.TrimPrefix(line, "//")
			if strings.HasPrefix(line, "go:") || strings.HasPrefix(line, "nolint") {
				continue
			}
			if strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "- ") {
				d.add("\n", first+i)
			}
			d.add(line+" ", first+i)
		}
	}
	d.add("\n", files.Position(group.End()).Line)
	return d
}

// concatenated adds the string that an expression of literals and + denotes. An operand that
// is not a literal is written as a word of its own. It reports false for other expressions.
func concatenated(e ast.Expr, files *token.FileSet, d *draft) bool {
	switch n := e.(type) {
	case *ast.BasicLit:
		if n.Kind != token.STRING {
			return false
		}
		value, err := strconv.Unquote(n.Value)
		if err != nil {
			return false
		}
		line := files.Position(n.Pos()).Line
		raw := strings.HasPrefix(n.Value, "`")
		for _, part := range strings.SplitAfter(value, "\n") {
			d.add(part, line)
			if raw && strings.HasSuffix(part, "\n") {
				line++
			}
		}
		return true
	case *ast.BinaryExpr:
		if n.Op != token.ADD {
			return false
		}
		left, right := new(draft), new(draft)
		isLeft, isRight := concatenated(n.X, files, left), concatenated(n.Y, files, right)
		if !isLeft && !isRight {
			return false
		}
		for _, side := range []*draft{left, right} {
			if len(side.body) == 0 {
				side.add("X", files.Position(n.Pos()).Line)
			}
			d.body, d.lines = append(d.body, side.body...), append(d.lines, side.lines...)
		}
		return true
	default:
		return false
	}
}

var statement = regexp.MustCompile(`^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|WITH|PRAGMA|BEGIN|ALTER|DROP|--)\b|\b(WHERE|FROM|SET|VALUES|ORDER BY|local|redis\.call)\b`)

// isProse tells sentences from identifiers, formats, SQL and Lua.
func isProse(t text) bool {
	return t.words() >= 3 && strings.Contains(strings.TrimSpace(t.body), " ") && !statement.MatchString(t.body)
}

var (
	codeSpan  = regexp.MustCompile("`[^`\n]+`")
	linkURL   = regexp.MustCompile(`\]\([^)\n]*\)`)
	listItem  = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s`)
	plainText = regexp.MustCompile(`[^\n]`)
)

// readMarkdown returns the prose of a Markdown file: code and link targets are left out, and
// headings, list items and table cells are paragraphs.
func readMarkdown(path, kind string, source []byte) []text {
	d := new(draft)
	fenced := false
	for i, line := range strings.Split(string(source), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			d.add("\n", i+1)
			continue
		}
		if fenced {
			continue
		}
		trimmed := strings.TrimSpace(line)
		heading := strings.HasPrefix(trimmed, "#")
		table := strings.HasPrefix(trimmed, "|")
		if trimmed == "" || heading || table || listItem.MatchString(line) {
			d.add("\n", i+1)
		}
		if table {
			line = strings.ReplaceAll(line, "|", "\n")
		}
		d.add(strings.TrimLeft(line, "#>-* ")+" ", i+1)
		if heading {
			d.add("\n", i+1)
		}
	}
	// A masked byte keeps the offsets, and with them the line numbers.
	body := codeSpan.ReplaceAllFunc(d.body, func(span []byte) []byte {
		return plainText.ReplaceAll(span, []byte("x"))
	})
	d.body = linkURL.ReplaceAllFunc(body, func(span []byte) []byte {
		return append([]byte("]"), plainText.ReplaceAll(span[1:], []byte(" "))...)
	})
	return []text{d.text(path, kind)}
}

// readTree returns the texts of all files under root. Translations, build output, hidden
// folders and this program's own rules are left out.
func readTree(root string) ([]text, error) {
	var texts []text
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		relative = filepath.ToSlash(relative)
		if entry.IsDir() {
			hidden := strings.HasPrefix(name, ".") && relative != "."
			if hidden || name == "testdata" || name == "bin" || relative == "internal/prose" {
				return filepath.SkipDir
			}
			return nil
		}
		goFile := strings.HasSuffix(name, ".go")
		markdown := strings.HasSuffix(name, ".md") && !strings.HasSuffix(name, ".zh.md")
		if !goFile && !markdown {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if goFile {
			read, err := readGo(relative, source)
			texts = append(texts, read...)
			return err
		}
		kind := kindDocs
		if name == "README.md" && !strings.HasPrefix(relative, "docs/") {
			kind = kindReadme
		}
		texts = append(texts, readMarkdown(relative, kind, source)...)
		return nil
	})
	return texts, err
}
