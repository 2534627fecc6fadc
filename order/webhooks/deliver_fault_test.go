package webhooks

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
	"flashsale/webhook"
)

// blocking does not answer before it receives from next, and then answers 500.
func blocking(next <-chan struct{}) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) {
		<-next
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// TestDeliverer_OneIsDead: an endpoint that does not answer delays no others, although it
// has more pending deliveries, and older ones.
func TestDeliverer_OneIsDead(t *testing.T) {
	t.Parallel()
	events := longtest.Scale(16, 40) // twice the workers, or five times
	p := newPost(t, DelivererConfig{Workers: 8})
	over := make(chan struct{})
	release := sync.OnceFunc(func() { close(over) })
	var under, most atomic.Int64
	dead := newReceiver(t, func(http.ResponseWriter, *http.Request, int) {
		most.Store(max(most.Load(), under.Add(1)))
		<-over
		under.Add(-1)
	})
	t.Cleanup(release) // before the server waits for its handlers
	alive := newReceiver(t, nil)
	a, _ := addHook(t, p.store, dead.URL)
	p.tell("n", events)
	b, _ := addHook(t, p.store, alive.URL)
	p.tell("m", events)
	p.start()
	await.True(t, "the dead one to be tried", func() bool { return under.Load() == 2 })
	// The clocks of two processes differ: these deliveries were due before the running
	// ones.
	err := p.store.Writer().Exec("UPDATE webhook_deliveries SET next_at = 1 WHERE endpoint_id = ? AND event_seq > ?", a.ID, events).Error
	if err != nil {
		t.Fatal(err)
	}
	p.awaitStates(b.ID, map[DeliveryState]int{DeliveryDelivered: events})
	if n := p.states(a.ID)[DeliveryPending]; n != 2*events || len(alive.ids()) != events {
		t.Errorf("%d pending for the dead one, %d events for the other", n, len(alive.ids()))
	}
	if most.Load() > 2 {
		t.Errorf("%d concurrent deliveries to the dead one, want a quarter of the workers", most.Load())
	}
	release()
	p.awaitStates(a.ID, map[DeliveryState]int{DeliveryDelivered: 2 * events})
}

// TestDeliverer_ManyAreDead: if endpoints that do not answer occupy all workers, the first
// free worker serves an endpoint that has none.
func TestDeliverer_ManyAreDead(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Workers: 8, Retries: []time.Duration{time.Hour}})
	over := make(chan struct{})
	dead := newReceiver(t, blocking(over))
	t.Cleanup(func() { close(over) })
	for range 4 { // each has two workers
		addHook(t, p.store, dead.URL)
	}
	p.tell("n", 10)
	p.start()
	await.True(t, "all workers to be busy", func() bool { return len(dead.parcels()) == 8 })
	alive := newReceiver(t, nil)
	e, _ := addHook(t, p.store, alive.URL)
	p.tell("m", 10)
	over <- struct{}{}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 10})
	if n := len(dead.parcels()); n > 9 { // the last worker may have become free
		t.Errorf("%d requests to the dead ones", n)
	}
}

// TestDeliverer_Backlog: when endpoints take turns, one that fails repeatedly does not come
// first because its deliveries have been due for longer.
func TestDeliverer_Backlog(t *testing.T) {
	t.Parallel()
	const backlog = 200
	p := newPost(t, DelivererConfig{Workers: 1, Retries: []time.Duration{time.Hour}})
	failing, alive := newReceiver(t, answering(500)), newReceiver(t, nil)
	addHook(t, p.store, failing.URL)
	p.tell("n", backlog)
	e, _ := addHook(t, p.store, alive.URL)
	p.tell("m", 1)
	p.start()
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	if n := len(failing.parcels()); n >= backlog {
		t.Errorf("%d requests to the one that fails, before the first to the other was recorded", n)
	}
}

// TestDeliverer_NotRecorded: while the database does not record a result, its delivery is
// not sent again.
func TestDeliverer_NotRecorded(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	r := newReceiver(t, nil)
	e, _ := addHook(t, p.store, r.URL)
	allow := ordertest.Refuse(t, p.store, "UPDATE", "webhook_deliveries", "")
	p.tell("n", 1)
	p.start()
	await.True(t, "the result to be refused several times", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.heard) >= 3
	})
	allow()
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	if n := len(r.parcels()); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

