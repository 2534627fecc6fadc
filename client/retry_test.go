package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errLost = errors.New("connection lost")

// answers is a server that gives prepared answers, and then the last one again.
type answers struct {
	all   []answer
	times []time.Time
	keys  []string
	sent  []string // bodies
}

// answer is an answer, or a lost connection with status 0.
type answer struct {
	status int
	retry  string
	body   string
}

func (a *answers) Do(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	a.times, a.keys = append(a.times, time.Now()), append(a.keys, r.Header.Get("Idempotency-Key"))
	body := []byte{}
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	a.sent = append(a.sent, string(body))
	next := a.all[min(len(a.times), len(a.all))-1]
	if next.status == 0 {
		return nil, errLost
	}
	h := http.Header{"Content-Type": {"application/json"}}
	if next.retry != "" {
		h.Set("Retry-After", next.retry)
	}
	return &http.Response{StatusCode: next.status, Status: http.StatusText(next.status), Header: h, Body: io.NopCloser(strings.NewReader(next.body))}, nil
}

// newTestClient returns a client of prepared answers.
func newTestClient(t *testing.T, all ...answer) (*Client, *answers) {
	t.Helper()
	server := &answers{all: all}
	c, err := NewBearer("http://sale.example", "secret", WithHTTPClient(&Retry{Client: server}))
	if err != nil {
		t.Fatal(err)
	}
	return c, server
}

const someOrder = `{"id":"0197a0f2-3c4d-7abc-8def-0123456789ab","item_id":"demo","user_id":"alice","quantity":1,"unit_price_minor":4900,` +
	`"currency":"EUR","status":"confirmed","created_at":"2030-01-02T03:04:05.050Z"}`

// problemBody returns the body of a refusal.
func problemBody(code string) string {
	return `{"type":"/docs#` + code + `","title":"T","status":409,"detail":"D.","code":"` + code + `","request_id":"r1"}`
}

func TestBuy_RepeatsWithTheSameKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, server := newTestClient(t, answer{}, answer{status: 503, retry: "7"}, answer{status: 429, retry: "3"}, answer{status: 201, body: someOrder})
		start := time.Now()
		order, replayed, err := Buy(t.Context(), c, BuyParams{Item: "demo"})
		if err != nil || replayed || order.ID != "0197a0f2-3c4d-7abc-8def-0123456789ab" || order.Status != OrderStatusConfirmed {
			t.Fatalf("%+v, %t, %v", order, replayed, err)
		}
		if len(server.keys) != 4 || server.keys[0] == "" {
			t.Fatalf("keys %q", server.keys)
		}
		for i := range server.keys {
			if server.keys[i] != server.keys[0] || server.sent[i] != `{"quantity":1}` {
				t.Errorf("attempt %d: key %q, body %q; the first had key %q", i+1, server.keys[i], server.sent[i], server.keys[0])
			}
		}
		if first := server.times[1].Sub(start); first > retryMinWait {
			t.Errorf("waited %v after a lost connection", first)
		}
		if server.times[2].Sub(server.times[1]) != 7*time.Second || server.times[3].Sub(server.times[2]) != 3*time.Second {
			t.Errorf("Retry-After was not followed: %v", server.times)
		}
	})
}

func TestBuy_Refused(t *testing.T) {
	t.Parallel()
	c, server := newTestClient(t, answer{status: 409, body: problemBody("sold_out")})
	_, _, err := Buy(t.Context(), c, BuyParams{Item: "demo", Quantity: 2, Key: "k"})
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Code != ProblemCodeSoldOut || !HasCode(err, ProblemCodeSoldOut) || HasCode(err, ProblemCodeUserLimit) {
		t.Fatalf("err = %v", err)
	}
	if len(server.keys) != 1 || server.keys[0] != "k" || server.sent[0] != `{"quantity":2}` {
		t.Errorf("sent %q with %q", server.sent, server.keys)
	}
	if got := err.Error(); got != "flashsale: 409 sold_out: D. (request r1)" {
		t.Errorf("Error() = %q", got)
	}
	c, _ = newTestClient(t, answer{status: 502, body: "<html>bad gateway"})
	if _, _, err := Buy(t.Context(), c, BuyParams{Item: "demo"}); err == nil || errors.As(err, &refusal) {
		t.Errorf("the answer of a proxy: %v", err)
	}
}

