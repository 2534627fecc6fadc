//go:build chaos && unix

package chaos

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"flashsale/internal/verify/history"
	"flashsale/internal/wire"
)

// secret is the key of the suite's tokens.
const secret = "chaos-suite-secret-of-more-than-32-bytes"

// answerLimit bounds one call. It exceeds every wait inside the service.
const answerLimit = 20 * time.Second

// caller makes calls to the API processes over its own connections, one call at a time. It
// never sends a request twice.
type caller struct {
	targets []wire.Target
	conns   []*wire.Conn
	request wire.Request
	tokens  map[string]string
	balance *balancer // nil: each call goes to the given process
}

func newCaller(urls []string) (*caller, error) {
	c := &caller{conns: make([]*wire.Conn, len(urls)), tokens: make(map[string]string)}
	for _, u := range urls {
		target, err := wire.ParseTarget(u)
		if err != nil {
			return nil, err
		}
		c.targets = append(c.targets, target)
	}
	return c, nil
}

// close closes the connections.
func (c *caller) close() {
	for i, conn := range c.conns {
		if conn != nil {
			_ = conn.Close() //nolint:errcheck // everything was read from it
			c.conns[i] = nil
		}
	}
}

// answer is the answer to one request.
type answer struct {
	status     int
	body       []byte // valid until the next call
	replayed   bool
	retryAfter int64
}

// connect ensures that there is a connection to the given process, or to the one that the
// balancer chooses, and returns which.
func (c *caller) connect(ctx context.Context, api int) (int, error) {
	if c.balance != nil {
		return c.balance.connect(ctx, c, api)
	}
	if c.conns[api] == nil {
		return api, c.dial(ctx, api)
	}
	return api, nil
}

func (c *caller) dial(ctx context.Context, api int) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := wire.Dial(ctx, c.targets[api])
	if err != nil {
		return err
	}
	conn.Timeout = answerLimit
	c.conns[api] = conn
	return nil
}

// do sends one request to the given process. After an error the outcome is unknown, or nothing
// was sent because no process accepted the connection.
func (c *caller) do(ctx context.Context, api int, method, path, token, body string, headers ...string) (answer, error) {
	api, err := c.connect(ctx, api)
	if err != nil {
		return answer{}, err
	}
	conn := c.conns[api]
	q := &c.request
	q.Start(method, c.targets[api], path).Header("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(headers); i += 2 {
		q.Header(headers[i], headers[i+1])
	}
	if c.balance != nil {
		q.Header("Connection", "close")
	}
	end := q.NoBody
	if method != "GET" {
		q.Header("Content-Type", "application/json")
		end = func() ([]byte, error) { return q.Body([]byte(body)) }
	}
	raw, err := end()
	if err != nil {
		return answer{}, err
	}
	res, err := conn.Do(raw)
	if err != nil || !conn.Usable() {
		_ = conn.Close() //nolint:errcheck // err has the failure, or the answer was read
		c.conns[api] = nil
	}
	if err != nil {
		return answer{}, err
	}
	a := answer{status: res.Status, body: res.Body, replayed: string(res.Header("Idempotent-Replayed")) == "true"}
	if v := res.Header("Retry-After"); v != nil {
		if a.retryAfter, err = strconv.ParseInt(string(v), 10, 64); err != nil {
			return a, fmt.Errorf("Retry-After %q: %w", v, err)
		}
	}
	return a, nil
}

// call makes one call and records its result. Op, User, Item, Key and similar fields are set by
// the caller; path and body are the request's.
func (c *caller) call(ctx context.Context, clock func() int64, api int, h *history.Call, method, path, role, body string, headers ...string) answer {
	sub := h.User
	if sub == "" {
		sub = "chaos-" + role
	}
	token := c.token(sub, role)
	h.Start = clock()
	a, err := c.do(ctx, api, method, path, token, body, headers...)
	h.End = clock()
	if err != nil {
		h.Err = err.Error()
		return answer{}
	}
	h.Status, h.Replayed, h.RetryAfter = a.status, a.replayed, a.retryAfter
	var fields struct{ ID, Status, Code string }
	if a.status >= 400 {
		var problem struct{ Code string }
		if err := json.Unmarshal(a.body, &problem); err != nil || problem.Code == "" {
			h.Err = fmt.Sprintf("status %d without a code: %.100s", a.status, a.body)
		}
		h.Code = problem.Code
		return a
	}
	if err := json.Unmarshal(a.body, &fields); err != nil {
		h.Err = fmt.Sprintf("status %d with a body that is no JSON: %.100s", a.status, a.body)
		return a
	}
	switch h.Op {
	case history.Buy, history.Get, history.Pay, history.Cancel:
		h.Order, h.State = fields.ID, fields.Status
	default: // the others answer with the item
	}
	return a
}

// buy makes one purchase.
func (c *caller) buy(ctx context.Context, clock func() int64, api int, h *history.Call) {
	headers := []string{"Idempotency-Key", h.Key}
	if h.Async {
		headers = append(headers, "Prefer", "respond-async")
	}
	h.Op = history.Buy
	c.call(ctx, clock, api, h, "POST", "/v1/items/"+h.Item+"/orders", "buyer",
		`{"quantity":`+strconv.FormatInt(h.Quantity, 10)+`}`, headers...)
}

// get reads an order as its buyer.
func (c *caller) get(ctx context.Context, clock func() int64, api int, h *history.Call) {
	h.Op = history.Get
	order := h.Order
	c.call(ctx, clock, api, h, "GET", "/v1/orders/"+url.PathEscape(order), "buyer", "")
	h.Order = order
}

// admin makes an admin call that is not part of the history.
func (c *caller) admin(ctx context.Context, api int, method, path string, body any) (answer, error) {
	text := ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		text = string(b)
	}
	return c.do(ctx, api, method, path, c.token("chaos-admin", "admin"), text)
}

// token signs a token, once for each subject. It does not use the service's code, because the
// suite tests the service from outside.
func (c *caller) token(sub, role string) string {
	if t := c.tokens[role+" "+sub]; t != "" {
		return t
	}
	part := base64.RawURLEncoding.EncodeToString
	claims := fmt.Sprintf(`{"sub":%q,"role":%q,"aud":"flashsale","exp":%d}`, sub, role, time.Now().Add(6*time.Hour).Unix())
	text := part([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + part([]byte(claims))
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(text)) // a hash's Write never fails
	text += "." + part(mac.Sum(nil))
	c.tokens[role+" "+strings.Clone(sub)] = text
	return text
}

// fetch reads a page of a process, such as its metrics.
func fetch(ctx context.Context, page string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", page, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}