// TestDeliverer_Two: two processes that deliver concurrently, as can happen briefly when
// the leader changes, record each delivery once.
func TestDeliverer_Two(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	r := newReceiver(t, nil)
	e, _ := addHook(t, p.store, r.URL)
	p.tell("n", 50)
	p.start()
	p.start()
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 50})
	for _, d := range p.list(e.ID) {
		if d.Attempts != 1 {
			t.Errorf("delivery %+v", d)
		}
	}
	if n := len(r.ids()); n != 50 {
		t.Errorf("%d events received", n)
	}
}

// TestStore_record_Late: a late result does not replace that of another deliverer's later
// attempt, unless the event was delivered.
func TestStore_record_Late(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	e, _ := addHook(t, p.store, "https://a.example")
	j, err := job(await.Context(t), p.store, deliveryKey{e.ID, p.tell("n", 1)[0].Seq})
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		result attempted
		want   DeliveryState
	}{
		{attempted{state: DeliveryPending, attempts: 1, next: time.Hour}, DeliveryPending},
		{attempted{state: DeliveryDead, attempts: 1}, DeliveryPending},
		{attempted{state: DeliveryDelivered, attempts: 1}, DeliveryDelivered},
	} {
		step.result.job = &j
		if err := record(await.Context(t), p.store, []attempted{step.result}); err != nil {
			t.Fatal(err)
		}
		if d := p.list(e.ID)[0]; d.State != step.want {
			t.Errorf("after result %d: %+v, want %s", i, d, step.want)
		}
	}
}

// TestStore_record_RedeliveredMeanwhile: a delivery that is requested again during its
// first attempt is due at once, whatever the result of that attempt.
func TestStore_record_RedeliveredMeanwhile(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	c := storetest.SetClock(p.store)
	e, _ := addHook(t, p.store, "https://a.example")
	event := p.tell("n", 1)[0]
	j, err := job(await.Context(t), p.store, deliveryKey{e.ID, event.Seq})
	if err != nil {
		t.Fatal(err)
	}
	c.Add(1000)
	if err := p.admin.Redeliver(await.Context(t), e.ID, p.list(e.ID)[0].EventID, order.By{}); err != nil {
		t.Fatal(err)
	}
	asked := p.list(e.ID)[0]
	for _, state := range []DeliveryState{DeliveryPending, DeliveryDead} {
		if err := record(await.Context(t), p.store, []attempted{{job: &j, state: state, attempts: 1, next: time.Hour}}); err != nil {
			t.Fatal(err)
		}
		if d := p.list(e.ID)[0]; d != asked {
			t.Errorf("after an attempt that ended %s: %+v, want %+v", state, d, asked)
		}
	}
}

// senderFunc implements Sender.
type senderFunc func(ctx context.Context, m *webhook.Message) webhook.Result

func (f senderFunc) Send(ctx context.Context, m *webhook.Message) webhook.Result { return f(ctx, m) }

// TestDeliverer_Panic: a delivery that makes its sender panic is a failed attempt.
func TestDeliverer_Panic(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Sender: senderFunc(func(context.Context, *webhook.Message) webhook.Result {
		panic("by the test")
	}), Retries: []time.Duration{}})
	e, _ := addHook(t, p.store, "https://a.example")
	p.start()
	p.tell("n", 1)
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDead: 1})
	if d := p.list(e.ID)[0]; d.LastError != errSendPanicked.Error() {
		t.Errorf("delivery %+v", d)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.heard) != 1 || !strings.Contains(p.heard[0].Error(), "by the test") {
		t.Errorf("reported %v, want the panic", p.heard)
	}
}