// What cannot be repeated safely is sent once.
func TestRetry_SafeRequestsOnly(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer answer
		call   func(context.Context, *Client) error
		want   int
	}{
		"a change, lost": {answer{}, func(ctx context.Context, c *Client) error {
			return Done(c.CancelOrder(ctx, "o", Empty{}))
		}, 1},
		"a change, 503": {answer{status: 503, retry: "1"}, func(ctx context.Context, c *Client) error {
			return Done(c.CancelOrder(ctx, "o", Empty{}))
		}, 1},
		"a change, 429": {answer{status: 429, retry: "1"}, func(ctx context.Context, c *Client) error {
			return Done(c.CancelOrder(ctx, "o", Empty{}))
		}, retryAttempts},
		"a read, lost": {answer{}, func(ctx context.Context, c *Client) error {
			return Done(c.GetItem(ctx, "demo", nil))
		}, retryAttempts},
		"a restock, 503": {answer{status: 503}, func(ctx context.Context, c *Client) error {
			return Done(c.RestockItem(ctx, "demo", &RestockItemParams{IdempotencyKey: "k"}, Restock{Quantity: 1, Reason: "r"}))
		}, retryAttempts},
		"a read, 500": {answer{status: 500}, func(ctx context.Context, c *Client) error {
			return Done(c.GetItem(ctx, "demo", nil))
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, server := newTestClient(t, tc.answer)
				if err := tc.call(t.Context(), c); err == nil {
					t.Error("no error")
				}
				if len(server.times) != tc.want {
					t.Errorf("sent %d times, want %d", len(server.times), tc.want)
				}
			})
		})
	}
}

// The context bounds the repeats: a wait that would outlast it does not begin.
func TestRetry_ContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, server := newTestClient(t, answer{status: 503, retry: "60", body: problemBody("overloaded")})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, _, err := Buy(ctx, c, BuyParams{Item: "demo"}); !HasCode(err, ProblemCodeOverloaded) || len(server.times) != 1 {
			t.Errorf("%v after %d attempts", err, len(server.times))
		}
		if ctx.Err() != nil {
			t.Error("the wait was not cut short")
		}
		cancelled, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Second, func() { stop(errLost) })
		if _, _, err := Buy(cancelled, c, BuyParams{Item: "demo"}); !errors.Is(err, errLost) {
			t.Errorf("cancelled during a wait: %v", err)
		}
	})
}

func TestRetry_Date(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		date := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
		c, server := newTestClient(t, answer{status: 503, retry: date}, answer{status: 200, body: "{}"})
		if err := Done(c.GetItem(t.Context(), "demo", nil)); err != nil {
			t.Fatal(err)
		}
		if got := server.times[1].Sub(server.times[0]).Round(time.Second); got != 90*time.Second {
			t.Errorf("waited %v", got)
		}
	})
}

// An attempt without an answer ends, and an answer that takes long to read does not.
func TestRetry_Timeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		retry := &Retry{Client: doerFunc(func(r *http.Request) (*http.Response, error) {
			attempts++
			if attempts == 1 {
				<-r.Context().Done()
				return nil, context.Cause(r.Context())
			}
			slow := readerFunc(func(p []byte) (int, error) {
				if err := pause(r.Context(), time.Hour); err != nil {
					return 0, err
				}
				return copy(p, someOrder), io.EOF
			})
			return &http.Response{StatusCode: 201, Body: io.NopCloser(slow)}, nil
		})}
		c, err := NewBearer("http://sale.example", "", WithHTTPClient(retry))
		if err != nil {
			t.Fatal(err)
		}
		if order, _, err := Buy(t.Context(), c, BuyParams{Item: "demo"}); err != nil || order.ItemID != "demo" || attempts != 2 {
			t.Errorf("%+v, %v after %d attempts", order, err, attempts)
		}
	})
	// What cannot be repeated is given as long as its caller allows.
	synctest.Test(t, func(t *testing.T) {
		retry := &Retry{Client: doerFunc(func(r *http.Request) (*http.Response, error) {
			if err := pause(r.Context(), time.Hour); err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})}
		c, err := NewBearer("http://sale.example", "", WithHTTPClient(retry))
		if err != nil {
			t.Fatal(err)
		}
		if err := Done(c.Reconcile(t.Context(), nil, Empty{})); err != nil {
			t.Error(err)
		}
	})
}

// readerFunc reads with a function.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestNewBearerFunc_TokenFails(t *testing.T) {
	t.Parallel()
	server := &answers{all: []answer{{status: 200}}}
	c, err := NewBearerFunc("http://sale.example", func(context.Context) (string, error) { return "", errLost }, WithHTTPClient(server))
	if err != nil {
		t.Fatal(err)
	}
	if err := Done(c.GetItem(t.Context(), "demo", nil)); !errors.Is(err, errLost) || len(server.times) != 0 {
		t.Errorf("%v, sent %d times", err, len(server.times))
	}
}
