//go:build unix

package main_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"flashsale/handler/auth"
)

// badRequest is a request that must be refused. Empty fields are those of a valid purchase; the
// token "-" means none.
type badRequest struct {
	name, method, path, token, body string
	headers                         []string
	want                            string
}

var jsonType = []string{"Content-Type", "application/json"}

func badTokens(c *client) []badRequest {
	head, rest, _ := strings.Cut(c.token("mallory", auth.RoleBuyer), ".")
	claims, signature, _ := strings.Cut(rest, ".")
	return []badRequest{
		{name: "no token", token: "-", want: "401 auth_missing"},
		{name: "token in two parts", token: head + "." + claims, want: "401 token_malformed"},
		{name: "signature stripped", token: head + "." + claims + ".", want: "401 token_malformed"},
		{name: "signature of another", token: head + "." + claims + "." + signature[1:] + "A", want: "401 token_signature"},
		{name: "admin buys", token: c.token("root", auth.RoleAdmin), want: "403 forbidden"},
		{name: "service buys", token: c.token("psp", auth.RoleService), want: "403 forbidden"},
		{name: "buyer creates an item", path: "/v1/admin/items", want: "403 forbidden"},
	}
}

func badBodies() []badRequest {
	return []badRequest{
		{name: "quantity 0", body: `{"quantity":0}`, want: "422 quantity_range"},
		{name: "quantity -1", body: `{"quantity":-1}`, want: "422 quantity_range"},
		{name: "above the limit", body: `{"quantity":2}`, want: "422 quantity_range"},
		{name: "quantity 2^64", body: `{"quantity":18446744073709551616}`, want: "422 quantity_range"},
		{name: "quantity 1.5", body: `{"quantity":1.5}`, want: "400 field_type"},
		{name: "quantity 1e0", body: `{"quantity":1e0}`, want: "400 field_type"},
		{name: "quantity as text", body: `{"quantity":"1"}`, want: "400 field_type"},
		{name: "quantity null", body: `{"quantity":null}`, want: "400 field_type"},
		{name: "no quantity", body: `{}`, want: "400 field_missing"},
		{name: "empty", body: "", want: "400 body_missing"},
		{name: "array", body: `[1]`, want: "400 json_invalid"},
		{name: "truncated", body: `{"quantity":1`, want: "400 json_invalid"},
		{name: "leading zero", body: `{"quantity":01}`, want: "400 json_invalid"},
		{name: "invalid UTF-8", body: "{\"quantity\":1,\"\xff\":1}", want: "400 json_invalid"},
		{name: "depth 1,000", body: strings.Repeat("[", 1000), want: "400 json_invalid"},
		{name: "twice", body: `{"quantity":1,"quantity":1}`, want: "400 json_duplicate_key"},
		{name: "second document", body: validPurchase + validPurchase, want: "400 json_trailing"},
		{name: "another buyer's id", body: `{"quantity":1,"user_id":"bob"}`, want: "400 unknown_field"},
		{name: "price", body: `{"quantity":1,"price":1}`, want: "400 unknown_field"},
		{name: "upper case", body: `{"Quantity":1}`, want: "400 unknown_field"},
		{name: "4 KiB and 1", body: validPurchase + strings.Repeat(" ", 4097-len(validPurchase)), want: "413 body_too_large"},
	}
}

func badHeaders() []badRequest {
	keyed := append(slices.Clone(jsonType), "Idempotency-Key", "k")
	return []badRequest{
		{name: "no key", headers: jsonType, want: "400 idempotency_key_missing"},
		{name: "empty key", headers: append(jsonType, "Idempotency-Key", ""), want: "400 idempotency_key_invalid"},
		{name: "256 characters of key", headers: append(jsonType, "Idempotency-Key", strings.Repeat("k", 256)), want: "400 idempotency_key_invalid"},
		{name: "key not ASCII", headers: append(jsonType, "Idempotency-Key", "schlüssel"), want: "400 idempotency_key_invalid"},
		{name: "two keys", headers: append(jsonType, "Idempotency-Key", "a", "Idempotency-Key", "b"), want: "400 header_duplicate"},
		{name: "text", headers: []string{"Content-Type", "text/plain", "Idempotency-Key", "k"}, want: "415 content_type"},
		{name: "no type", headers: []string{"Idempotency-Key", "k"}, want: "415 content_type"},
		{name: "gzip", headers: append(keyed, "Content-Encoding", "gzip"), want: "415 content_encoding"},
		{name: "wants an image", headers: append(keyed, "Accept", "image/png"), want: "406 not_acceptable"},
		{name: "20 KiB of headers", headers: append(keyed, "X-Filler", strings.Repeat("x", 20<<10)), want: "431 header_too_large"},
		{name: "64 KB of headers", headers: append(keyed, "X-Filler", strings.Repeat("x", 64_000)), want: "431 header_too_large"},
	}
}

