// Package contract checks HTTP traffic against an OpenAPI document: the responses, and the
// requests that the service has accepted.
//
// A response has to have a documented status, its documented headers and no others, and a body
// that its schema accepts. A problem has to have a code that the operation documents, as the
// name of an example. A request that the service accepts has to follow the document, too, so
// that the document is as strict as the service.
//
// Use it around a client ([Contract.Transport]), around a server ([Contract.Handler]), or for
// one [Exchange] ([Contract.Check]). kin-openapi reads the document. The schemas are compiled
// once, because kin-openapi would compile them for every value that it checks.
package contract

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
)

// Contract is an OpenAPI document, prepared for checks. It may be used concurrently.
type Contract struct {
	// Document is the document itself.
	Document *openapi3.T

	paths                      []*path
	unknownPath, unknownMethod []*response
	headers                    map[string]*schema    // those of the components that have an example
	webhooks                   map[string]*operation // the requests that the service sends, by name
}

// path is a path of the document, with its operations by method.
type path struct {
	template   string
	segments   []string
	operations map[string]*operation
}

// operation is a method of a path.
type operation struct {
	id         string
	secured    bool // it requires a token
	parameters []*parameter
	body       *body // nil: none is documented
	responses  map[string]*response
}

// body is the documented body of a request.
type body struct {
	required bool
	content  map[string]*schema
}

// response is a documented response.
type response struct {
	headers map[string]*header // by canonical name
	content map[string]*media
}

// media is a documented content type of a response.
type media struct {
	schema *schema
	codes  map[string]bool    // the codes of a problem
	events map[string]*schema // the data of the events of a stream, by their names
	// unnumbered says that the events have no ids, because a client cannot resume the stream.
	unnumbered bool
}

// parsed are the documents of this process, by their text. Compiling one takes a while, and
// every test of a package uses the same.
var parsed sync.Map

// Parse reads a document in YAML or JSON. It is checked, except for its examples; see
// [CheckDocument].
func Parse(document string) (*Contract, error) {
	once, _ := parsed.LoadOrStore(document, sync.OnceValues(func() (*Contract, error) { return parse(document) }))
	return once.(func() (*Contract, error))()
}

func parse(document string) (*Contract, error) {
	doc, err := openapi3.NewLoader().LoadFromData([]byte(document))
	if err != nil {
		return nil, fmt.Errorf("contract: %w", err)
	}
	compiler, err := newCompiler(doc)
	if err != nil {
		return nil, err
	}
	c := &Contract{Document: doc, webhooks: map[string]*operation{}}
	for template, item := range doc.Paths.Map() {
		p := &path{template: template, segments: strings.Split(template, "/"), operations: map[string]*operation{}}
		for method, op := range item.Operations() {
			if p.operations[method], err = compiler.operation(item, op); err != nil {
				return nil, fmt.Errorf("contract: %s %s: %w", method, template, err)
			}
		}
		c.paths = append(c.paths, p)
	}
	// Fixed segments win over parameters, as in the router.
	slices.SortFunc(c.paths, func(a, b *path) int {
		return cmp.Or(strings.Count(a.template, "{")-strings.Count(b.template, "{"), strings.Compare(a.template, b.template))
	})
	for name, item := range doc.Webhooks {
		if item.Post == nil {
			return nil, fmt.Errorf("contract: the webhook %s has no POST", name)
		}
		if c.webhooks[name], err = compiler.operation(item, item.Post); err != nil {
			return nil, fmt.Errorf("contract: webhook %s: %w", name, err)
		}
	}
	if c.headers, err = compiler.headers(); err != nil {
		return nil, err
	}
	if c.unknownPath, err = compiler.unmatched("path"); err != nil {
		return nil, err
	}
	c.unknownMethod, err = compiler.unmatched("method")
	return c, err
}

// CheckDocument reports what is wrong with the document, including examples that their schemas
// refuse.
func (c *Contract) CheckDocument(ctx context.Context) error {
	wrong := c.Document.Validate(ctx, openapi3.EnableExamplesValidation(), openapi3.EnableSchemaFormatValidation(),
		openapi3.EnableSchemaPatternValidation(), openapi3.EnableMultiError())
	for name, h := range c.headers { // kin-openapi does not validate their examples
		example := fmt.Sprint(c.Document.Components.Headers[name].Value.Example)
		if err := h.accepts(example); err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("the example of the header %s: %w", name, err))
		}
	}
	return wrong
}

// find returns the path and the operation of a request, and the values of the path's parameters.
// The path is nil if the document has none, and the operation is nil if the path has none with
// the method.
func (c *Contract) find(method string, u *url.URL) (*path, *operation, map[string]string) {
	segments := strings.Split(u.EscapedPath(), "/")
	for _, p := range c.paths {
		values, ok := p.match(segments)
		if !ok {
			continue
		}
		op := p.operations[method]
		if op == nil && method == http.MethodHead {
			op = p.operations[http.MethodGet]
		}
		return p, op, values
	}
	return nil, nil, nil
}

// match compares the segments of a request's path.
func (p *path) match(segments []string) (values map[string]string, ok bool) {
	if len(segments) != len(p.segments) {
		return nil, false
	}
	for i, want := range p.segments {
		got := segments[i]
		if !strings.HasPrefix(want, "{") {
			if got != want {
				return nil, false
			}
			continue
		}
		value, err := url.PathUnescape(got)
		// An empty segment is a malformed id, except at the end, where it is another path.
		if got == "" && i == len(segments)-1 || err != nil {
			return nil, false
		}
		if values == nil {
			values = map[string]string{}
		}
		values[strings.Trim(want, "{}")] = value
	}
	return values, true
}

// methods returns the methods that a path supports, sorted.
func (p *path) methods() []string {
	var all []string
	for method := range p.operations {
		all = append(all, method)
		if method == http.MethodGet {
			all = append(all, http.MethodHead)
		}
	}
	slices.Sort(all)
	return all
}
