//go:build unix

package main_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// allowLocal allows webhooks to this machine, which are refused by default.
var allowLocal = []string{"--webhook-allow", "127.0.0.1"}

// inbox is a server of the shop that receives webhooks.
type inbox struct {
	url    string
	status int

	mu  sync.Mutex
	got []letter
}

// letter is one request to the inbox.
type letter struct {
	id, body string
	header   http.Header
}

func newInbox(t *testing.T, status int) *inbox {
	t.Helper()
	in := &inbox{status: status}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if err := apiContract(t).CheckWebhook("event", r.Header, body); err != nil {
			differs(t, err)
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		in.got = append(in.got, letter{r.Header.Get("webhook-id"), string(body), r.Header})
		w.WriteHeader(in.status)
	}))
	t.Cleanup(s.Close)
	in.url = s.URL + "/hooks"
	return in
}

// ids are the letters' ids in the order of their arrival.
func (in *inbox) ids() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	out := make([]string, len(in.got))
	for i := range in.got {
		out[i] = in.got[i].id
	}
	return out
}

// byType groups the letters by the type of their event.
func (in *inbox) byType(t *testing.T) map[string][]letter {
	t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	out := make(map[string][]letter)
	for _, l := range in.got {
		var event struct{ Type string }
		if err := json.Unmarshal([]byte(l.body), &event); err != nil {
			t.Fatalf("%s: %v", l.body, err)
		}
		out[event.Type] = append(out[event.Type], l)
	}
	return out
}

// hook is a webhook in the API.
type hook struct{ ID, URL, Secret string }

func (c *client) newHook(in *inbox, events ...string) hook {
	c.t.Helper()
	body := map[string]any{"url": in.url}
	if events != nil {
		body["events"] = events
	}
	a := c.admin("POST", "/v1/admin/webhooks", body)
	if a.Status != 201 {
		c.t.Fatalf("create webhook: %d %s", a.Status, a.Body)
	}
	var h hook
	a.decode(c.t, &h)
	return h
}

// The shop receives an order's events with the field names of the API, and can verify their
// signatures.
func TestWebhooks_SendTheEventsOfAnOrder(t *testing.T) {
	needProcesses(t)
	life := func(t *testing.T, s *shop, c *client) {
		in := newInbox(t, 204)
		h := c.newHook(in)
		item := s.newHeldItem(c, 2, 3600)
		paid := c.settle(item, c.buy(item, "alice", "key-of-alice", untilCommitted...))
		gone := c.settle(item, c.buy(item, "bob", "key-of-bob", untilCommitted...))
		if a := c.send(paid.Order.ID, "payment", "psp", auth.RoleService, rightPayment); a.Status != 200 {
			t.Fatalf("pay: %d %s", a.Status, a.Body)
		}
		if a := c.send(gone.Order.ID, "cancel", "bob", auth.RoleBuyer, "{}"); a.Status != 200 {
			t.Fatalf("cancel: %d %s", a.Status, a.Body)
		}
		if a := c.admin("POST", "/v1/admin/webhooks/"+h.ID+"/test", nil); a.Status != 202 {
			t.Fatalf("test: %d %s", a.Status, a.Body)
		}
		want := map[string]int{"order.confirmed": 2, "item.sold_out": 1, "order.paid": 1, "order.cancelled": 1, "webhook.test": 1}
		var got map[string][]letter
		eventually(t, "the shop gets all events", soon, func() (bool, any) {
			got = in.byType(t)
			counts := make(map[string]int)
			for kind := range got {
				counts[kind] = len(got[kind])
			}
			return reflect.DeepEqual(counts, want), counts
		})
		wh, err := standardwebhooks.NewWebhook(h.Secret)
		if err != nil {
			t.Fatal(err)
		}
		for kind, letters := range got {
			for _, l := range letters {
				if err := wh.Verify([]byte(l.body), l.header); err != nil || strings.Contains(l.body, "key-of") {
					t.Errorf("%s: %s: %v", kind, l.body, err)
				}
			}
		}
		for kind, o := range map[string]purchase{"order.paid": paid, "order.cancelled": gone} {
			var told struct{ Data map[string]any }
			if err := json.Unmarshal([]byte(got[kind][0].body), &told); err != nil {
				t.Fatal(err)
			}
			var shown map[string]any
			a := c.get("/v1/orders/"+o.Order.ID, o.user)
			a.decode(t, &shown)
			if !reflect.DeepEqual(told.Data, shown) {
				t.Errorf("event %s has %v, but the API returns %v", kind, told.Data, shown)
			}
		}
		// An arrival is recorded a moment later.
		eventually(t, "all to be noted as delivered", soon, func() (bool, any) {
			list := c.admin("GET", "/v1/admin/webhooks/"+h.ID+"/deliveries?status=delivered&limit=100", nil)
			return strings.Count(list.Body, `"status":"delivered"`) == 6, list.Body
		})
		for _, path := range []string{"/v1/admin/webhooks", "/v1/admin/webhooks/" + h.ID} {
			if a := c.admin("GET", path, nil); a.Status != 200 || strings.Contains(a.Body, "whsec_") || !strings.Contains(a.Body, h.ID) {
				t.Errorf("%s: %d %s", path, a.Status, a.Body)
			}
		}
	}
	// Not through engines: the worker needs --webhook-allow too.
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		life(t, s, dial(t, s.serve(allowLocal...)))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := newRedisShop(t)
		s.worker(allowLocal...)
		life(t, s, dial(t, s.api(allowLocal...)))
	})
}