// TestStore_record_Gone: two answers of a server that is gone disable its endpoint once.
func TestStore_record_Gone(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	e, _ := addHook(t, p.store, "https://a.example")
	var tries []attempted
	for _, event := range p.tell("n", 2) {
		j, err := job(await.Context(t), p.store, deliveryKey{e.ID, event.Seq})
		if err != nil {
			t.Fatal(err)
		}
		tries = append(tries, attempted{job: &j, state: DeliveryDead, attempts: 1, gone: true})
	}
	if err := record(await.Context(t), p.store, tries); err != nil {
		t.Fatal(err)
	}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDead: 2})
	disabled := slices.DeleteFunc(auditOf(t, p.store), func(entry string) bool { return entry != "flashsale webhook.disable" })
	if len(disabled) != 1 {
		t.Errorf("disabled %d times, want once", len(disabled))
	}
}

// TestDeliverer_Oldest: of the due deliveries of an endpoint, the one that has been due longest is
// sent first.
func TestDeliverer_Oldest(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Workers: 1, PerEndpoint: 5})
	r := newReceiver(t, nil)
	e, _ := addHook(t, p.store, r.URL)
	events := p.tell("n", 4)
	if err := p.store.Writer().Exec("UPDATE webhook_deliveries SET next_at = 1000 - event_seq").Error; err != nil {
		t.Fatal(err)
	}
	p.start()
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 4})
	for i, sent := range r.parcels() {
		if want := events[len(events)-1-i].ID; sent.ID != want {
			t.Errorf("request %d is event %s, want %s", i, sent.ID, want)
		}
	}
}

// TestStore_redeliver: a delivery that is requested again is as one that was never attempted.
func TestStore_redeliver(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	e, _ := addHook(t, p.store, "https://a.example")
	event := p.tell("n", 1)[0]
	j, err := job(await.Context(t), p.store, deliveryKey{e.ID, event.Seq})
	if err != nil {
		t.Fatal(err)
	}
	if err := record(await.Context(t), p.store, []attempted{{job: &j, state: DeliveryDelivered, attempts: 3}}); err != nil {
		t.Fatal(err)
	}
	if d := p.list(e.ID)[0]; d.Attempts != 3 || d.DeliveredAt.IsZero() {
		t.Fatalf("delivered: %+v", d)
	}
	if err := p.admin.Redeliver(await.Context(t), e.ID, event.ID, order.By{}); err != nil {
		t.Fatal(err)
	}
	if d := p.list(e.ID)[0]; d.State != DeliveryPending || d.Attempts != 0 || !d.DeliveredAt.IsZero() {
		t.Errorf("requested again: %+v", d)
	}
}

// TestDeliverer_Stop: a process that no longer leads starts no delivery, and finishes those in
// progress.
func TestDeliverer_Stop(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Workers: 2, PerEndpoint: 2, Drain: ordertest.Limit})
	over := make(chan struct{})
	r := newReceiver(t, func(http.ResponseWriter, *http.Request, int) { <-over })
	e, _ := addHook(t, p.store, r.URL)
	p.tell("n", 4)
	ctx, cancel := context.WithCancel(await.Context(t))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.deliverer().Run(ctx)
	}()
	await.True(t, "the first tries", func() bool { return len(r.parcels()) == 2 })
	cancel()
	over <- struct{}{}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1, DeliveryPending: 3})
	close(over)
	select {
	case <-ended:
	case <-time.After(ordertest.Limit):
		t.Fatal("it did not stop")
	}
	if got := p.states(e.ID); got[DeliveryDelivered] != 2 || got[DeliveryPending] != 2 || len(r.parcels()) != 2 {
		t.Errorf("deliveries %v after %d requests", got, len(r.parcels()))
	}
}

// TestDeliverer_Interrupted: an attempt that is cancelled by a stop does not count, and
// another worker repeats it.
func TestDeliverer_Interrupted(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	r := newReceiver(t, func(_ http.ResponseWriter, q *http.Request, nth int) {
		if nth == 1 {
			<-q.Context().Done()
		}
	})
	e, _ := addHook(t, p.store, r.URL)
	stop := p.start()
	p.tell("n", 1)
	await.True(t, "the first try", func() bool { return len(r.parcels()) == 1 })
	stop()
	if d := p.list(e.ID)[0]; d.State != DeliveryPending || d.Attempts != 0 || d.LastError != "" {
		t.Errorf("interrupted %+v", d)
	}
	p.start()
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	if d := p.list(e.ID)[0]; d.Attempts != 1 {
		t.Errorf("delivered %+v", d)
	}
}
