package contract

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	problemType = "application/problem+json"
	eventsType  = "text/event-stream"
)

// Exchange is a request and its response.
type Exchange struct {
	Method  string
	URL     *url.URL
	Request http.Header
	// Sent is the body of the request. It may be incomplete if the response is a refusal.
	Sent []byte

	Status int
	Header http.Header
	Body   []byte
}

// Check returns the differences between an exchange and the document, joined, or nil.
func (c *Contract) Check(e *Exchange) error {
	p, op, values := c.find(e.Method, e.URL)
	var d differences
	switch {
	case p == nil:
		d.response(e, c.unknownPath...)
	case op == nil:
		d.response(e, c.unknownMethod...)
		if e.Status == http.StatusMethodNotAllowed {
			d.allow(e, p.methods())
		}
	default:
		d.response(e, op.documented(e.Status)...)
		// A 500 is no refusal.
		if e.Status < 400 || e.Status == http.StatusInternalServerError {
			d.request(e, op, values)
		}
	}
	if len(d) == 0 {
		return nil
	}
	return fmt.Errorf("%s %s: %d: %w", e.Method, e.URL.RequestURI(), e.Status, errors.Join(d...))
}

// CheckWebhook returns the differences between a request that the service has sent and the webhook
// of the document with that name, or nil.
func (c *Contract) CheckWebhook(name string, header http.Header, sent []byte) error {
	op := c.webhooks[name]
	if op == nil {
		return ErrNoRoute
	}
	var d differences
	d.request(&Exchange{URL: &url.URL{}, Request: header, Sent: sent}, op, nil)
	return errors.Join(d...)
}

// CheckRequest returns why the document refuses a request, or nil.
func (c *Contract) CheckRequest(e *Exchange) error {
	_, op, values := c.find(e.Method, e.URL)
	if op == nil {
		return ErrNoRoute
	}
	var d differences
	d.request(e, op, values)
	return errors.Join(d...)
}

// ErrNoRoute is in the difference of an operation that the service does not serve: it answers as
// for a path that does not exist.
var ErrNoRoute = errors.New("the route does not exist")

// differences are the differences found in one exchange.
type differences []error

func (d *differences) addf(format string, args ...any) { *d = append(*d, fmt.Errorf(format, args...)) }

// documented returns the responses that an operation documents for a status: its own, and the
// one for all statuses.
func (o *operation) documented(status int) (all []*response) {
	text := strconv.Itoa(status)
	for _, key := range []string{text, text[:1] + "XX", "default"} {
		if r := o.responses[key]; r != nil {
			all = append(all, r)
		}
	}
	return all
}

// transportHeaders belong to the connection or the framing, and need no documentation.
var transportHeaders = []string{"Connection", "Content-Length", "Content-Type", "Date", "Transfer-Encoding"}

