package contract

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// testDocument has one of everything that the checks distinguish.
const testDocument = `
openapi: 3.1.0
info: {title: test, version: '1'}
x-unmatched:
  path: [Missing]
  method: [Method]
paths:
  /things/{thing}:
    parameters:
      - {name: thing, in: path, required: true, schema: {type: string, pattern: '^[a-z]+$'}}
    get:
      operationId: getThing
      security: []
      parameters:
        - {name: limit, in: query, schema: {type: integer, minimum: 1}}
        - {name: all, in: query, schema: {type: boolean}}
      responses:
        '200':
          description: The thing.
          headers:
            X-Request-Id: {required: true, schema: {type: string, pattern: '^r[0-9]+$'}}
            Age: {schema: {type: integer}}
          content:
            application/json:
              schema: {$ref: '#/components/schemas/Thing'}
        '400': {$ref: '#/components/responses/Bad'}
        '304': {description: Known.}
        default: {$ref: '#/components/responses/Failed'}
    post:
      operationId: changeThing
      security: [{bearer: []}]
      parameters:
        - {name: Key, in: header, required: true, schema: {type: string, maxLength: 3}}
      requestBody:
        required: true
        content:
          application/json:
            schema: {type: object, required: [n], additionalProperties: false, properties: {n: {type: integer}}}
      responses:
        '204': {description: Changed.}
        '400': {$ref: '#/components/responses/Bad'}
  /things/{thing}/events:
    parameters:
      - {name: thing, in: path, required: true, schema: {type: string}}
    get:
      operationId: followThing
      security: []
      responses:
        '200':
          description: Its changes.
          content:
            text/event-stream:
              schema: {type: string}
              x-events: {thing: Thing}
webhooks:
  changed:
    post:
      operationId: receiveThing
      security: []
      parameters:
        - {name: Key, in: header, required: true, schema: {type: string, maxLength: 3}}
      requestBody: {required: true, content: {application/json: {schema: {$ref: '#/components/schemas/Thing'}}}}
      responses:
        '200': {description: Received.}
components:
  headers:
    Size: {schema: {type: integer}, example: 7}
  securitySchemes:
    bearer: {type: http, scheme: bearer}
  schemas:
    Named: {type: object, required: [name], properties: {name: {type: string}}}
    Thing:
      allOf: [{$ref: '#/components/schemas/Named'}]
      unevaluatedProperties: false
    Problem: {type: object, required: [code, status], properties: {code: {type: string}, status: {type: integer}}}
  examples:
    bad: {value: {code: bad, status: 400}}
    failed: {value: {code: failed, status: 500}}
    missing: {value: {code: missing, status: 404}}
    method: {value: {code: method, status: 405}}
  responses:
    Bad:
      description: Malformed.
      content: {application/problem+json: {schema: {$ref: '#/components/schemas/Problem'}, examples: {bad: {$ref: '#/components/examples/bad'}}}}
    Failed:
      description: Failed.
      content: {application/problem+json: {schema: {$ref: '#/components/schemas/Problem'}, examples: {failed: {$ref: '#/components/examples/failed'}}}}
    Missing:
      description: No such path.
      content: {application/problem+json: {schema: {$ref: '#/components/schemas/Problem'}, examples: {missing: {$ref: '#/components/examples/missing'}}}}
    Method:
      description: No such method.
      headers:
        Allow: {required: true, schema: {type: string}}
      content: {application/problem+json: {schema: {$ref: '#/components/schemas/Problem'}, examples: {method: {$ref: '#/components/examples/method'}}}}
`

