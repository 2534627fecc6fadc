package webhooks

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/store/storetest"
)

// TestDeliverer_Gone: an endpoint that answers 410 gets no more events.
func TestDeliverer_Gone(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Workers: 1})
	r := newReceiver(t, answering(410))
	e, _ := addHook(t, p.store, r.URL)
	p.tell("n", 5)
	p.start()
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDead: 5})
	got, err := endpoint(await.Context(t), p.store, e.ID)
	if err != nil || got.Enabled || got.DisabledReason != "gone" {
		t.Errorf("endpoint %+v, %v", got, err)
	}
	if n := len(r.parcels()); n != 1 {
		t.Errorf("%d requests to an endpoint that is gone", n)
	}
	if events := p.tell("m", 2); len(events) != 0 {
		t.Errorf("events for an endpoint that is gone: %+v", events)
	}
	dead := p.list(e.ID)[0]
	if err := p.admin.Redeliver(await.Context(t), e.ID, dead.EventID, order.By{}); err == nil || !strings.Contains(err.Error(), ErrEndpointDisabled.Error()) {
		t.Errorf("redelivery to an endpoint that is gone: %v", err)
	}
	on := true
	r.answer = nil
	back, err := p.admin.ChangeEndpoint(await.Context(t), e.ID, EndpointChange{Enabled: &on}, order.By{Actor: "root", RequestID: "r9"})
	if err != nil || !back.Enabled || back.DisabledReason != "" {
		t.Fatalf("enabled again: %+v, %v", back, err)
	}
	if err := p.admin.Redeliver(await.Context(t), e.ID, dead.EventID, order.By{}); err != nil {
		t.Fatal(err)
	}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDead: 4, DeliveryDelivered: 1})
	if a := auditOf(t, p.store); !slices.Contains(a, "flashsale webhook.disable") || !slices.Contains(a, "root webhook.change") {
		t.Errorf("audit %v", a)
	}
}

// TestDeliverer_Gone_Moved: a 410 of the old server does not disable an endpoint whose URL
// changed during the attempt.
func TestDeliverer_Gone_Moved(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	moved := make(chan struct{})
	before := newReceiver(t, func(w http.ResponseWriter, q *http.Request, _ int) {
		select {
		case <-moved:
		case <-q.Context().Done():
		}
		w.WriteHeader(http.StatusGone)
	})
	after := newReceiver(t, nil)
	e, _ := addHook(t, p.store, before.URL)
	p.start()
	event := p.tell("n", 1)[0]
	await.True(t, "a try at the old server", func() bool { return len(before.parcels()) == 1 })
	if _, err := p.admin.ChangeEndpoint(await.Context(t), e.ID, EndpointChange{URL: &after.URL}, order.By{}); err != nil {
		t.Fatal(err)
	}
	close(moved)
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	if got := after.ids(); got[event.ID] != 1 {
		t.Errorf("the new server got %v", got)
	}
	if got, err := endpoint(await.Context(t), p.store, e.ID); err != nil || !got.Enabled {
		t.Errorf("endpoint %+v, %v", got, err)
	}
}

// TestDeliverer_Disabled: what an endpoint is still owed when it is disabled ends at once, and not with
// its next attempt, which may be due a day later. The age of the oldest pending event, and its alert,
// end as well.
func TestDeliverer_Disabled(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Retries: []time.Duration{24 * time.Hour}})
	e, _ := addHook(t, p.store, newReceiver(t, answering(500)).URL)
	p.start()
	p.tell("n", 3)
	await.True(t, "the first attempts to fail", func() bool { return p.counted("failed") == 3 })
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryPending: 3})
	off := false
	if _, err := p.admin.ChangeEndpoint(await.Context(t), e.ID, EndpointChange{Enabled: &off}, order.By{}); err != nil {
		t.Fatal(err)
	}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDead: 3})
	if state, err := outboxState(await.Context(t), p.store); err != nil || state.OldestPending != 0 {
		t.Errorf("outbox %+v, %v, want no pending event", state, err)
	}
}