// response checks a response against the first documented one that it can be.
func (d *differences) response(e *Exchange, documented ...*response) {
	kind, _, err := mime.ParseMediaType(e.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	text, err := plain(e)
	if err != nil {
		d.addf("%w", err)
		return
	}
	r, m := choose(documented, kind, text)
	if r == nil && codeOf(text) == "route_not_found" {
		d.addf("%w", ErrNoRoute)
		return
	}
	if r == nil {
		d.addf("no response is documented for this status with the type %q and this code: %.200s", kind, text)
		return
	}
	d.headers(e.Header, r)
	switch {
	case e.Method == http.MethodHead:
	case m == nil:
		if len(e.Body) > 0 {
			d.addf("a body is sent although none is documented")
		}
	case m.events != nil:
		check := events{media: m}
		if err := check.add(text); err != nil {
			d.addf("%w", err)
		}
	default:
		d.body(e.Status, kind, text, m)
	}
}

// choose returns the first documented response with the type and, for a problem, the code.
func choose(documented []*response, kind string, text []byte) (*response, *media) {
	for _, r := range documented {
		m := r.content[kind]
		switch {
		case kind == "" && len(r.content) == 0:
			return r, nil
		case m != nil && (m.codes == nil || len(text) == 0 || m.codes[codeOf(text)]):
			return r, m
		}
	}
	return nil, nil
}

// codeOf returns the code of a problem.
func codeOf(text []byte) string {
	var p struct{ Code string }
	if err := json.Unmarshal(text, &p); err != nil {
		return ""
	}
	return p.Code
}

// plain returns the body of a response without its content coding.
func plain(e *Exchange) ([]byte, error) {
	if e.Header.Get("Content-Encoding") != "gzip" || len(e.Body) == 0 {
		return e.Body, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(e.Body))
	if err != nil {
		return nil, fmt.Errorf("the body is not compressed: %w", err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("the body is not compressed: %w", err)
	}
	return text, nil
}

// headers checks that the documented headers are there, and no others.
func (d *differences) headers(got http.Header, r *response) {
	for name, values := range got {
		h := r.headers[name]
		switch {
		case h == nil && slices.Contains(transportHeaders, name):
		case h == nil:
			d.addf("the header %s is not documented: %q", name, values)
		case len(values) != 1:
			d.addf("the header %s is sent %d times", name, len(values))
		default:
			if err := h.accepts(values[0]); err != nil {
				d.addf("the header %s: %w", name, err)
			}
		}
	}
	for name, h := range r.headers {
		if _, there := got[name]; !there && h.required {
			d.addf("the header %s is missing", name)
		}
	}
}

// body checks the body of a response.
func (d *differences) body(status int, kind string, text []byte, m *media) {
	if !isJSON(kind) {
		if err := m.schema.validate(string(text)); err != nil {
			d.addf("the body: %w", err)
		}
		return
	}
	if !bytes.HasSuffix(text, []byte("\n")) {
		d.addf("the body does not end with a newline")
	}
	value, err := readJSON(text)
	if err != nil {
		d.addf("the body: %w", err)
		return
	}
	if err := m.schema.validate(value); err != nil {
		d.addf("the body: %w: %.2000s", err, text)
	}
	if object, ok := value.(map[string]any); ok && m.codes != nil {
		if got, ok := object["status"].(json.Number); !ok || got.String() != strconv.Itoa(status) {
			d.addf("the problem has the status %v", object["status"])
		}
	}
}

// allow checks the Allow header of a 405.
func (d *differences) allow(e *Exchange, want []string) {
	got := strings.Split(e.Header.Get("Allow"), ", ")
	slices.Sort(got)
	if !slices.Equal(got, want) {
		d.addf("Allow is %q, and the path has %q", got, want)
	}
}

// request checks a request that the service has not refused. It must refuse what the document
// refuses.
func (d *differences) request(e *Exchange, op *operation, values map[string]string) {
	if op.secured && e.Request.Get("Authorization") == "" && e.Request.Get("Cookie") == "" {
		d.addf("a request without a token was not refused")
	}
	query := e.URL.Query()
	for _, p := range op.parameters {
		var got []string
		switch p.in {
		case "path":
			got = []string{values[p.name]}
		case "query":
			got = query[p.name]
		case "header":
			got = e.Request.Values(p.name)
			if len(got) > 1 {
				got = []string{strings.Join(got, ", ")}
			}
		}
		switch {
		case len(got) == 0 && p.required:
			d.addf("a request without the %s parameter %s was not refused", p.in, p.name)
		case len(got) > 1:
			d.addf("a request with %d values of the parameter %s was not refused", len(got), p.name)
		case len(got) == 1:
			if err := p.accepts(got[0]); err != nil {
				d.addf("a request was not refused although the %s parameter %s is %q: %w", p.in, p.name, got[0], err)
			}
		}
	}
	d.sent(e, op.body)
}

// sent checks the body of a request that the service has accepted.
func (d *differences) sent(e *Exchange, documented *body) {
	switch {
	case documented == nil:
		return
	case len(e.Sent) == 0:
		if documented.required {
			d.addf("a request without a body was not refused")
		}
		return
	}
	kind, _, err := mime.ParseMediaType(e.Request.Get("Content-Type"))
	s := documented.content[kind]
	if err != nil || s == nil {
		d.addf("a body of the type %q was not refused", e.Request.Get("Content-Type"))
		return
	}
	value, err := readJSON(e.Sent)
	if err == nil {
		err = s.validate(value)
	}
	if err != nil {
		d.addf("a body was not refused: %w: %.2000s", err, e.Sent)
	}
}

func isJSON(kind string) bool { return kind == "application/json" || strings.HasSuffix(kind, "+json") }

// readJSON reads one JSON value. It refuses duplicate members, which a schema cannot see.
func readJSON(text []byte) (any, error) {
	if !jsontext.Value(text).IsValid() {
		return nil, fmt.Errorf("it is no valid JSON: %.200q", text)
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(text))
}

// validate checks a value.
func (s *schema) validate(value any) error { return s.compiled.Validate(value) }

// accepts checks a value that arrived as text.
func (s *schema) accepts(text string) error {
	switch s.kind {
	case kindInteger:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(n, 10) == text {
			return s.validate(json.Number(text))
		}
	case kindBoolean:
		if text == "true" || text == "false" {
			return s.validate(text == "true")
		}
	case kindText:
	}
	return s.validate(text)
}