func testContract(t *testing.T) *Contract {
	t.Helper()
	c, err := Parse(testDocument)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParse(t *testing.T) {
	t.Parallel()
	if err := testContract(t).CheckDocument(t.Context()); err != nil {
		t.Error(err)
	}
	again, err := Parse(testDocument)
	if err != nil || again != testContract(t) {
		t.Errorf("the document is parsed again: %v", err)
	}
	for what, spoil := range map[string][2]string{
		"no YAML":           {"openapi: 3.1.0", "openapi: ["},
		"unknown reference": {"responses/Bad'", "responses/Worse'"},
		"unknown event":     {"{thing: Thing}", "{thing: Thong}"},
		"unknown response":  {"path: [Missing]", "path: [Lost]"},
		"bad pattern":       {"^[a-z]+$", "^[a-z+$"},
	} {
		if _, err := Parse(strings.Replace(testDocument, spoil[0], spoil[1], 1)); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	for what, spoil := range map[string][2]string{
		"body":   {"value: {code: bad, status: 400}", "value: {code: bad, status: none}"},
		"header": {"example: 7", "example: seven"},
	} {
		bad, err := Parse(strings.Replace(testDocument, spoil[0], spoil[1], 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := bad.CheckDocument(t.Context()); err == nil {
			t.Errorf("an example of a %s that its schema refuses is accepted", what)
		}
	}
}

// exchange is an exchange in a compact form.
type exchange struct {
	method, target string
	request        http.Header
	sent           string
	status         int
	header         http.Header
	body           string // without the newline that ends JSON
}

func (x *exchange) check(t *testing.T, c *Contract) error {
	t.Helper()
	u, err := url.Parse(x.target)
	if err != nil {
		t.Fatal(err)
	}
	body := x.body
	if strings.HasPrefix(body, "{") {
		body += "\n"
	}
	return c.Check(&Exchange{x.method, u, x.request, []byte(x.sent), x.status, x.header, []byte(body)})
}

var (
	jsonHeader    = http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"r1"}}
	problemHeader = http.Header{"Content-Type": {"application/problem+json"}}
	goodRequest   = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer t"}, "Key": {"k"}}
)

func with(h http.Header, name, value string) http.Header {
	h = h.Clone()
	if value == "" {
		h.Del(name)
	} else {
		h[name] = []string{value}
	}
	return h
}

func TestContract_Check(t *testing.T) {
	t.Parallel()
	const thing, named, bad = "/things/a", `{"name":"n"}`, `{"code":"bad","status":400}`
	get := func(status int, header http.Header, body string) exchange {
		return exchange{"GET", thing, nil, "", status, header, body}
	}
	post := func(request http.Header, sent string) exchange {
		return exchange{"POST", thing, request, sent, 204, nil, ""}
	}
	for name, tt := range map[string]struct {
		exchange
		want string // a part of the difference; empty: none
	}{
		"good":                     {get(200, jsonHeader, named), ""},
		"HEAD":                     {exchange{"HEAD", thing, nil, "", 200, jsonHeader, ""}, ""},
		"optional header":          {get(200, with(jsonHeader, "Age", "7"), named), ""},
		"header of the transport":  {get(200, with(jsonHeader, "Date", "today"), named), ""},
		"charset":                  {get(200, with(jsonHeader, "Content-Type", "application/json; charset=utf-8"), named), ""},
		"known":                    {get(304, nil, ""), ""},
		"problem":                  {get(400, problemHeader, bad), ""},
		"default problem":          {get(500, problemHeader, `{"code":"failed","status":500}`), ""},
		"default for any status":   {get(400, problemHeader, `{"code":"failed","status":400}`), ""},
		"parameters":               {exchange{"GET", thing + "?limit=3&all=false", nil, "", 200, jsonHeader, named}, ""},
		"escaped path":             {exchange{"GET", "/things/%61", nil, "", 200, jsonHeader, named}, ""},
		"refused parameter":        {exchange{"GET", thing + "?limit=0", nil, "", 400, problemHeader, bad}, ""},
		"unknown path":             {exchange{"GET", "/thing", nil, "", 404, problemHeader, `{"code":"missing","status":404}`}, ""},
		"unknown method":           {exchange{"PUT", thing, nil, "", 405, with(problemHeader, "Allow", "POST, GET, HEAD"), `{"code":"method","status":405}`}, ""},
		"accepted request":         {post(goodRequest, `{"n":1}`), ""},
		"refused request":          {exchange{"POST", thing, goodRequest, `{`, 400, problemHeader, bad}, ""},
		"undocumented status":      {get(201, jsonHeader, named), "no response is documented"},
		"undocumented code":        {get(400, problemHeader, `{"code":"worse","status":400}`), "no response is documented"},
		"code of another status":   {get(404, problemHeader, bad), "no response is documented"},
		"status in the problem":    {get(400, problemHeader, `{"code":"bad","status":401}`), "has the status 401"},
		"type":                     {get(200, with(jsonHeader, "Content-Type", "text/html"), named), "no response is documented"},
		"no type":                  {get(200, with(jsonHeader, "Content-Type", ""), named), "no response is documented"},
		"missing header":           {get(200, with(jsonHeader, "X-Request-Id", ""), named), "X-Request-Id is missing"},
		"bad header":               {get(200, with(jsonHeader, "X-Request-Id", "7"), named), "header X-Request-Id"},
		"header of the wrong type": {get(200, with(jsonHeader, "Age", "old"), named), "header Age"},
		"undocumented header":      {get(200, with(jsonHeader, "X-More", "1"), named), "X-More is not documented"},
		"header twice":             {get(200, http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"r1", "r2"}}, named), "sent 2 times"},
		"missing member":           {get(200, jsonHeader, `{}`), "name"},
		"more members":             {get(200, jsonHeader, `{"name":"n","more":1}`), "more"},
		"member of the wrong type": {get(200, jsonHeader, `{"name":1}`), "name"},
		"duplicate member":         {get(200, jsonHeader, `{"name":"n","name":"n"}`), "no valid JSON"},
		"no JSON":                  {get(200, jsonHeader, `{"name":`), "no valid JSON"},
		"not compressed":           {get(200, with(jsonHeader, "Content-Encoding", "gzip"), named), "not compressed"},
		"a body with 304":          {get(304, nil, "x"), "a body is sent"},
		"unknown path found":       {exchange{"GET", "/thing", nil, "", 200, jsonHeader, named}, "no response is documented"},
		"empty last segment":       {exchange{"GET", "/things/", nil, "", 200, jsonHeader, named}, "no response is documented"},
		"wrong Allow":              {exchange{"PUT", thing, nil, "", 405, with(problemHeader, "Allow", "GET"), `{"code":"method","status":405}`}, "Allow is"},
		"path accepted":            {exchange{"GET", "/things/A", nil, "", 200, jsonHeader, named}, "path parameter thing"},
		"range accepted":           {exchange{"GET", thing + "?limit=0", nil, "", 200, jsonHeader, named}, "query parameter limit"},
		"sign accepted":            {exchange{"GET", thing + "?limit=%2B1", nil, "", 200, jsonHeader, named}, "query parameter limit"},
		"word accepted":            {exchange{"GET", thing + "?all=yes", nil, "", 200, jsonHeader, named}, "query parameter all"},
		"parameter twice accepted": {exchange{"GET", thing + "?limit=1&limit=2", nil, "", 200, jsonHeader, named}, "2 values of the parameter limit"},
		"failed on a bad request":  {exchange{"GET", thing + "?limit=0", nil, "", 500, problemHeader, `{"code":"failed","status":500}`}, "query parameter limit"},
		"no token accepted":        {post(with(goodRequest, "Authorization", ""), `{"n":1}`), "without a token"},
		"no header accepted":       {post(with(goodRequest, "Key", ""), `{"n":1}`), "without the header parameter Key"},
		"long header accepted":     {post(with(goodRequest, "Key", "long"), `{"n":1}`), "header parameter Key"},
		"no body accepted":         {post(goodRequest, ""), "without a body"},
		"bad body accepted":        {post(goodRequest, `{"n":"1"}`), "a body was not refused"},
		"more accepted":            {post(goodRequest, `{"n":1,"m":2}`), "a body was not refused"},
		"type accepted":            {post(with(goodRequest, "Content-Type", "text/plain"), `{"n":1}`), `a body of the type "text/plain"`},
	} {
		err := tt.check(t, testContract(t))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want a difference with %q", name, err, tt.want)
		}
	}
}