// badTargets have an invalid method, path or query.
func badTargets(item string) []badRequest {
	return []badRequest{
		{name: "upper case id", path: "/v1/items/" + strings.ToUpper(item) + "/orders", want: "400 id_invalid"},
		{name: "NUL in the id", path: "/v1/items/a%00b/orders", want: "400 id_invalid"},
		{name: "line break in the id", path: "/v1/items/a%0d%0ab/orders", want: "400 id_invalid"},
		{name: "hash tag in the id", path: "/v1/items/%7Ba%7D/orders", want: "400 id_invalid"},
		{name: "SQL in the id", path: "/v1/items/'%20OR%201=1--/orders", want: "400 id_invalid"},
		{name: "65 characters of id", path: "/v1/items/" + strings.Repeat("a", 65) + "/orders", want: "400 id_invalid"},
		{name: "unknown item", path: "/v1/items/nope/orders", want: "404 item_not_found"},
		{name: "GET", method: "GET", want: "405 method_not_allowed"},
		{name: "DELETE", method: "DELETE", want: "405 method_not_allowed"},
		{name: "TRACE", method: "TRACE", want: "405 method_not_allowed"},
		{name: "no route", path: "/v1/nothing", want: "404 route_not_found"},
		{name: "unknown order", method: "GET", path: "/v1/orders/" + uuid.NewString(), want: "404 order_not_found"},
		{name: "limit 0", method: "GET", path: "/v1/orders?limit=0", want: "400 limit_range"},
		{name: "cursor tampered with", method: "GET", path: "/v1/orders?cursor=abc", want: "400 cursor_invalid"},
	}
}

const validPurchase = `{"quantity":1}`

// wantRefused sends the request and checks its refusal.
func (c *client) wantRefused(q badRequest, item string) {
	c.t.Helper()
	if q.method == "" {
		q.method = "POST"
	}
	if q.path == "" {
		q.path = "/v1/items/" + item + "/orders"
	}
	if q.headers == nil {
		q.headers = append(slices.Clone(jsonType), "Idempotency-Key", "k-"+uuid.NewString())
	}
	if q.body == "" && q.name != "empty" {
		q.body = validPurchase
	}
	switch q.token {
	case "":
		q.token = c.token("mallory", auth.RoleBuyer)
	case "-":
		q.token = ""
	}
	a, err := c.do(q.method, q.path, q.token, q.body, q.headers...)
	if err != nil || a.verdict() != q.want {
		c.t.Errorf("%s: %s, error %v; want %s", q.name, a.verdict(), err, q.want)
	}
	if a.Status == 401 && a.Header["WWW-Authenticate"] == "" {
		c.t.Errorf("%s: 401 without WWW-Authenticate", q.name)
	}
	if a.Status == 405 && !strings.Contains(a.Header["Allow"], "POST") {
		c.t.Errorf("%s: Allow is %q", q.name, a.Header["Allow"])
	}
}

// TestBadRequests_TakeNoUnits sends malformed requests over the network. Each gets its problem
// code, and none takes any units.
func TestBadRequests_TakeNoUnits(t *testing.T) {
	needProcesses(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 3, 1)
		for _, q := range slices.Concat(badTokens(c), badBodies(), badHeaders(), badTargets(item)) {
			c.wantRefused(q, item)
		}
		for _, raw := range ambiguous("/v1/items/"+item+"/orders", c.token("mallory", auth.RoleBuyer)) {
			rawAnswer(t, c, raw)
		}
		longLine(t, c)
		if l := s.ledger(c, item); l.Left != 3 || l.Held != 0 || l.Sold != 0 {
			t.Errorf("something was taken: %+v", l)
		}
		if rows := s.rows(item); len(rows) != 0 {
			t.Errorf("rows: %+v", rows)
		}
		// The client can still buy after that.
		if p := c.buy(item, "mallory", "k", untilCommitted...); p.verdict() != "201" {
			t.Errorf("a good request: %s", p.verdict())
		}
		s.audit(c, item, 1, nil)
	})
}

// ambiguous are requests with an ambiguous end, on which two HTTP parsers could disagree.
func ambiguous(path, token string) []string {
	head := "POST " + path + " HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer " + token +
		"\r\nContent-Type: application/json\r\nIdempotency-Key: smuggled\r\n"
	body := `{"quantity":0}` // refused in any case, so that neither a 400 nor a 422 takes units
	good := head + "Content-Length: 14\r\n\r\n" + `{"quantity":1}`
	return []string{
		"GET " + path + " HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + good,
		"PUT " + path + " HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}" + good,
		head + "Content-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\ne\r\n" + body + "\r\n0\r\n\r\n",
		head + "Content-Length: 14\r\nContent-Length: 15\r\n\r\n" + body + " ",
		head + "Content-Length : 14\r\n\r\n" + body,
		head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\ne\r\n" + body + "\r\n0\r\n\r\n",
		strings.ReplaceAll(head, "\r\n", "\n") + "Content-Length: 14\n\n" + body,
	}
}

// rawAnswer sends bytes with another request immediately after them, and wants at most one
// refusal and then the end of the connection.
func rawAnswer(t *testing.T, c *client, raw string) {
	t.Helper()
	conn, err := net.Dial("tcp", c.target.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "%sGET /healthz HTTP/1.1\r\nHost: shop\r\n\r\n", raw); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil && len(got) == 0 {
		return // closing without an answer is also correct
	}
	if lines := statusLine.FindAllSubmatch(got, -1); len(lines) != 1 || lines[0][1][0] == '2' {
		t.Errorf("%q\ngot %d answers: %q", raw, len(lines), got)
	}
}

var statusLine = regexp.MustCompile(`HTTP/1\.\d (\d{3})`)

// longLine sends an endless request line on a connection that was used before. It is refused
// once it is too long.
func longLine(t *testing.T, c *client) {
	t.Helper()
	conn, err := net.Dial("tcp", c.target.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	for _, q := range []struct{ raw, want string }{
		{"GET /healthz HTTP/1.1\r\nHost: shop\r\n\r\n", "200"},
		{"GET /v1/items/" + strings.Repeat("a", 16<<10), "431"},
	} {
		if _, err := io.WriteString(conn, q.raw); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("no answer to %.40q: %v", q.raw, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Status[:3]; got != q.want {
			t.Errorf("%.40q: %s, want %s", q.raw, got, q.want)
		}
	}
}
