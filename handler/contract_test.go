package handler

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"flashsale/handler/apidocs"
	"flashsale/handler/auth"
	"flashsale/handler/openapi"
	"flashsale/handler/problem"
	"flashsale/handler/request"
	"flashsale/internal/testing/contract"
)

// apiContract returns handler/openapi/openapi.yaml.
func apiContract(tb testing.TB) *contract.Contract {
	tb.Helper()
	c, err := contract.Parse(openapi.Document)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// underContract checks every exchange of a handler against the contract. Some tests open a shop
// without some of the routes.
func underContract(tb testing.TB, h http.Handler) http.Handler {
	tb.Helper()
	shown := shownInBrowser(tb)
	checked := apiContract(tb).Handler(h, func(err error) {
		if !errors.Is(err, contract.ErrNoRoute) && tb.Context().Err() == nil {
			tb.Errorf("contract: %v", err)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(addedLater, "GET "+r.URL.Path) || strings.HasPrefix(r.URL.Path, apidocs.Prefix) ||
			shown(r.URL.Path) || strings.HasPrefix(r.Header.Get("Accept"), "text/html,") && !strings.HasPrefix(r.URL.Path, "/v1/") {
			h.ServeHTTP(w, r)
			return
		}
		checked.ServeHTTP(w, r)
	})
}

// The document is valid, and every example follows its schema.
func TestContract_Document(t *testing.T) {
	t.Parallel()
	if err := apiContract(t).CheckDocument(t.Context()); err != nil {
		t.Error(err)
	}
}

// addedLater are routes that the document does not describe: the page that shows it.
var addedLater = []string{"GET /docs", "GET /docs/assets/{asset}"}

// documented is an operation of the document.
type documented struct {
	*openapi3.Operation
	parameters openapi3.Parameters // those of its path included
	codes      map[string]bool     // of all its problems
}

// documentedRoutes returns the operations of the document by route.
func documentedRoutes(t *testing.T) map[string]documented {
	t.Helper()
	all := map[string]documented{}
	for path, item := range apiContract(t).Document.Paths.Map() {
		for method, op := range item.Operations() {
			d := documented{op, slices.Concat(item.Parameters, op.Parameters), map[string]bool{}}
			for _, r := range op.Responses.Map() {
				for _, code := range codesOf(r.Value) {
					d.codes[code] = true
				}
			}
			all[method+" "+path] = d
		}
	}
	return all
}

// codesOf returns the codes of a response: the names of its examples.
func codesOf(r *openapi3.Response) []string {
	m := r.Content["application/problem+json"]
	if m == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(m.Examples))
}

// template returns the route's path as in the document.
func (r *route) template() string {
	segments := strings.Split(r.Path, "/")
	for i, s := range segments {
		if name, ok := strings.CutPrefix(s, ":"); ok {
			segments[i] = "{" + name + "}"
		}
	}
	return strings.Join(segments, "/")
}

// The document has the routes of the table, and no others.
func TestContract_Routes(t *testing.T) {
	t.Parallel()
	inDocument := documentedRoutes(t)
	for _, r := range apiTable(t) {
		name := r.Method + " " + r.template()
		if _, there := inDocument[name]; !there && !slices.Contains(addedLater, name) {
			t.Errorf("openapi.yaml lacks %s", name)
		}
		delete(inDocument, name)
	}
	for name := range inDocument {
		t.Errorf("openapi.yaml has %s, which is not in the table of routes", name)
	}
}

// Each operation has what its route's entry in the table says: the roles, the parameters and the
// body.
func TestContract_Operations(t *testing.T) {
	t.Parallel()
	ids := map[string]string{}
	inDocument := documentedRoutes(t)
	for _, r := range apiTable(t) {
		name := r.Method + " " + r.template()
		op, there := inDocument[name]
		if !there {
			continue // reported by TestContract_Routes
		}
		if other := ids[op.OperationID]; other != "" || op.OperationID == "" || op.Summary == "" || len(op.Tags) != 1 {
			t.Errorf("%s: operationId %q (also of %q), summary %q, tags %v", name, op.OperationID, other, op.Summary, op.Tags)
		}
		ids[op.OperationID] = name
		if got, want := rolesOf(op.Security), rolesText(r.Roles); got != want {
			t.Errorf("%s: open to %q, the table says %q", name, got, want)
		}
		if got, want := parametersOf(op.parameters), r.parameters(); !slices.Equal(got, want) {
			t.Errorf("%s: parameters %q, the table says %q", name, got, want)
		}
		switch {
		case r.Body == bodyIgnored && op.RequestBody != nil:
			t.Errorf("%s: a body, which the route ignores", name)
		case r.Body != bodyIgnored && op.RequestBody == nil:
			t.Errorf("%s: no body, which the route reads", name)
		case r.Body != bodyIgnored && op.RequestBody.Value.Required != (r.Body == bodyJSON):
			t.Errorf("%s: body required %t", name, op.RequestBody.Value.Required)
		}
		if kind := mediaNames[r.Produces]; kind != "" {
			ok := slices.ContainsFunc(slices.Collect(maps.Values(op.Responses.Map())), func(resp *openapi3.ResponseRef) bool {
				return resp.Value.Content[kind] != nil
			})
			if !ok && op.Responses.Value("204") == nil {
				t.Errorf("%s: no response of the type %s", name, kind)
			}
		}
	}
}

var mediaNames = map[*request.Media]string{
	request.MediaJSON: "application/json", request.MediaEvents: "text/event-stream",
	request.MediaHTML: "text/html", request.MediaYAML: "application/yaml",
}

func rolesText(roles []auth.Role) string {
	var all []string
	for _, role := range roles {
		all = append(all, string(role))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// rolesOf returns the roles of which one is required.
func rolesOf(alternatives *openapi3.SecurityRequirements) string {
	if alternatives == nil {
		return "(unstated)"
	}
	var all []string
	for _, one := range *alternatives {
		all = append(all, strings.Join(one["bearer"], "+"))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// optionalHeaders are headers of requests that are not in the table.
var optionalHeaders = []string{"header If-None-Match", "header Last-Event-ID", "header Prefer"}

// parametersOf returns the parameters of an operation, with a ! if one is required.
func parametersOf(parameters openapi3.Parameters) []string {
	var all []string
	for _, p := range parameters {
		name := p.Value.In + " " + p.Value.Name
		if slices.Contains(optionalHeaders, name) {
			continue
		}
		if p.Value.Required {
			name += "!"
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// parameters returns the same for a route.
func (r *route) parameters() []string {
	var all []string
	for _, p := range r.params() {
		all = append(all, "path "+p.name+"!")
	}
	for _, name := range slices.Concat(r.Query, r.AdminQuery) {
		all = append(all, "query "+name)
	}
	switch r.Match {
	case matchOptional:
		all = append(all, "header If-Match")
	case matchRequired:
		all = append(all, "header If-Match!")
	case matchIgnored:
	}
	if r.Keyed {
		all = append(all, "header Idempotency-Key!")
	}
	slices.Sort(all)
	return all
}

// The document has the codes of the error table, with their statuses, and no others.
func TestContract_Codes(t *testing.T) {
	t.Parallel()
	doc := apiContract(t).Document
	statuses := problem.Statuses()
	var enum []string
	for _, code := range doc.Components.Schemas["ProblemCode"].Value.Enum {
		enum = append(enum, code.(string))
	}
	if want := slices.Sorted(maps.Keys(statuses)); !slices.Equal(enum, want) {
		t.Errorf("ProblemCode has the codes %q, want %q", enum, want)
	}
	used, titles := map[string]bool{}, writtenCodes(t)
	for name, r := range doc.Components.Responses {
		for _, code := range codesOf(r.Value) {
			used[code] = true
			example, ok := r.Value.Content["application/problem+json"].Examples[code].Value.Value.(map[string]any)
			if !ok || example["code"] != code || example["type"] != "/docs#"+code || example["status"] != float64(statuses[code]) {
				t.Errorf("%s: the example %s is %v; the status is %d", name, code, example, statuses[code])
			}
			if title, _ := example["title"].(string); !slices.Contains(titles[code], title) {
				t.Errorf("%s: the title of the example %s is %q, want one of %q", name, code, title, titles[code])
			}
		}
	}
	for code := range statuses {
		if !used[code] {
			t.Errorf("no response has the code %s", code)
		}
	}
	for name, op := range documentedRoutes(t) {
		for status, r := range op.Responses.Map() {
			for _, code := range codesOf(r.Value) {
				if got := strconv.Itoa(statuses[code]); status != "default" && status != got {
					t.Errorf("%s: the code %s of %s is documented for %s", name, code, got, status)
				}
			}
		}
	}
}

// Each operation has the codes that follow from its route's entry in the table, and none that
// cannot follow.
func TestContract_CodesOfRoutes(t *testing.T) {
	t.Parallel()
	inDocument := documentedRoutes(t)
	decided := map[string]bool{} // the codes that only the table decides about
	for _, r := range apiTable(t) {
		for code := range r.codes() {
			decided[code] = true
		}
	}
	for _, r := range apiTable(t) {
		name := r.Method + " " + r.template()
		op, there := inDocument[name]
		if !there {
			continue
		}
		want := r.codes()
		for code := range decided {
			if want[code] && !op.codes[code] {
				t.Errorf("%s lacks the code %s", name, code)
			}
			// Ids and cursors are in bodies, too, and fields have values that depend on each other.
			if !want[code] && op.codes[code] && code != "id_invalid" && code != "cursor_invalid" && code != "idempotency_key_reused" {
				t.Errorf("%s cannot have the code %s", name, code)
			}
		}
	}
}

// codes returns the codes that a route can have because of its entry in the table.
func (r *route) codes() map[string]bool {
	all := map[string]bool{}
	add := func(when bool, codes ...string) {
		for _, code := range codes {
			all[code] = all[code] || when
		}
	}
	takes := func(name string) bool { return slices.Contains(slices.Concat(r.Query, r.AdminQuery), name) }
	reads := r.Body != bodyIgnored
	add(true, "header_too_large", "rate_limited", "internal", "request_malformed", "expectation_failed", "transfer_encoding", "http_version")
	add(len(r.Roles) > 0, "auth_missing", "token_malformed", "token_alg", "token_key", "token_signature", "token_expired",
		"token_not_yet_valid", "token_claims", "token_audience", "token_issuer", "token_role")
	add(r.Loopback || len(r.Roles) > 0 && len(r.Roles) < len(everyRole), "forbidden")
	add(len(r.params()) > 0 || takes("item_id") || takes("order_id"), "id_invalid")
	add(r.Produces != nil, "not_acceptable")
	add(r.Query != nil, "unknown_parameter", "parameter_invalid")
	add(takes("limit"), "limit_range")
	add(takes("cursor"), "cursor_invalid")
	add(r.Match != matchIgnored, "if_match_invalid", "version_conflict")
	add(r.Match == matchRequired, "version_required")
	add(r.Keyed, "idempotency_key_missing", "idempotency_key_invalid", "idempotency_key_reused")
	add(len(r.Roles) > 0 || r.Keyed || reads, "header_duplicate")
	add(reads, "request_timeout", "body_incomplete", "body_too_large", "content_type", "content_encoding",
		"body_missing", "json_invalid", "json_duplicate_key", "json_trailing", "unknown_field")
	add(r.Body == bodyJSON, "field_type")
	maps.DeleteFunc(all, func(_ string, when bool) bool { return !when })
	return all
}
