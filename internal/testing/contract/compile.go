package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// documentURL names the document in the compiler of schemas; nothing is loaded from it.
const documentURL = "contract:///openapi.json"

// schema is a compiled schema.
type schema struct {
	compiled *jsonschema.Schema
	kind     textKind
}

// textKind is the type of a value that arrives as text.
type textKind int

const (
	kindText textKind = iota
	kindInteger
	kindBoolean
)

// parameter is a documented parameter of a request.
type parameter struct {
	*schema
	name, in string
	required bool
}

// header is a documented header of a response.
type header struct {
	*schema
	required bool
}

// compiler compiles the schemas of a document, each once.
type compiler struct {
	doc       *openapi3.T
	compiler  *jsonschema.Compiler
	schemas   map[*openapi3.Schema]*schema
	responses map[*openapi3.Response]*response
}

func newCompiler(doc *openapi3.T) (*compiler, error) {
	c := &compiler{
		doc: doc, compiler: jsonschema.NewCompiler(),
		schemas: map[*openapi3.Schema]*schema{}, responses: map[*openapi3.Response]*response{},
	}
	c.compiler.DefaultDraft(jsonschema.Draft2020)
	c.compiler.AssertFormat()
	err := c.add(documentURL, doc)
	return c, err
}

// add adds a part of the document under a URL. References are to the document itself.
func (c *compiler) add(location string, part json.Marshaler) error {
	text, err := part.MarshalJSON()
	if err != nil {
		return fmt.Errorf("contract: %w", err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("contract: %w", err)
	}
	absolute(value)
	if err := c.compiler.AddResource(location, value); err != nil {
		return fmt.Errorf("contract: %w", err)
	}
	return nil
}

// absolute makes the references in a part of the document independent of its location.
func absolute(part any) {
	switch part := part.(type) {
	case map[string]any:
		if ref, ok := part["$ref"].(string); ok && strings.HasPrefix(ref, "#") {
			part["$ref"] = documentURL + ref
		}
		for _, value := range part {
			absolute(value)
		}
	case []any:
		for _, value := range part {
			absolute(value)
		}
	}
}

// schema compiles a schema, of the components or inline.
func (c *compiler) schema(ref *openapi3.SchemaRef) (*schema, error) {
	if known := c.schemas[ref.Value]; known != nil {
		return known, nil
	}
	location := documentURL + ref.Ref
	if ref.Ref == "" {
		location = "contract:///inline/" + strconv.Itoa(len(c.schemas)) + ".json"
		if err := c.add(location, ref.Value); err != nil {
			return nil, err
		}
	}
	compiled, err := c.compiler.Compile(location)
	if err != nil {
		return nil, fmt.Errorf("compile schema: %w", err)
	}
	s := &schema{compiled: compiled}
	switch {
	case ref.Value.Type.Is("integer"):
		s.kind = kindInteger
	case ref.Value.Type.Is("boolean"):
		s.kind = kindBoolean
	}
	c.schemas[ref.Value] = s
	return s, nil
}

// operation prepares an operation of a path.
func (c *compiler) operation(item *openapi3.PathItem, op *openapi3.Operation) (_ *operation, err error) {
	o := &operation{id: op.OperationID, responses: map[string]*response{}, secured: op.Security != nil && len(*op.Security) > 0}
	for _, ref := range append(append(openapi3.Parameters{}, item.Parameters...), op.Parameters...) {
		p := &parameter{name: ref.Value.Name, in: ref.Value.In, required: ref.Value.Required}
		if p.schema, err = c.schema(ref.Value.Schema); err != nil {
			return nil, err
		}
		o.parameters = append(o.parameters, p)
	}
	if op.RequestBody != nil {
		o.body = &body{required: op.RequestBody.Value.Required, content: map[string]*schema{}}
		for kind, m := range op.RequestBody.Value.Content {
			if o.body.content[kind], err = c.schema(m.Schema); err != nil {
				return nil, err
			}
		}
	}
	for status, ref := range op.Responses.Map() {
		if o.responses[status], err = c.response(ref.Value); err != nil {
			return nil, fmt.Errorf("%s: %w", status, err)
		}
	}
	return o, nil
}

// response prepares a response.
func (c *compiler) response(r *openapi3.Response) (_ *response, err error) {
	if known := c.responses[r]; known != nil {
		return known, nil
	}
	out := &response{headers: map[string]*header{}, content: map[string]*media{}}
	for name, ref := range r.Headers {
		h := &header{required: ref.Value.Required}
		if h.schema, err = c.schema(ref.Value.Schema); err != nil {
			return nil, err
		}
		out.headers[http.CanonicalHeaderKey(name)] = h
	}
	for kind, m := range r.Content {
		if out.content[kind], err = c.media(kind, m); err != nil {
			return nil, err
		}
	}
	c.responses[r] = out
	return out, nil
}

// headers compiles the headers of the components that have an example.
func (c *compiler) headers() (map[string]*schema, error) {
	all := map[string]*schema{}
	if c.doc.Components == nil {
		return all, nil
	}
	for name, ref := range c.doc.Components.Headers {
		if ref.Value.Example == nil {
			continue
		}
		s, err := c.schema(ref.Value.Schema)
		if err != nil {
			return nil, fmt.Errorf("contract: header %s: %w", name, err)
		}
		all[name] = s
	}
	return all, nil
}

// media prepares a content type of a response.
func (c *compiler) media(kind string, m *openapi3.MediaType) (_ *media, err error) {
	out := &media{}
	if out.schema, err = c.schema(m.Schema); err != nil {
		return nil, err
	}
	if kind == problemType {
		out.codes = map[string]bool{}
		for code := range m.Examples {
			out.codes[code] = true
		}
	}
	events, ok := m.Extensions["x-events"].(map[string]any)
	if !ok {
		return out, nil
	}
	out.events, out.unnumbered = map[string]*schema{}, m.Extensions["x-event-ids"] == false
	for name, of := range events {
		component, ok := of.(string)
		ref := c.doc.Components.Schemas[component]
		if !ok || ref == nil {
			return nil, fmt.Errorf("x-events: no schema %v", of)
		}
		if out.events[name], err = c.schema(openapi3.NewSchemaRef("#/components/schemas/"+component, ref.Value)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// unmatched returns the responses to requests that match no operation, which the extension
// x-unmatched of the document names.
func (c *compiler) unmatched(reason string) (all []*response, err error) {
	lists, _ := c.doc.Extensions["x-unmatched"].(map[string]any)
	names, _ := lists[reason].([]any)
	for _, name := range names {
		component, _ := name.(string)
		ref := c.doc.Components.Responses[component]
		if ref == nil {
			return nil, fmt.Errorf("contract: x-unmatched: no response %v", name)
		}
		r, err := c.response(ref.Value)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}
