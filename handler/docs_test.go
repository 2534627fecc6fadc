package handler

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"flashsale/docs"
	"flashsale/handler/problem"
)

// Each code that the service can send has a section with its status, and each
// section has a code.
func TestDocs_Codes(t *testing.T) {
	t.Parallel()
	documented := make(map[string]int)
	for _, section := range strings.Split(docs.Problems, "\n## ")[1:] {
		code, text, _ := strings.Cut(section, "\n\n")
		status, err := strconv.Atoi(strings.SplitN(text, ".", 2)[0])
		if err != nil || len(strings.Fields(text)) < 6 {
			t.Errorf("the section %s does not begin with a status and say what it means: %q", code, text)
		}
		if documented[code] != 0 {
			t.Errorf("%s has two sections", code)
		}
		documented[code] = status
	}
	written := writtenCodes(t)
	statuses := problem.Statuses()
	for code, status := range statuses {
		if documented[code] != status {
			t.Errorf("%s is sent with %d; docs/problems.md says %d (0: nothing)", code, status, documented[code])
		}
		if written[code] == nil {
			t.Errorf("%s is registered and not in the source", code)
		}
	}
	for code := range documented {
		if statuses[code] == 0 {
			t.Errorf("docs/problems.md has a section %s, which is no code", code)
		}
	}
	for code := range written {
		if statuses[code] == 0 {
			t.Errorf("%s is in the source and not registered", code)
		}
	}
}

// writtenCodes returns the codes in the source of this package and of those below it, with their
// titles: the constants passed to the constructors of problems. A code computed at run time would
// be in no list.
func writtenCodes(t *testing.T) map[string][]string {
	t.Helper()
	codes := make(map[string][]string)
	set := token.NewFileSet()
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "problem/") {
			return err
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			addCodes(t, set, decl, codes)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return codes
}

// addCodes adds the codes in one declaration.
func addCodes(t *testing.T, set *token.FileSet, decl ast.Decl, codes map[string][]string) {
	t.Helper()
	place := map[string]int{"problem.New": 1, "unauthorized": 0, "invalidToken": 0}
	f, inFunction := decl.(*ast.FuncDecl)
	if inFunction && (f.Name.Name == "unauthorized" || f.Name.Name == "invalidToken") {
		return // they pass on their parameter
	}
	ast.Inspect(decl, func(n ast.Node) bool {
		if made, ok := n.(*ast.CompositeLit); ok && made.Type != nil && types.ExprString(made.Type) == "problem.Problem" {
			t.Errorf("%s: a problem that problem.New has not made", set.Position(n.Pos()))
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		at, makes := place[types.ExprString(call.Fun)]
		if !makes {
			return true
		}
		literal, ok := call.Args[at].(*ast.BasicLit)
		if !ok || inFunction {
			t.Errorf("%s: the code is no literal, or the problem is made after the start", set.Position(n.Pos()))
			return true
		}
		code, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		title, ok := call.Args[at+1].(*ast.BasicLit)
		if !ok {
			t.Errorf("%s: the title is no literal", set.Position(n.Pos()))
			return true
		}
		text, err := strconv.Unquote(title.Value)
		if err != nil {
			t.Fatal(err)
		}
		codes[code] = append(codes[code], text)
		return true
	})
}

// The type of a problem links to an anchor of an existing page.
func TestDocs(t *testing.T) {
	t.Parallel()
	s := open(t)
	refusal := decodeBody(t, s.get(t, "/v1/orders", "", "").Body)
	kind, ok := refusal["type"].(string)
	path, anchor, cut := strings.Cut(kind, "#")
	if !ok || !cut {
		t.Fatalf("type: %v", refusal["type"])
	}
	w := s.get(t, path, "", "")
	page := w.Body.String()
	if w.Code != 200 || anchor != "auth_missing" || !strings.Contains(page, `<h3 id="auth_missing">`) {
		t.Fatalf("%s: %d %s", kind, w.Code, page)
	}
	for code, status := range problem.Statuses() {
		if n := strings.Count(page, `id="`+code+`"`); n != 1 {
			t.Errorf("%s has %d anchors", code, n)
		}
		if !strings.Contains(page, fmt.Sprintf(`<a href="#%s">%[1]s</a> <span>%d</span></h3>`, code, status)) {
			t.Errorf("the section of %s has another status than %d", code, status)
		}
	}
	if strings.Contains(page, "`") || strings.Contains(page, "\n#") || strings.Contains(page, "](") {
		t.Error("Markdown is left in the page")
	}
	policy := w.Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policy+";", want+";") {
			t.Errorf("the policy lacks %s: %s", want, policy)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") || w.Header().Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("headers: %v", w.Header())
	}

	do := func(method, accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "/docs", http.NoBody)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		return s.do(r)
	}
	if w := do("HEAD", ""); w.Code != 200 || w.Header().Get("Content-Length") != strconv.Itoa(len(page)) {
		t.Errorf("HEAD: %d, %v", w.Code, w.Header())
	}
	if w := do("GET", "text/html,application/xhtml+xml,*/*;q=0.8"); w.Code != 200 {
		t.Errorf("a browser's Accept: %d", w.Code)
	}
	wantProblem(t, do("GET", "image/png").Result(), 406, "not_acceptable")
	w = do("POST", "")
	wantProblem(t, w.Result(), 405, "method_not_allowed")
	if got := w.Header().Get("Allow"); got != "GET, HEAD" {
		t.Errorf("Allow: %q", got)
	}
}

// The files that the page loads are served with their types, and no others are.
func TestDocs_Assets(t *testing.T) {
	t.Parallel()
	s := open(t)
	page := s.get(t, "/docs", "", "").Body.String()
	files := regexp.MustCompile(`="(/docs/assets/[^"]+)"`).FindAllStringSubmatch(page, -1)
	if len(files) != 4 {
		t.Errorf("the page loads %d files", len(files))
	}
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
	for _, file := range files {
		w := s.get(t, file[1], "", "")
		if got := w.Header().Get("Content-Type"); w.Code != 200 || got != types[filepath.Ext(file[1])] {
			t.Errorf("%s: %d %s", file[1], w.Code, got)
		}
	}
	for _, name := range []string{"docs.js", "..%2fdocs.js", "swagger-ui-bundle.js.gz", "VENDOR", "%00"} {
		wantProblem(t, s.get(t, "/docs/assets/"+name, "", "").Result(), 404, "route_not_found")
	}
}

// Requests can be sent from the page in development mode only.
func TestDocs_TryItOut(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) {
		c.DevTokens = func(string, string, time.Duration) (string, error) { return "token", nil }
	})
	if !strings.Contains(s.get(t, "/docs", "", "").Body.String(), " data-try") {
		t.Error("not offered in development mode")
	}
	if strings.Contains(open(t).get(t, "/docs", "", "").Body.String(), " data-try") {
		t.Error("offered outside development mode")
	}
}