// TestWebhooks_KilledWorkersEventIsSentAgain kills a worker after an event was sent but before
// that is in the database. Another worker sends it again with the same id.
func TestWebhooks_KilledWorkersEventIsSentAgain(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	c := dial(t, s.api(allowLocal...))
	in := newInbox(t, 204)
	h := c.newHook(in, "order.confirmed")
	item := s.newItem(c, 10, 1)
	doomed := s.faulty("webhook.sent", "worker", append(lease(shortLease), allowLocal...)...)
	// 202 if the worker dies after its commit and before it has notified the API.
	if p := c.settle(item, c.buy(item, "alice", "k", untilCommitted...)); p.Status != 201 && p.Status != 202 {
		t.Fatalf("buy: %s", p.verdict())
	}
	struck(t, doomed)
	if ids := in.ids(); len(ids) != 1 || s.pendingHooks() != 1 {
		t.Fatalf("the worker died elsewhere: %d sent, %d pending", len(ids), s.pendingHooks())
	}
	s.worker(append(lease(shortLease), allowLocal...)...)
	// The lock of the delivering worker must expire first.
	eventually(t, "another worker delivers", 2*soon, func() (bool, any) { return s.pendingHooks() == 0, in.ids() })
	if ids := in.ids(); len(ids) != 2 || ids[0] != ids[1] || !strings.HasPrefix(ids[0], "msg_") {
		t.Errorf("sent %q to %s", ids, h.ID)
	}
}

// pendingHooks is the number of deliveries not yet sent.
func (s *shop) pendingHooks() int {
	s.t.Helper()
	var n int
	if err := s.db.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM webhook_deliveries WHERE state = 'pending'").Scan(&n); err != nil {
		s.t.Fatalf("read deliveries: %v", err)
	}
	return n
}

// failedHooks is the number of deliveries that wait for a retry.
func (s *shop) failedHooks() int {
	s.t.Helper()
	var n int
	if err := s.db.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM webhook_deliveries WHERE state = 'pending' AND attempts = 1").Scan(&n); err != nil {
		s.t.Fatalf("read deliveries: %v", err)
	}
	return n
}