// TestDeliverer_Delete: a deleted endpoint gets no more events, and all its rows are
// deleted.
func TestDeliverer_Delete(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	r, kept := newReceiver(t, nil), newReceiver(t, nil)
	e, _ := addHook(t, p.store, r.URL)
	other, _ := addHook(t, p.store, kept.URL)
	p.tell("n", 20)
	if err := p.admin.DeleteEndpoint(await.Context(t), e.ID, order.By{Actor: "root", RequestID: "r"}); err != nil {
		t.Fatal(err)
	}
	p.start()
	p.awaitStates(other.ID, map[DeliveryState]int{DeliveryDelivered: 20})
	if err := tidy(await.Context(t), p.store); err != nil {
		t.Fatal(err)
	}
	var left int64
	err := p.store.Reader().Raw(`SELECT (SELECT COUNT(*) FROM webhook_endpoints) + (SELECT COUNT(*) FROM webhook_deliveries)`).Scan(&left).Error
	if err != nil || left != 21 || len(r.parcels()) != 0 {
		t.Errorf("%d rows left, want one endpoint and its 20 deliveries; %d sent to the deleted one; %v", left, len(r.parcels()), err)
	}
}

// TestDeliverer_Rotate: for a day after a rotation both secrets are valid.
func TestDeliverer_Rotate(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	c := storetest.SetClock(p.store)
	r := newReceiver(t, nil)
	e, old := addHook(t, p.store, r.URL)
	p.start()
	good := func(secrets ...string) (out []bool) {
		t.Helper()
		n := len(r.parcels())
		if _, err := p.admin.TestEndpoint(await.Context(t), e.ID, order.By{}); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the test event", func() bool { return len(r.parcels()) > n })
		for _, s := range secrets {
			out = append(out, verify(t, s, r.parcels()[n]) == nil)
		}
		return out
	}
	rotated, next, err := p.admin.RotateSecret(await.Context(t), e.ID, order.By{Actor: "root", RequestID: "r"})
	if err != nil || next == old || !rotated.OldSecretUntil.Equal(time.UnixMilli(c.Load()).UTC().Add(24*time.Hour)) {
		t.Fatalf("rotated %+v: %v", rotated, err)
	}
	if got := good(old, next); !slices.Equal(got, []bool{true, true}) {
		t.Errorf("after the rotation: %v", got)
	}
	_, last, err := p.admin.RotateSecret(await.Context(t), e.ID, order.By{Actor: "root", RequestID: "r"})
	if err != nil {
		t.Fatal(err)
	}
	if got := good(old, next, last); !slices.Equal(got, []bool{false, true, true}) {
		t.Errorf("after the second: %v", got)
	}
	c.Add(secretOverlap.Milliseconds())
	if got := good(old, next, last); !slices.Equal(got, []bool{false, false, true}) {
		t.Errorf("a day later: %v", got)
	}
	if err := tidy(await.Context(t), p.store); err != nil {
		t.Fatal(err)
	}
	var kept string
	if err := p.store.Reader().Raw("SELECT secret || ' ' || old_secret FROM webhook_endpoints").Scan(&kept).Error; err != nil || kept != last+" " {
		t.Errorf("a day later the secrets %q are kept, want only %q; %v", kept, last, err)
	}
	var texts []string
	if err := p.store.Reader().Raw("SELECT before || after || actor || request_id FROM audit").Scan(&texts).Error; err != nil || len(texts) < 6 {
		t.Fatalf("audit %q, %v", texts, err)
	}
	listed, err := json.Marshal(rotated)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(texts, string(listed)) {
		for _, secret := range []string{old, next, last, "whsec_"} {
			if strings.Contains(text, secret) {
				t.Errorf("a secret in %s", text)
			}
		}
	}
}
