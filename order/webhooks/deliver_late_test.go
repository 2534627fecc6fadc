package webhooks

import (
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order/store"
)

// TestDeliverer_LateCommit: an event that is committed after one with a higher number is
// delivered, also if that one has been delivered and purged by then.
func TestDeliverer_LateCommit(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	if !p.store.Postgres() {
		t.Skip("SQLite commits one transaction after the other")
	}
	r := newReceiver(t, nil)
	e, _ := addHook(t, p.store, r.URL)
	other, err := store.Open(await.Context(t), p.store.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	late := other.Writer().WithContext(await.Context(t)).Begin()
	var seq int64
	err = late.Raw(`INSERT INTO webhook_events (id, type, body, at) VALUES ('msg_late', 'order.confirmed', '{}', ?) RETURNING seq`,
		p.store.Now().UnixMilli()).Scan(&seq).Error
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Exec(`INSERT INTO webhook_deliveries (endpoint_id, event_seq, next_at) VALUES (?, ?, 1)`, e.ID, seq).Error; err != nil {
		t.Fatal(err)
	}
	p.start()
	told := p.tell("n", 1)
	if told[0].Seq <= seq {
		t.Fatalf("event %d after %d", told[0].Seq, seq)
	}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	if err := purge(await.Context(t), p.store, p.store.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	p.awaitStates(e.ID, map[DeliveryState]int{})
	if err := late.Commit().Error; err != nil {
		t.Fatal(err)
	}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	if got := r.ids(); len(got) != 2 || got[told[0].ID] != 1 || got["msg_late"] != 1 {
		t.Errorf("received %v, want both events once", got)
	}
}