func TestContract_Check_NoRoute(t *testing.T) {
	t.Parallel()
	x := exchange{"GET", "/things/a", nil, "", 404, problemHeader, `{"code":"route_not_found","status":404}`}
	if err := x.check(t, testContract(t)); !errors.Is(err, ErrNoRoute) {
		t.Error(err)
	}
}

func TestContract_CheckWebhook(t *testing.T) {
	t.Parallel()
	c := testContract(t)
	if err := c.CheckWebhook("changed", goodRequest, []byte(`{"name":"n"}`)); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"unknown":   c.CheckWebhook("lost", goodRequest, []byte(`{"name":"n"}`)),
		"no body":   c.CheckWebhook("changed", goodRequest, nil),
		"bad body":  c.CheckWebhook("changed", goodRequest, []byte(`{"name":7}`)),
		"no header": c.CheckWebhook("changed", with(goodRequest, "Key", ""), []byte(`{"name":"n"}`)),
	} {
		if err == nil {
			t.Errorf("%s: no difference", what)
		}
	}
}

// found collects differences.
type found struct {
	mu  sync.Mutex
	all []string
}

func (f *found) report(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, err.Error())
}

// take returns the differences since the last call.
func (f *found) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.all
	f.all = nil
	return all
}

// TestContract_Check_Newline: JSON ends with a newline, so that a shell's prompt does not follow it on the same line.
func TestContract_Check_Newline(t *testing.T) {
	t.Parallel()
	e := &Exchange{Method: "GET", URL: &url.URL{Path: "/things/a"}, Status: 200, Header: jsonHeader, Body: []byte(`{"name":"n"}`)}
	if err := testContract(t).Check(e); err == nil || !strings.Contains(err.Error(), "does not end with a newline") {
		t.Errorf("without a newline: %v", err)
	}
}

