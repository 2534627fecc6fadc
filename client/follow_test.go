package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// event returns an event of a stream with the order in a state.
func event(id, status, more string) string {
	order := strings.Replace(someOrder, `"confirmed"`, `"`+status+`"`+more, 1)
	return "id: " + id + "\nevent: order\ndata: " + order + "\n\n"
}

const unpaid = `,"expires_at":"2030-01-02T03:19:05.060Z"`

// follow returns the states of the order that Follow reports.
func follow(ctx context.Context, c *Client) (states []string, err error) {
	for order, err := range Follow(ctx, c, "o") {
		if err != nil {
			return states, err
		}
		states = append(states, string(order.Status))
	}
	return states, nil
}

func TestFollow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answers []answer
		states  []string
		code    ProblemCode
		pause   time.Duration // before the last connection
	}{
		"one connection": {[]answer{{status: 200, body: "retry: 1500\n\n" + event("1", "queued", "") + ": keep-alive\n\n" + event("2", "confirmed", "")}},
			[]string{"queued", "confirmed"}, "", 0},
		"a stream that ends early": {[]answer{{status: 200, body: "retry: 1500\n\n" + event("2", "confirmed", unpaid)}, {status: 200, body: event("3", "paid", unpaid)}},
			[]string{"confirmed", "paid"}, "", 1500 * time.Millisecond},
		"half an event": {[]answer{{status: 200, body: "id: 1\ndata: {\"sta"}, {status: 200, body: event("2", "rejected", "")}},
			[]string{"rejected"}, "", reconnectAfter},
		"no more events": {[]answer{{status: 200, body: event("2", "confirmed", unpaid)}, {status: 204}},
			[]string{"confirmed"}, "", reconnectAfter},
		"refused": {[]answer{{status: 404, body: problemBody("order_not_found")}}, nil, ProblemCodeOrderNotFound, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, server := newTestClient(t, tc.answers...)
				states, err := follow(t.Context(), c)
				if !slices.Equal(states, tc.states) || (err != nil) != (tc.code != "") || err != nil && !HasCode(err, tc.code) {
					t.Errorf("states %q, %v", states, err)
				}
				if n := len(server.times); n != len(tc.answers) || n > 1 && server.times[n-1].Sub(server.times[n-2]) != tc.pause {
					t.Errorf("connections at %v", server.times)
				}
			})
		})
	}
}

// A new connection continues after the last event.
func TestFollow_LastEventID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(t, answer{status: 200, body: event("2", "confirmed", unpaid)}, answer{status: 200, body: event("3", "expired", unpaid)})
		var sent []string
		inner := c.Client
		c.Client = doerFunc(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, r.Header.Get("Last-Event-ID"))
			return inner.Do(r)
		})
		if _, err := follow(t.Context(), c); err != nil || !slices.Equal(sent, []string{"", "2"}) {
			t.Errorf("Last-Event-ID %q, %v", sent, err)
		}
	})
}

func TestFollow_Stops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, server := newTestClient(t, answer{status: 200, body: event("1", "queued", "") + event("2", "confirmed", unpaid)})
		for order, err := range Follow(t.Context(), c, "o") {
			if err != nil || order.Status != OrderStatusQueued {
				t.Errorf("%+v, %v", order, err)
			}
			break
		}
		if len(server.times) != 1 {
			t.Errorf("connected %d times", len(server.times))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(61*time.Second, func() { cancel(errLost) }) // during a pause
		if states, err := follow(ctx, c); !errors.Is(err, errLost) || len(states) < 2 {
			t.Errorf("states %q, %v", states, err)
		}
		for _, body := range []string{"id: 1\ndata: no json\n\n", "data: {\"status\":1}\n\n", "data: " + strings.Repeat("x", maxEvent)} {
			c, server = newTestClient(t, answer{status: 200, body: body})
			if _, err := follow(t.Context(), c); err == nil || len(server.times) != 1 {
				t.Errorf("%d connections, %v, for an event that cannot be read", len(server.times), err)
			}
		}
	})
}

// A connection that stays open without heartbeats is replaced, and one with heartbeats is not.
func TestFollow_Silence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(t)
		connections := 0
		c.Client = doerFunc(func(r *http.Request) (*http.Response, error) {
			connections++
			reader, writer := io.Pipe()
			stop := context.AfterFunc(r.Context(), func() { writer.CloseWithError(r.Context().Err()) })
			if connections == 2 {
				go func() {
					defer stop()
					heartbeats := time.NewTicker(15 * time.Second)
					defer heartbeats.Stop()
					parts := append(slices.Repeat([]string{": \n\n"}, 10), event("2", "rejected", ""))
					for _, part := range parts {
						<-heartbeats.C
						if _, err := io.WriteString(writer, part); err != nil {
							return // cancelled
						}
					}
				}()
			}
			return &http.Response{StatusCode: http.StatusOK, Body: reader}, nil
		})
		if states, err := follow(t.Context(), c); err != nil || !slices.Equal(states, []string{"rejected"}) || connections != 2 {
			t.Errorf("states %q, %v, %d connections", states, err, connections)
		}
	})
}

// A server that sends headers and then nothing does not hold the stream.
func TestFollow_SilentServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	c, err := NewBearer(server.URL, "secret")
	if err != nil {
		t.Fatal(err)
	}
	s := stream{silence: time.Millisecond}
	more, err := s.read(t.Context(), c, "o", func(o Order, _ error) bool { t.Errorf("got %+v", o); return false })
	if !more || err != nil {
		t.Errorf("more %t, %v, want a new connection", more, err)
	}
}

// doerFunc sends requests with a function.
type doerFunc func(*http.Request) (*http.Response, error)

func (f doerFunc) Do(r *http.Request) (*http.Response, error) { return f(r) }
