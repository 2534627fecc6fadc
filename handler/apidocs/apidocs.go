// Package apidocs is the API reference at GET /docs: the routes, which Swagger UI shows from
// /openapi.yaml, and below them the problems, which are docs/problems.md with an anchor for each
// code. The type of every problem links to such an anchor.
//
// The reference works without access to other hosts: Swagger UI is in the folder swagger-ui, and the
// content security policy allows nothing else. Without JavaScript the page shows the problems and
// links to /openapi.yaml.
//
// Everything is rendered and compressed once.
package apidocs

import (
	"bytes"
	"embed"
	"html/template"
	"net/http"
	"path"
	"strings"
	"sync"

	"flashsale/docs"
	"flashsale/handler/openapi"
	"flashsale/handler/static"
)

// Prefix is the path below which the files of the page are served.
const Prefix = "/docs/assets/"

// policy is the page's content security policy. Swagger UI's styles contain images as data URLs. Its
// sanitizer of HTML has a policy for trusted types, and docs.js has one for the result.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types default dompurify"

// Page is the HTML page.
type Page struct{ *static.File }

// New returns the page. With try, readers can send requests from it and obtain tokens from
// POST /dev/tokens, which only exists in development mode. The pages are rendered by the first call
// and shared.
func New(try bool) Page {
	if try {
		return pageWithTry()
	}
	return pageToRead()
}

var (
	pageWithTry = sync.OnceValue(func() Page { return render(true) })
	pageToRead  = sync.OnceValue(func() Page { return render(false) })
)

// Serve answers a request for the page.
func (p Page) Serve(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	// The names of the files change with their content, so an old page could name files that do
	// not exist any more.
	h["Cache-Control"] = []string{"no-cache"}
	h["Content-Security-Policy"] = []string{policy}
	h["Referrer-Policy"] = []string{"no-referrer"}
	return p.File.Serve(w, r)
}

// ServeContract answers a request for the OpenAPI document. The page reads it, so that it must not
// be older than the page.
func ServeContract(w http.ResponseWriter, r *http.Request) error {
	w.Header()["Cache-Control"] = []string{"no-cache"}
	return contract().Serve(w, r)
}

var contract = sync.OnceValue(func() *static.File { return static.New("application/yaml", []byte(openapi.Document)) })

// HasAsset reports whether there is a file with the name.
func HasAsset(name string) bool { return assets().byName[name] != nil }

// ServeAsset answers a request for a file of the page that exists. Its name contains a hash of its
// content, so clients may keep it permanently.
func ServeAsset(w http.ResponseWriter, r *http.Request, name string) error {
	w.Header()["Cache-Control"] = []string{"public, max-age=31536000, immutable"}
	return assets().byName[name].Serve(w, r)
}

// AssetNames returns the names of all files.
func AssetNames() []string {
	var names []string
	for _, name := range sources {
		names = append(names, path.Base(assets().url[name]))
	}
	return names
}

//go:embed docs.css docs.js swagger-ui/*.gz
var content embed.FS

// sources are the files of the page in the folder; those that end with .gz are stored compressed.
var sources = []string{"docs.css", "docs.js", "swagger-ui/swagger-ui.css.gz", "swagger-ui/swagger-ui-bundle.js.gz"}

// assetSet are the files that the page loads.
type assetSet struct {
	byName map[string]*static.File
	url    map[string]string // of each source
}

var assets = sync.OnceValue(func() assetSet {
	set := assetSet{byName: make(map[string]*static.File), url: make(map[string]string)}
	for _, source := range sources {
		data, err := content.ReadFile(source)
		if err != nil {
			panic("apidocs: " + err.Error()) // it is part of the program
		}
		name, packed := strings.CutSuffix(path.Base(source), ".gz")
		form := static.New
		if packed {
			form = static.NewPacked
		}
		f := form(contentTypes[path.Ext(name)], data)
		stem, ext := strings.TrimSuffix(name, path.Ext(name)), path.Ext(name)
		name = stem + "." + f.Hash() + ext
		set.byName[name], set.url[source] = f, Prefix+name
	}
	return set
})

var contentTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// view is what the template shows.
type view struct {
	problemPage
	Try                              bool
	Style, Script, UIStyle, UIScript string // URLs
}

func render(try bool) Page {
	url := assets().url
	v := view{
		problemPage: readProblems(docs.Problems), Try: try,
		Style: url["docs.css"], Script: url["docs.js"],
		UIStyle: url["swagger-ui/swagger-ui.css.gz"], UIScript: url["swagger-ui/swagger-ui-bundle.js.gz"],
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, v); err != nil {
		panic("apidocs: " + err.Error()) // the template and its data are part of the program
	}
	return Page{static.New("text/html; charset=utf-8", b.Bytes())}
}