// A client and a server with the checks behave as without, and report a difference.
func TestContract_TransportAndHandler(t *testing.T) {
	t.Parallel()
	c := testContract(t)
	var got string
	body := "{\"name\":\"n\"}\n"
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = string(sent)
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Request-Id", "r1")
		w.Write([]byte(body))
	})
	var client, server found
	s := httptest.NewServer(c.Handler(h, server.report))
	t.Cleanup(s.Close)
	do := func(method, sent string) string {
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/things/a", strings.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = goodRequest.Clone()
		resp, err := (&http.Client{Transport: c.Transport(http.DefaultTransport, client.report)}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want := func(what string, differences bool) {
		t.Helper()
		for side, f := range map[string]*found{"client": &client, "server": &server} {
			if all := f.take(); (len(all) > 0) != differences {
				t.Errorf("%s: the %s reports %q", what, side, all)
			}
		}
	}
	if text := do("GET", ""); text != body {
		t.Errorf("read %q", text)
	}
	want("a good answer", false)
	if do("POST", `{"n":1}`); got != `{"n":1}` {
		t.Errorf("the server read %q", got)
	}
	want("a good request", false)
	do("POST", `{"n":null}`)
	want("a bad request that is accepted", true)
	body = "{\"name\":7}\n"
	do("GET", "")
	want("a bad answer", true)
}

// Events arrive one by one, and each is checked.
func TestContract_Events(t *testing.T) {
	t.Parallel()
	c := testContract(t)
	next := make(chan string, 1)
	next <- "" // the head
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for text := range next {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(sync.OnceFunc(func() { close(next) })) // also after a failure: the server waits for it
	var f found
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/things/a/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: c.Transport(http.DefaultTransport, f.report), Timeout: time.Minute}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, step := range []struct{ text, want string }{
		{"retry: 7\n\n", ""},
		{": \n\n", ""},
		{"id: 1\nevent: thing\ndata: {\"na", ""},
		{"me\":\"n\"}\n\n", ""},
		{"id: 2\nevent: thing\ndata: {\"name\":\"n\",\"more\":1}\n\n", "more"},
	} {
		next <- step.text
		got := make([]byte, len(step.text))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != step.text {
			t.Fatalf("read %q, %v", got, err)
		}
		if all := strings.Join(f.take(), "\n"); (all != "") != (step.want != "") || !strings.Contains(all, step.want) {
			t.Errorf("%q: %q, want %q", step.text, all, step.want)
		}
	}
	for text, want := range map[string]bool{
		"id: 1\nevent: thing\ndata: {\"name\":\"n\"}": true, "event: thing\ndata: {\"name\":\"n\"}": false,
		"id: x\nevent: thing\ndata: {\"name\":\"n\"}": false, "id: 1\nevent: thong\ndata: {}": false, "id: 1\nmore: 1": false,
		"id: 1\nevent: thing\ndata: {": false, "retry: soon": false,
	} {
		_, op, _ := c.find(http.MethodGet, &url.URL{Path: "/things/a/events"})
		if err := op.responses["200"].content[eventsType].event(text); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// The cost of checking an exchange, which every request of the tests pays.
func BenchmarkContract_Check(b *testing.B) {
	c, err := Parse(testDocument)
	if err != nil {
		b.Fatal(err)
	}
	e := &Exchange{Method: "GET", URL: &url.URL{Path: "/things/a"}, Status: 200, Header: jsonHeader, Body: []byte("{\"name\":\"n\"}\n")}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Check(e); err != nil {
			b.Fatal(err)
		}
	}
}
