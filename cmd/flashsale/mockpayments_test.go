//go:build unix

package main_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flashsale/internal/testing/process"
)

// develop starts serve in development mode, with the key of the tests.
func (s *shop) develop(args ...string) *process.P {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "jwt.key"), []byte(secret), 0o600); err != nil {
		s.t.Fatal(err)
	}
	spec := s.spec("serve", append([]string{"--demo=false"}, args...))
	spec.Env = nil
	return process.Start(s.t, spec)
}

// printed returns a line of the banner without its name; empty if there is none.
func printed(p *process.P, name string) string {
	for line := range strings.Lines(p.Log()) {
		if f := strings.Fields(line); !isLog(line) && len(f) == 2 && f[0] == name {
			return f[1]
		}
	}
	return ""
}

// provider is the mock payment service of a process.
type provider struct {
	t   *testing.T
	url string
	c   *client
}

func mockOf(t *testing.T, p *process.P) *provider {
	t.Helper()
	url := printed(p, "payments")
	if url == "" {
		t.Fatalf("no address of the mock payment service:\n%s", p.Log())
	}
	return &provider{t, url, dialAddr(t, url)}
}

// charge asks for the payment of an order, and returns the charge's id.
func (m *provider) charge(order string, amount int) string {
	m.t.Helper()
	a, err := m.c.do("POST", "/charges", "", fmt.Sprintf(`{"order_id":%q,"amount_minor":%d,"currency":"EUR"}`, order, amount),
		"Content-Type", "application/json")
	var answer struct{ Charge string }
	if err != nil || a.Status != 202 {
		m.t.Fatalf("charge: %d %s, error %v", a.Status, a.Body, err)
	}
	a.decode(m.t, &answer)
	return answer.Charge
}

// rows returns the rows of the page's tables that contain all words.
func (m *provider) rows(words ...string) (found []string) {
	m.t.Helper()
	a, err := m.c.do("GET", "/", "", "")
	if err != nil || a.Status != 200 {
		m.t.Fatalf("page: %d %s, error %v", a.Status, a.Body, err)
	}
rows:
	for _, row := range strings.Split(a.Body, "<tr>")[1:] {
		for _, word := range words {
			if !strings.Contains(row, word) {
				continue rows
			}
		}
		found = append(found, row)
	}
	return found
}

// shows waits until one row of the page contains all words.
func (m *provider) shows(words ...string) {
	m.t.Helper()
	eventually(m.t, "the page shows "+strings.Join(words, " "), soon, func() (bool, any) {
		return len(m.rows(words...)) == 1, m.rows()
	})
}

// order buys the item and returns the order's id.
func (c *client) order(item, user string) string {
	c.t.Helper()
	b := c.settle(item, c.buy(item, user, "key-of-"+user, untilCommitted...))
	if b.Status != 201 {
		c.t.Fatalf("buy: %s", b.verdict())
	}
	return b.Order.ID
}

// hooks returns the URLs of all webhook endpoints.
func (c *client) hooks() (urls []string) {
	c.t.Helper()
	a := c.admin("GET", "/v1/admin/webhooks", nil)
	var list struct{ Webhooks []hook }
	a.decode(c.t, &list)
	for _, h := range list.Webhooks {
		urls = append(urls, h.URL)
	}
	return urls
}