// Pending deliveries are in the database, and are sent although Redis has lost all its data.
func TestWebhooks_SurviveTheLossOfRedis(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	c := dial(t, s.api(allowLocal...))
	w := s.worker(allowLocal...)
	in := newInbox(t, 500)
	c.newHook(in, "order.confirmed")
	item := s.newItem(c, 10, 1)
	if p := c.settle(item, c.buy(item, "alice", "k", untilCommitted...)); p.Status != 201 {
		t.Fatalf("buy: %s", p.verdict())
	}
	eventually(t, "the first try", soon, func() (bool, any) { return s.failedHooks() == 1, w.Log() })
	w.Kill()
	if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	// Earlier versions kept deliveries in a task queue. No process reads it now.
	const old = "fs:{p0}:q:webhooks:"
	if err := s.rdb.MSet(t.Context(), old+"ready", 1, old+"body", 1).Err(); err != nil {
		t.Fatal(err)
	}
	in.mu.Lock()
	in.status = 200
	in.mu.Unlock()
	w = s.worker(allowLocal...)
	eventually(t, "the event to be sent again", 2*soon, func() (bool, any) { return s.pendingHooks() == 0, w.Log() })
	if ids := in.ids(); ids[0] != ids[len(ids)-1] {
		t.Errorf("ids %q", ids)
	}
	if left, err := s.rdb.Keys(t.Context(), old+"*").Result(); err != nil || len(left) != 0 {
		t.Errorf("keys of an earlier version: %q, %v", left, err)
	}
}

// Nothing is sent to this machine or its private networks unless the operator allows it, and
// the log contains nothing about a webhook.
func TestWebhooks_PrivateNetworksAreRefused(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	var logs []*process.P
	p := s.serve("--log-level", "trace", "--webhook-allow", "127.0.0.1")
	logs = append(logs, p)
	c := dial(t, p)
	in := newInbox(t, 200)
	h := c.newHook(in)
	p.Kill()
	p = s.serve("--log-level", "trace")
	logs = append(logs, p)
	c = dial(t, p)
	if a := c.admin("POST", "/v1/admin/webhooks", map[string]any{"url": in.url}); a.Status != 422 || a.Problem.Code != "field_range" {
		t.Errorf("a webhook to this machine: %d %s", a.Status, a.Body)
	}
	if a := c.admin("POST", "/v1/admin/webhooks/"+h.ID+"/rotate", nil); a.Status != 200 {
		t.Fatalf("rotate: %d %s", a.Status, a.Body)
	}
	if a := c.admin("POST", "/v1/admin/webhooks/"+h.ID+"/test", nil); a.Status != 202 {
		t.Fatalf("test: %d %s", a.Status, a.Body)
	}
	var seen string
	eventually(t, "the attempt is refused", soon, func() (bool, any) {
		seen = c.admin("GET", "/v1/admin/webhooks/"+h.ID+"/deliveries", nil).Body
		return strings.Contains(seen, "address not allowed"), seen
	})
	if strings.Contains(seen, "127.0.0.1") {
		t.Errorf("the delivery names an address: %s", seen)
	}
	if ids := in.ids(); len(ids) != 0 {
		t.Errorf("sent %q", ids)
	}
	for _, p := range logs {
		if text := p.Log(); strings.Contains(text, "whsec_") || strings.Contains(text, strings.TrimPrefix(h.Secret, "whsec_")) || strings.Contains(text, in.url) {
			t.Errorf("the log contains webhook data:\n%s", text)
		}
	}
}

// TestWebhooks_UnrequestedAnswer: what a receiver sends after its answer is a structured line of the log
// at debug level, and does not go to standard error in another format.
func TestWebhooks_UnrequestedAnswer(t *testing.T) {
	needProcesses(t)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		const answer = "HTTP/1.1 204 No Content\r\n\r\n"
		if _, err := io.WriteString(conn, answer+answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(receiver.Close)
	p := newShop(t).serve("--log-level", "debug", "--webhook-allow", "127.0.0.1", "--mock-payments-addr", "off")
	c := dial(t, p)
	h := c.newHook(&inbox{url: receiver.URL})
	if a := c.admin("POST", "/v1/admin/webhooks/"+h.ID+"/test", nil); a.Status != 202 {
		t.Fatalf("test: %d %s", a.Status, a.Body)
	}
	const unrequested = "Unsolicited response"
	eventually(t, "a line of the log", soon, func() (bool, any) { return strings.Contains(p.Log(), unrequested), p.Log() })
	for line := range strings.Lines(p.Log()) {
		if strings.Contains(line, unrequested) && !strings.HasPrefix(line, `{"level":"debug"`) {
			t.Errorf("the log has the line %q", line)
		}
	}
}
