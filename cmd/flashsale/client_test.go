//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/contract"
	"flashsale/internal/testing/process"
	"flashsale/internal/wire"
)

// client calls one API process over keep-alive connections. It never sends a request twice:
// net/http would, for a POST with an Idempotency-Key, and hide the failures that the tests
// check.
type client struct {
	t        *testing.T
	target   wire.Target
	contract *contract.Contract // nil: the operators' address

	mu   sync.Mutex
	idle []idleConn

	tokens sync.Map // by role and subject
}

// idleConn is a connection between two requests.
type idleConn struct {
	*wire.Conn
	since time.Time
}

// maxIdle is how long an idle connection may be reused. The server closes it after two minutes,
// which a test can spend building a program.
const maxIdle = 30 * time.Second

func dial(t *testing.T, p *process.P) *client {
	t.Helper()
	c := dialAddr(t, p.URL())
	c.contract = apiContract(t)
	return c
}

// dialAddr is dial for any address, given as a URL.
func dialAddr(t *testing.T, url string) *client {
	t.Helper()
	target, err := wire.ParseTarget(url)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, target: target}
	t.Cleanup(c.close)
	return c
}

// close drops the idle connections.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.idle {
		if err := conn.Close(); err != nil {
			c.t.Errorf("close connection: %v", err)
		}
	}
	c.idle = nil
}

// take returns the most recently used connection, or nil.
func (c *client) take() *wire.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.idle)
	if n == 0 || time.Since(c.idle[n-1].since) > maxIdle {
		return nil
	}
	conn := c.idle[n-1].Conn
	c.idle = c.idle[:n-1]
	return conn
}

// answerLimit bounds one call. It exceeds every wait inside the service, so a call that reaches
// it has found a lost request.
const answerLimit = 2 * time.Minute

// shown are the headers of an answer that the tests check.
var shown = []string{
	"Content-Type", "Cache-Control", "Content-Encoding", "Retry-After", "Location", "Idempotent-Replayed", "Allow", "WWW-Authenticate", "RateLimit", "X-Request-Id", "Etag",
}

// answer is one answer of the API: a result or a problem.
type answer struct {
	Status int
	Body   string
	Header map[string]string

	Order struct {
		ID       string
		ItemID   string `json:"item_id"`
		UserID   string `json:"user_id"`
		Quantity int64
		Status   string
		Reason   string
	}
	Problem struct {
		Code       string
		Detail     string
		RequestID  string `json:"request_id"`
		RetryAfter int64  `json:"retry_after"`
	}
}

func (a *answer) decode(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.Body), into); err != nil {
		t.Fatalf("decode %s: %v", a.Body, err)
	}
}

func (a *answer) replayed() bool { return a.Header["Idempotent-Replayed"] == "true" }

// verdict is a summary of the answer: its status and, for a refusal, its code.
func (a *answer) verdict() string {
	return strings.TrimSpace(strconv.Itoa(a.Status) + " " + a.Problem.Code)
}

func (a *answer) accepted() bool { return a.Status == 201 || a.Status == 202 }

// errDial means that no connection could be made: nothing was sent.
type errDial struct{ error }

func (e errDial) Unwrap() error { return e.error }

