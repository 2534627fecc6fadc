package webhooks

import (
	"errors"
	"slices"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/store/storetest"
)

// TestStore_purge: an event is kept for a week, and while it has a pending delivery.
func TestStore_purge(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	c := storetest.SetClock(p.store)
	a, _ := addHook(t, p.store, "https://a.example")
	b, _ := addHook(t, p.store, "https://b.example")
	old := p.tell("n", purgePage+5)
	c.Add((24 * time.Hour).Milliseconds())
	fresh := p.tell("m", 3)
	ended := "UPDATE webhook_deliveries SET state = ? WHERE endpoint_id = ?"
	if err := errors.Join(p.store.Writer().Exec(ended, "delivered", a.ID).Error, p.store.Writer().Exec(ended, "dead", b.ID).Error); err != nil {
		t.Fatal(err)
	}
	if err := p.store.Writer().Exec("UPDATE webhook_deliveries SET state = 'pending' WHERE endpoint_id = ? AND event_seq = ?", b.ID, old[2].Seq).Error; err != nil {
		t.Fatal(err)
	}
	kept := func() (seqs []int64) {
		t.Helper()
		for _, e := range allTold(t, p.store) {
			seqs = append(seqs, e.Seq)
			if e.Owed != 2 {
				t.Errorf("event %d has %d deliveries", e.Seq, e.Owed)
			}
		}
		return seqs
	}
	c.Add((eventRetention - 24*time.Hour).Milliseconds())
	if err := tidy(await.Context(t), p.store); err != nil {
		t.Fatal(err)
	}
	if got := kept(); len(got) != purgePage+8 {
		t.Errorf("%d events after exactly a week", len(got))
	}
	c.Add(1)
	if err := tidy(await.Context(t), p.store); err != nil {
		t.Fatal(err)
	}
	if got := kept(); !slices.Equal(got, []int64{old[2].Seq, fresh[0].Seq, fresh[1].Seq, fresh[2].Seq}) {
		t.Errorf("kept %v", got)
	}
	var deliveries int64
	if err := p.store.Reader().Raw("SELECT COUNT(*) FROM webhook_deliveries").Scan(&deliveries).Error; err != nil || deliveries != 8 {
		t.Errorf("%d deliveries are left, %v", deliveries, err)
	}
	state, err := outboxState(await.Context(t), p.store)
	if err != nil || state.Events != fresh[2].Seq-old[2].Seq+1 || state.OldestPending != eventRetention+time.Millisecond {
		t.Errorf("outbox %+v, %v", state, err)
	}
	c.Add(-2 * eventRetention.Milliseconds()) // a clock before the event
	if state, err := outboxState(await.Context(t), p.store); err != nil || state.OldestPending != 0 {
		t.Errorf("by an earlier clock: %+v, %v", state, err)
	}
	c.Add(2 * eventRetention.Milliseconds())
	// Numbers are not reused, or a later event could be mistaken for an earlier one.
	if err := p.store.Writer().Exec("DELETE FROM webhook_deliveries").Error; err != nil {
		t.Fatal(err)
	}
	c.Add(eventRetention.Milliseconds())
	if err := tidy(await.Context(t), p.store); err != nil {
		t.Fatal(err)
	}
	if got := kept(); len(got) != 0 {
		t.Errorf("kept %v", got)
	}
	if next := p.tell("o", 1)[0]; next.Seq <= fresh[2].Seq {
		t.Errorf("number %d after %d", next.Seq, fresh[2].Seq)
	}
	if empty, err := outboxState(await.Context(t), storetest.New(t)); err != nil || empty != (OutboxState{}) {
		t.Errorf("an empty outbox: %+v, %v", empty, err)
	}
}

// TestStore_purge_Dead: a dead letter whose last attempt was a week or more after its event
// is kept for another week, because it could not be redelivered before.
func TestStore_purge_Dead(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	c := storetest.SetClock(p.store)
	e, _ := addHook(t, p.store, "https://a.example")
	events := p.tell("n", 2)
	c.Add((eventRetention + time.Hour).Milliseconds())
	for i, state := range []DeliveryState{DeliveryDead, DeliveryDelivered} {
		j, err := job(await.Context(t), p.store, deliveryKey{e.ID, events[i].Seq})
		if err != nil {
			t.Fatal(err)
		}
		if err := record(await.Context(t), p.store, []attempted{{job: &j, state: state, attempts: 10}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, kept := range [][]DeliveryState{{DeliveryDead}, nil} {
		if err := tidy(await.Context(t), p.store); err != nil {
			t.Fatal(err)
		}
		var got []DeliveryState
		for _, d := range p.list(e.ID) {
			got = append(got, d.State)
		}
		if !slices.Equal(got, kept) {
			t.Errorf("kept %v, want %v", got, kept)
		}
		c.Add(eventRetention.Milliseconds() + 1)
	}
}

// TestStore_purge_Readers: the query for old events delays no order, and an event that was
// requested again meanwhile is kept.
func TestStore_purge_Readers(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	c := storetest.SetClock(p.store)
	e, _ := addHook(t, p.store, "https://a.example")
	events := p.tell("n", 2)
	c.Add((eventRetention + time.Minute).Milliseconds())
	before := p.store.Now().Add(-eventRetention)
	writing := p.store.Writer().Begin() // one that is being written
	err := purge(await.Context(t), p.store, before)
	if err := errors.Join(writing.Error, writing.Rollback().Error); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Errorf("with nothing to delete: %v", err)
	}
	if err := p.store.Writer().Exec("UPDATE webhook_deliveries SET state = 'dead'").Error; err != nil {
		t.Fatal(err)
	}
	seqs, err := outdated(await.Context(t), p.store, before)
	if err != nil || len(seqs) != 2 {
		t.Fatalf("to delete: %v, %v", seqs, err)
	}
	if err := p.admin.Redeliver(await.Context(t), e.ID, events[1].ID, order.By{}); err != nil {
		t.Fatal(err)
	}
	if err := forget(await.Context(t), p.store, seqs, before); err != nil {
		t.Fatal(err)
	}
	if left := allTold(t, p.store); len(left) != 1 || left[0].ID != events[1].ID || left[0].Owed != 1 {
		t.Errorf("left: %+v", left)
	}
}
