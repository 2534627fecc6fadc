package mockpayments

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"flashsale/webhook"
)

// deliver sends a webhook as the service does, and returns the status of the answer.
func (m *mock) deliver(secret, id, body string) int {
	m.t.Helper()
	c := webhook.NewClient(webhook.Config{Policy: webhook.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}})
	defer c.Close()
	r := c.Send(m.t.Context(), &webhook.Message{URL: m.srv.URL + "/webhooks", ID: id, Secrets: []string{secret}, Body: []byte(body)})
	if r.Err != nil {
		m.t.Fatal(r.Err)
	}
	return r.Status
}

// Verified webhooks are shown once, and others are counted.
func TestInbox_RecordsVerifiedWebhooksOnce(t *testing.T) {
	t.Parallel()
	m := newMock(t, "http://127.0.0.1:1")
	const paid = `{"type":"order.paid","timestamp":"2030-01-02T03:04:05.060Z","data":{"id":"o-1","item_id":"i-1","status":"paid"}}`
	for range 2 {
		if status := m.deliver(aSecret, "msg_1", paid); status != 204 {
			t.Errorf("answer %d", status)
		}
	}
	if status := m.deliver(aSecret, "msg_2", `{"type":"item.sold_out","timestamp":"2030-01-02T03:04:05Z","data":{"item_id":"<b>i-1</b>"}}`); status != 204 {
		t.Errorf("answer %d", status)
	}
	if status := m.deliver(aSecret, "msg_3", `{"type":"later.type","timestamp":"2030-01-02T03:04:05Z","data":[]}`); status != 204 {
		t.Errorf("answer %d to data of another form", status)
	}
	if status := m.deliver(webhook.NewSecret(), "msg_4", paid); status != 400 {
		t.Errorf("answer %d to another secret", status)
	}
	events, repeats, unsigned := m.inbox.latest()
	if len(events) != 3 || repeats != 1 || unsigned != 1 || events[0].ID != "msg_3" {
		t.Errorf("%d repeats, %d unsigned, events %+v", repeats, unsigned, events)
	}
	if e := events[2]; e.ID != "msg_1" || e.Type != "order.paid" || e.Subject != "o-1" || e.Status != "paid" || e.At.Year() != 2030 {
		t.Errorf("event %+v", e)
	}
	_, text := m.send("GET", "/", "")
	for _, want := range []string{"msg_1", "order.paid", "o-1", "&lt;b&gt;i-1", "ignored: 1", "or form: 1", "2030-01-02 03:04:05.060"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "style=") || strings.Contains(text, "<script") || strings.Contains(text, "<style") {
		t.Errorf("the page contradicts its policy:\n%s", text)
	}
	if status, css := m.send("GET", "/style.css", ""); status != 200 || !strings.Contains(css, ".refused") {
		t.Errorf("style: %d", status)
	}
}

// The latest webhooks are kept, and repeats of older ones are recognized for longer.
func TestInbox_IsBounded(t *testing.T) {
	t.Parallel()
	m := newMock(t, "http://127.0.0.1:1")
	const sent = maxEvents + 5
	for n := range sent {
		if status := m.deliver(aSecret, fmt.Sprintf("msg_%d", n), `{"type":"webhook.test","timestamp":"2030-01-02T03:04:05Z","data":{}}`); status != 204 {
			t.Fatalf("answer %d", status)
		}
	}
	m.deliver(aSecret, "msg_0", `{"type":"webhook.test","timestamp":"2030-01-02T03:04:05Z","data":{}}`)
	events, repeats, _ := m.inbox.latest()
	if len(events) != maxEvents || events[0].ID != fmt.Sprintf("msg_%d", sent-1) || repeats != 1 {
		t.Errorf("%d events, the newest is %+v, %d repeats", len(events), events[0], repeats)
	}
	if list := keep([]int{1, 2, 3}, 2); len(list) != 2 || list[0] != 2 {
		t.Errorf("keep returned %v", list)
	}
}

// Without a secret nothing can be verified, so webhooks must be sent again later.
func TestInbox_RefusesWithoutASecret(t *testing.T) {
	t.Parallel()
	m := newMock(t, "http://127.0.0.1:1")
	m.inbox.verifier = nil
	if status := m.deliver(aSecret, "msg_1", "{}"); status != 503 {
		t.Errorf("answer %d", status)
	}
	if _, text := m.send("GET", "/", ""); !strings.Contains(text, "could not be registered") {
		t.Errorf("the page does not say so:\n%s", text)
	}
}

func TestNew_ErrConfig(t *testing.T) {
	t.Parallel()
	token := newMock(t, "http://127.0.0.1:1").cfg.Token
	for _, c := range []Config{{}, {Addr: "127.0.0.1", Token: token}, {Addr: "127.0.0.1:1"}, {Addr: "127.0.0.1:1", Token: token, Secret: "x"}} {
		if _, err := New(c); err == nil {
			t.Errorf("accepted %+v", c)
		}
	}
}
