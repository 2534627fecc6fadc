//go:build unix

package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// follower is a client that follows one order like a browser's EventSource: it reconnects with
// the id of the last event, to any process.
type follower struct {
	t     *testing.T
	c     *client // for its tokens
	order string
	sub   string
	last  string // id of the last event
	body  io.ReadCloser
	in    *bufio.Reader
}

func (c *client) follow(orderID, sub string) *follower {
	return &follower{t: c.t, c: c, order: orderID, sub: sub}
}

// connect opens the stream on a process and returns the answer's status.
func (f *follower) connect(p *process.P) int {
	f.t.Helper()
	// A busy machine is slow, but a test that waits in vain must end.
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*time.Minute)
	f.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+"/v1/orders/"+f.order+"/events", http.NoBody)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+f.c.token(f.sub, auth.RoleBuyer))
	r.Header.Set("Accept", "text/event-stream")
	if f.last != "" {
		r.Header.Set("Last-Event-ID", f.last)
	}
	// No connection is kept, so that none belongs to a process that is gone.
	resp, err := (&http.Client{Transport: underContract(f.t, &http.Transport{DisableKeepAlives: true})}).Do(r) //nolint:bodyclose // the clean-up below closes it
	if err != nil {
		f.t.Fatalf("follow order: %v", err)
	}
	f.body, f.in = resp.Body, bufio.NewReader(resp.Body)
	f.t.Cleanup(func() { f.body.Close() })
	return resp.StatusCode
}

// event reads the next event, and returns its id and the order's state; both are empty at the
// end of the stream.
func (f *follower) event() (id, status string) {
	f.t.Helper()
	for {
		line, err := f.in.ReadString('\n')
		if err != nil {
			return "", "" // no matter how a killed process's connection ends
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			f.last, id = value, value
		case "data":
			var o struct{ ID, Status string }
			if err := json.Unmarshal([]byte(value), &o); err != nil || o.ID != f.order {
				f.t.Fatalf("event %q: %v", value, err)
			}
			status = o.Status
		case "":
			if id != "" {
				return id, status
			}
		}
	}
}

func (f *follower) want(id, status string) {
	f.t.Helper()
	if gotID, got := f.event(); gotID != id || got != status {
		f.t.Fatalf("event %q %q, want %q %q", gotID, got, id, status)
	}
}

// TestEvents_ReconnectLosesNoEvent follows orders at one process that another process changes,
// and reconnects to another process when the first is killed: no event is lost or sent twice.
func TestEvents_ReconnectLosesNoEvent(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	one, two := s.api(), s.api()
	c := dial(t, two)
	item := s.newHeldItem(c, 10, 3600)
	p := c.settle(item, c.buy(item, "alice", "k", "Prefer", "respond-async"))
	if p.Status != 202 {
		t.Fatalf("buy without a worker: %s", p.verdict())
	}
	f, other := c.follow(p.Order.ID, "alice"), c.follow(p.Order.ID, "alice")
	for _, on := range []struct {
		f *follower
		p *process.P
	}{{f, one}, {other, two}} {
		if status := on.f.connect(on.p); status != 200 {
			t.Fatalf("status %d", status)
		}
		on.f.want("1", "queued")
	}
	s.worker()
	f.want("2", "confirmed")
	other.want("2", "confirmed")
	one.Kill()
	if id, status := f.event(); id != "" {
		t.Fatalf("after the kill came %s %s", id, status)
	}
	if a := c.send(p.Order.ID, "payment", "psp", auth.RoleService, rightPayment); a.Status != 200 {
		t.Fatalf("pay: %s", a.verdict())
	}
	other.want("3", "paid")
	if id, status := other.event(); id != "" {
		t.Fatalf("after the final state came %s %s", id, status)
	}
	if status := f.connect(two); status != 200 {
		t.Fatalf("resume: status %d", status)
	}
	f.want("3", "paid")
	if id, status := f.event(); id != "" {
		t.Fatalf("after the final state came %s %s", id, status)
	}
	if status := f.connect(two); status != http.StatusNoContent {
		t.Errorf("once more: status %d, want 204", status)
	}
	if status := c.follow(p.Order.ID, "bob").connect(two); status != http.StatusNotFound {
		t.Errorf("a stranger: status %d, want 404", status)
	}
}