// In development mode, the mock payment service pays orders through the API and receives the
// webhooks, and shows refused payments.
func TestMockPayments_PayOrders(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.develop()
	c, m := dial(t, p), mockOf(t, p)
	item := s.newHeldItem(c, 10, 3600)
	paid, short := c.order(item, "alice"), c.order(item, "bob")
	id := m.charge(paid, 990)
	m.shows(id, paid, "990 EUR", ">paid<")
	if again := m.charge(paid, 990); again != id {
		t.Errorf("the second charge is %s, the first %s", again, id)
	}
	m.shows("order.confirmed", paid, "msg_")
	m.shows("order.paid", paid, "msg_")
	if a := c.get("/v1/orders/"+paid, "alice"); !strings.Contains(a.Body, `"status":"paid"`) || !strings.Contains(a.Body, `"payment_reference":"`+id+`"`) {
		t.Errorf("the order is %s", a.Body)
	}
	m.shows(m.charge(short, 1), ">refused<", "amount_mismatch")
	m.shows("payment.late")
	m.shows(m.charge(short, 990), ">paid<")

	brief := s.newHeldItem(c, 1, 1)
	late := c.order(brief, "carol")
	m.shows("order.expired", late)
	m.shows(m.charge(late, 990), ">refused<", "order_expired")
	m.shows(m.charge("0197a0f2-3c4d-7abc-8def-000000000000", 990), ">refused<", "order_not_found")
	if a := c.admin("GET", "/v1/admin/payments?outcome=accepted", nil); strings.Count(a.Body, `"outcome":"accepted"`) != 2 {
		t.Errorf("accepted payments: %s", a.Body)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if log := p.Log(); strings.Contains(log, "mock payment") || strings.Contains(log, secret) || strings.Contains(log, "whsec_") {
		t.Errorf("the log has warnings of the mock, or secrets:\n%s", log)
	}
}

// A restart changes the mock's webhook endpoint to the new address, and a start without the mock
// deletes it. Other endpoints are left alone, and no other address of this machine is allowed.
func TestMockPayments_KeepOneEndpoint(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.develop()
	c, m := dial(t, p), mockOf(t, p)
	const other = "https://shop.example/hooks"
	if a := c.admin("POST", "/v1/admin/webhooks", map[string]any{"url": other, "events": []string{"order.refunded"}}); a.Status != 201 {
		t.Fatalf("create webhook: %d %s", a.Status, a.Body)
	}
	for _, url := range []string{newInbox(t, 200).url, m.url + "/other", strings.Replace(m.url, "127.0.0.1", "localhost", 1) + "/webhooks"} {
		if a := c.admin("POST", "/v1/admin/webhooks", map[string]any{"url": url}); a.Status != 422 || a.Problem.Code != "field_range" {
			t.Errorf("a webhook to %s: %d %s", url, a.Status, a.Body)
		}
	}
	item := s.newHeldItem(c, 10, 3600)
	wantHooks := func(want ...string) {
		t.Helper()
		if urls := c.hooks(); strings.Join(urls, " ") != strings.Join(want, " ") {
			t.Errorf("endpoints %q, want %q", urls, want)
		}
	}
	wantHooks(m.url+"/webhooks", other)
	unpaid := c.order(item, "alice")
	m.shows("order.confirmed", unpaid)
	p.Kill()
	for _, user := range []string{"bob", "carol"} {
		p = s.develop()
		c, m = dial(t, p), mockOf(t, p)
		wantHooks(m.url+"/webhooks", other)
		m.shows("order.confirmed", c.order(item, user))
		if code := p.Stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	p = s.develop("--mock-payments-addr=off")
	c = dial(t, p)
	wantHooks(other)
	if url := printed(p, "payments"); url != "" {
		t.Errorf("the banner has %s", url)
	}
}

// Outside development mode there is no mock, and an address for it is refused.
func TestMockPayments_ExistOnlyInDevelopment(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	for _, command := range []string{"serve", "api", "worker"} {
		r := s.run(command, "--mock-payments-addr=127.0.0.1:0", "--addr=127.0.0.1:0", "--ops-addr=")
		wantCode(t, 2, r, "mock-payments-addr", "development mode")
	}
	p := s.serve("--mock-payments-addr=off")
	if url := printed(p, "payments"); url != "" {
		t.Errorf("the banner has %s", url)
	}
	if urls := dial(t, p).hooks(); len(urls) != 0 {
		t.Errorf("endpoints %q", urls)
	}
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	})
	addr := taken.Addr().String()
	r := process.Run(t, process.Spec{Args: []string{"serve", "--mock-payments-addr", addr, "--addr=127.0.0.1:0", "--ops-addr="}})
	wantCode(t, 1, r, "mock-payments-addr", addr, "off")
}