// do sends one request. After an error its outcome is unknown, unless the error is an errDial.
func (c *client) do(method, path, token, body string, headers ...string) (answer, error) {
	conn := c.take()
	if conn == nil {
		var err error
		if conn, err = wire.Dial(c.t.Context(), c.target); err != nil {
			return answer{}, errDial{err}
		}
		conn.Timeout = answerLimit
	}
	var q wire.Request
	q.Start(method, c.target, path)
	if token != "" {
		q.Header("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		q.Header(headers[i], headers[i+1])
	}
	end := q.NoBody
	if method == "POST" || method == "PATCH" {
		end = func() ([]byte, error) { return q.Body([]byte(body)) }
	}
	text, err := end()
	if err != nil {
		return answer{}, err
	}
	res, err := conn.Do(text)
	if err != nil {
		// Only the request's own error is reported.
		_ = conn.Close() //nolint:errcheck // see above
		return answer{}, err
	}
	a, err := read(res)
	c.underContract(method, path, token, body, headers, res)
	if !conn.Usable() {
		return a, conn.Close()
	}
	c.mu.Lock()
	c.idle = append(c.idle, idleConn{conn, time.Now()})
	c.mu.Unlock()
	return a, err
}

// read copies an answer out of its connection.
func read(res *wire.Response) (answer, error) {
	a := answer{Status: res.Status, Body: string(res.Body), Header: make(map[string]string)}
	for _, name := range shown {
		if v := res.Header(name); v != nil {
			a.Header[name] = string(v)
		}
	}
	var err error
	switch {
	case a.Status >= 400 && strings.HasPrefix(a.Header["Content-Type"], "application/"):
		err = json.Unmarshal(res.Body, &a.Problem)
		if err == nil && (a.Header["Content-Type"] != "application/problem+json" || a.Problem.Code == "" || a.Problem.RequestID == "") {
			err = fmt.Errorf("a refusal is not problem+json with code and request id: %d %s", a.Status, a.Body)
		}
	case strings.Contains(a.Body, `"item_id"`) && strings.HasPrefix(a.Body, `{"id":"`):
		err = json.Unmarshal(res.Body, &a.Order)
	}
	return a, err
}

// token signs a token, once for each subject.
func (c *client) token(sub string, role auth.Role) string {
	if v, ok := c.tokens.Load(string(role) + " " + sub); ok {
		if token, ok := v.(string); ok {
			return token
		}
	}
	token, err := auth.SignToken([]byte(secret), sub, role, time.Hour, time.Now())
	if err != nil {
		c.t.Errorf("sign token: %v", err)
	}
	c.tokens.Store(string(role)+" "+sub, token)
	return token
}

// admin calls as an admin. The test fails if there is no answer.
func (c *client) admin(method, path string, body any) answer {
	c.t.Helper()
	var headers []string
	text := ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		text, headers = string(b), []string{"Content-Type", "application/json"}
	}
	a, err := c.do(method, path, c.token("root", auth.RoleAdmin), text, headers...)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// get reads as a buyer. The test fails if there is no answer.
func (c *client) get(path, user string) answer {
	c.t.Helper()
	a, err := c.do("GET", path, c.token(user, auth.RoleBuyer), "")
	if err != nil {
		c.t.Fatalf("GET %s: %v", path, err)
	}
	return a
}

// purchase is the result of one call of buy.
type purchase struct {
	answer
	user, key string
	headers   []string // the headers passed to buy
	err       error    // no answer: the outcome is unknown, unless it is an errDial
}

func (p *purchase) verdict() string {
	if p.err != nil {
		return "error: " + p.err.Error()
	}
	return p.answer.verdict()
}

// buy buys one unit. It is safe for concurrent use.
func (c *client) buy(item, user, key string, headers ...string) purchase {
	return c.buyMany(item, user, key, 1, headers...)
}

func (c *client) buyMany(item, user, key string, quantity int64, headers ...string) purchase {
	all := append([]string{"Content-Type", "application/json", "Idempotency-Key", key}, headers...)
	body := `{"quantity":` + strconv.FormatInt(quantity, 10) + `}`
	a, err := c.do("POST", "/v1/items/"+item+"/orders", c.token(user, auth.RoleBuyer), body, all...)
	return purchase{answer: a, user: user, key: key, headers: headers, err: err}
}

// untilCommitted makes a purchase wait for its commit as long as the service allows, for tests
// that require a 201. The default wait of 2 s may be too short on a busy machine.
var untilCommitted = []string{"Prefer", "wait=10"}

// repeatWithin bounds how long a buyer repeats a purchase whose outcome is unknown.
const repeatWithin = time.Minute

// settle repeats a purchase with its key, as clients should, until it is definitively accepted
// or refused, and returns that answer. It also stops at a 500, which a client should never get.
// look is called with every answer.
func (c *client) settle(item string, p purchase, look ...func(purchase)) purchase {
	show := func(p purchase) {
		for _, fn := range look {
			fn(p)
		}
	}
	show(p)
	limit := time.NewTimer(repeatWithin)
	defer limit.Stop()
	for p.err != nil || p.Status == 503 {
		again := time.NewTimer(50 * time.Millisecond)
		select {
		case <-again.C:
		case <-limit.C:
			again.Stop()
			return p
		}
		p = c.buy(item, p.user, p.key, p.headers...)
		show(p)
	}
	return p
}

// crowd runs fn n times concurrently and returns the results in order.
func crowd[T any](n int, fn func(i int) T) []T {
	out := make([]T, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			out[i] = fn(i)
		})
	}
	close(start)
	all.Wait()
	return out
}

// stream runs fn n times, at most width of them concurrently, and returns the results in order.
func stream[T any](n, width int, fn func(i int) T) []T {
	out := make([]T, n)
	next := make(chan int)
	var all sync.WaitGroup
	for range width {
		all.Go(func() {
			for i := range next {
				out[i] = fn(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	return out
}

// count returns how often each verdict occurred.
func count(list []purchase) map[string]int {
	n := make(map[string]int)
	for i := range list {
		n[list[i].verdict()]++
	}
	return n
}

// accepted lists the purchases answered 201 or 202.
func accepted(list []purchase) []purchase {
	var out []purchase
	for _, p := range list {
		if p.err == nil && p.accepted() {
			out = append(out, p)
		}
	}
	return out
}

// only fails the test if a purchase has another verdict than those allowed.
func only(t *testing.T, list []purchase, allowed ...string) {
	t.Helper()
	for verdict, n := range count(list) {
		ok := false
		for _, a := range allowed {
			ok = ok || verdict == a
		}
		if !ok {
			t.Errorf("%d purchases came to %q; expected are %q", n, verdict, allowed)
		}
	}
}

// burst is stream with a fault: strike is called once, after the given number of answers, while
// the other calls continue.
func burst[T any](n, width, after int, fn func(i int) T, strike func()) []T {
	var answered atomic.Int64
	reached := make(chan struct{})
	done := make(chan []T, 1)
	go func() {
		done <- stream(n, width, func(i int) T {
			v := fn(i)
			if answered.Add(1) == int64(after) {
				close(reached)
			}
			return v
		})
	}()
	<-reached
	strike()
	return <-done
}