// A process that stops does not wait for clients of event streams, even if the drain timeout is
// very long.
func TestEvents_DrainDoesNotWaitForStreams(t *testing.T) {
	needProcesses(t)
	engines := map[string]func(s *shop) *process.P{
		"serve": func(s *shop) *process.P { return s.serve("--drain", "10m") },
		"api": func(s *shop) *process.P {
			s.worker()
			return s.api("--drain", "10m")
		},
	}
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			if name == "api" {
				s = newRedisShop(t)
			}
			api := start(s)
			c := dial(t, api)
			item := s.newHeldItem(c, 10, 3600)
			p := c.settle(item, c.buy(item, "alice", "k", untilCommitted...))
			if p.Status != 201 {
				t.Fatalf("buy: %s", p.verdict())
			}
			f := c.follow(p.Order.ID, "alice")
			if status := f.connect(api); status != 200 {
				t.Fatalf("status %d", status)
			}
			f.want("2", "confirmed")
			term(t, api)
			if _, err := io.ReadAll(f.in); err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("the stream was cut, and not ended: %v", err)
			}
			next := process.Start(t, api.Spec())
			if status := f.connect(next); status != 200 {
				t.Fatalf("resume: status %d", status)
			}
			if a := dial(t, next).send(p.Order.ID, "payment", "psp", auth.RoleService, rightPayment); a.Status != 200 {
				t.Fatalf("pay: %s", a.verdict())
			}
			f.want("3", "paid")
		})
	}
}

// A process opens up to --max-streams streams, refuses the next one with Retry-After and counts
// the refusal, and accepts another when one has ended.
func TestEvents_StreamsAboveTheBoundAreRefused(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve("--max-streams", "2")
	c := dial(t, p)
	item := s.newHeldItem(c, 10, 3600)
	bought := c.settle(item, c.buy(item, "alice", "k", untilCommitted...))
	if bought.Status != 201 {
		t.Fatalf("buy: %s", bought.verdict())
	}
	first := c.follow(bought.Order.ID, "alice")
	for _, f := range []*follower{first, c.follow(bought.Order.ID, "alice")} {
		if status := f.connect(p); status != 200 {
			t.Fatalf("status %d", status)
		}
		f.want("2", "confirmed")
	}
	path := "/v1/orders/" + bought.Order.ID + "/events"
	a := c.get(path, "alice")
	if a.Status != 503 || a.Problem.Code != "overloaded" || a.Problem.RetryAfter == 0 {
		t.Errorf("a stream too many: %s, retry after %d, want 503 overloaded", a.verdict(), a.Problem.RetryAfter)
	}
	for line, want := range map[string]float64{
		"flashsale_event_streams": 2, "flashsale_event_streams_limit": 2,
		`flashsale_event_streams_refused_total{reason="process_limit"}`: 1,
	} {
		// A stream is counted just after its first events have been sent.
		eventually(t, line, soon, func() (bool, any) {
			got := counted(t, p, line)
			return got == want, got
		})
	}
	first.body.Close()
	eventually(t, "a place for another stream", soon, func() (bool, any) {
		f := c.follow(bought.Order.ID, "alice")
		status := f.connect(p)
		return status == 200, status
	})
}

// Streams use at most half of the files that a process may open, so that connections for
// purchases remain.
func TestEvents_UseAtMostHalfOfTheFiles(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	spec := s.spec("serve", []string{"--demo=false"})
	spec.Files = 300
	p := process.Start(t, spec)
	if got := counted(t, p, "flashsale_event_streams_limit"); got != 150 {
		t.Errorf("%v streams, want 150", got)
	}
	if !strings.Contains(p.Log(), `"max_streams":150`) {
		t.Errorf("the log does not say so:\n%s", p.Log())
	}
}
