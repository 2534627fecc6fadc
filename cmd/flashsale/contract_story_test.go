//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"flashsale/handler/auth"
)

// documentedCall is a call of one operation of the document.
type documentedCall struct {
	operation string
	role      auth.Role // empty: without a token
	sub       string    // default: the role's name
	body      string    // the name of an example; empty: the only one, or none
	text      string    // the body, instead of an example
	headers   []string
	query     bool // with the examples of the query's parameters, except for cursor
	want      int
	keep      func(a *answer) // keeps ids for later calls
}

// operationIn is an operation with its place in the document.
type operationIn struct {
	*openapi3.Operation
	method, path string
	parameters   openapi3.Parameters
}

// operations returns the operations of the document by their ids.
func operations(t *testing.T) map[string]operationIn {
	t.Helper()
	all := map[string]operationIn{}
	for path, item := range apiContract(t).Document.Paths.Map() {
		for method, op := range item.Operations() {
			all[op.OperationID] = operationIn{op, method, path, slices.Concat(item.Parameters, op.Parameters)}
		}
	}
	return all
}

// example returns an example of the operation's body; "" if it has none.
func (op *operationIn) example(t *testing.T, name string) string {
	t.Helper()
	if op.RequestBody == nil {
		return ""
	}
	examples := op.RequestBody.Value.Content["application/json"].Examples
	if name == "" && len(examples) == 1 {
		name = slices.Collect(maps.Keys(examples))[0]
	}
	if examples[name] == nil {
		t.Fatalf("%s has no example %q of its body", op.OperationID, name)
	}
	text, err := json.Marshal(examples[name].Value.Value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// target returns the path with the given ids, and the query if it is wanted.
func (op *operationIn) target(ids map[string]string, query bool) string {
	path := op.path
	for name, id := range ids {
		path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(id))
	}
	values := url.Values{}
	for _, p := range op.parameters {
		if query && p.Value.In == "query" && p.Value.Name != "cursor" {
			values.Set(p.Value.Name, fmt.Sprint(p.Value.Example))
		}
	}
	if len(values) > 0 {
		path += "?" + values.Encode()
	}
	return path
}

// The life of a sale in the examples of the document: the service accepts every one, and every
// operation answers as documented. The client of these tests checks each answer.
func TestContract_EveryOperation(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	c := dial(t, s.serve())
	all := operations(t)
	// The item is that of the examples of new items.
	ids := map[string]string{"item": "drop-1", "user": "alice", "task": "0197a0f2-3c4d-7abc-8def-0123456789ab"}
	called := map[string]bool{}
	for _, call := range saleInExamples(t, ids) {
		op, known := all[call.operation]
		if !known {
			t.Fatalf("no operation %s", call.operation)
		}
		called[call.operation] = true
		a := c.documented(op, &call, ids)
		if a.Status != call.want {
			t.Errorf("%s: %d %s, want %d", call.operation, a.Status, a.Body, call.want)
		}
		if call.keep != nil {
			call.keep(&a)
		}
	}
	for id := range all {
		if !called[id] {
			t.Errorf("%s is not called", id)
		}
	}
	for _, op := range all {
		c.refusals(op, ids)
	}
}

// documented makes one call.
func (c *client) documented(op operationIn, call *documentedCall, ids map[string]string) answer {
	c.t.Helper()
	token, headers := "", slices.Clone(call.headers)
	if call.role != "" {
		sub := call.sub
		if sub == "" {
			sub = string(call.role)
		}
		token = c.token(sub, call.role)
	}
	body := call.text
	if body == "" {
		body = op.example(c.t, call.body)
	}
	if body != "" {
		headers = append(headers, "Content-Type", "application/json")
	}
	for _, p := range op.parameters {
		if p.Value.Required && p.Value.Name == "Idempotency-Key" {
			headers = append(headers, p.Value.Name, call.sub+"-"+call.body+fmt.Sprint(p.Value.Example))
		}
	}
	a, err := c.do(op.method, op.target(ids, call.query), token, body, headers...)
	if err != nil {
		c.t.Fatalf("%s: %v", op.OperationID, err)
	}
	return a
}

// refusals sends requests that an operation refuses before it does anything.
func (c *client) refusals(op operationIn, ids map[string]string) {
	c.t.Helper()
	path := op.target(ids, false)
	try := func(what, token, body string, headers ...string) {
		c.t.Helper()
		a, err := c.do(op.method, path, token, body, headers...)
		if err != nil || a.Status < 400 || a.Status >= 500 {
			c.t.Errorf("%s, %s: %d %s, %v", op.OperationID, what, a.Status, a.Body, err)
		}
	}
	var open []string
	if op.Security != nil {
		for _, one := range *op.Security {
			open = append(open, one["bearer"]...)
		}
	}
	token := ""
	if len(open) > 0 {
		token = c.token("mallory", auth.Role(open[0]))
		try("no token", "", "")
		try("a bad token", "a.b.c", "")
		for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleAdmin, auth.RoleService} {
			if !slices.Contains(open, string(role)) {
				try("another role", c.token("mallory", role), "")
			}
		}
	}
	if op.Responses.Value("406") != nil {
		try("another type", token, "", "Accept", "image/png", "Content-Type", "application/json")
	}
	if op.RequestBody != nil && op.method != "DELETE" {
		complete := []string{"Content-Type", "application/json", "Idempotency-Key", "refused", "If-Match", "*"}
		try("text", token, "x", "Content-Type", "text/plain", "Idempotency-Key", "refused", "If-Match", "*")
		try("half a body", token, "{", complete...)
		try("an array", token, "[]", complete...)
		try("an unknown member", token, `{"no_such_member":1}`, complete...)
		try("a member twice", token, `{"a":1,"a":1}`, complete...)
		try("two bodies", token, `{}{}`, complete...)
		try("a long body", token, "{"+strings.Repeat(" ", 20<<10)+"}", complete...)
	}
	for name := range ids {
		if strings.Contains(op.path, "{"+name+"}") {
			path = op.target(map[string]string{name: "No Such"}, false)
			for other, id := range ids {
				path = strings.ReplaceAll(path, "{"+other+"}", id)
			}
			try("a malformed "+name, token, "", "Content-Type", "application/json")
		}
	}
}
