package webhooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/webhook"
)

// receiver is a server of the shop's, which records the requests.
type receiver struct {
	*httptest.Server
	answer func(w http.ResponseWriter, r *http.Request, nth int)

	mu  sync.Mutex
	got []parcel
}

// parcel is one request to a receiver.
type parcel struct {
	ID, Body string
	Header   http.Header
	At       time.Time
}

// newReceiver starts a receiver that answers 204, or with answer if it is not nil.
func newReceiver(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, nth int)) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return // the sender has given up
		}
		r.mu.Lock()
		r.got = append(r.got, parcel{q.Header.Get("webhook-id"), string(body), q.Header, time.Now()})
		nth := len(r.got)
		r.mu.Unlock()
		if r.answer != nil {
			r.answer(w, q, nth)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) parcels() []parcel {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// ids counts the received events by id.
func (r *receiver) ids() map[string]int {
	out := make(map[string]int)
	for _, p := range r.parcels() {
		out[p.ID]++
	}
	return out
}

// answering answers with these statuses, and then repeats the last.
func answering(status ...int) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, nth int) { w.WriteHeader(status[min(nth, len(status))-1]) }
}

// post is everything needed to deliver an event to a receiver.
type post struct {
	t     *testing.T
	store *store.Store
	cfg   DelivererConfig
	poll  time.Duration
	admin *Admin

	mu    sync.Mutex
	tries map[string]int
	heard []error
}

// newPost builds it without starting anything. Failed attempts are retried soon.
func newPost(t *testing.T, cfg DelivererConfig) *post {
	t.Helper()
	p := &post{t: t, store: storetest.New(t), poll: 20 * time.Millisecond, tries: make(map[string]int)}
	allow := mustNetworks(t, "127.0.0.1")
	if cfg.Sender == nil {
		client := webhook.NewClient(webhook.Config{Policy: webhook.Policy{Allow: allow}, Timeout: ordertest.Limit})
		t.Cleanup(client.Close)
		cfg.Sender = client
	}
	if cfg.Retries == nil {
		cfg.Retries = slices.Repeat([]time.Duration{10 * time.Millisecond}, 9)
	}
	cfg.Store, cfg.OnError = p.store, p.hear
	cfg.OnAttempt = func(outcome string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.tries[outcome]++
	}
	p.cfg = cfg
	p.admin = &Admin{Store: p.store, CheckURL: webhook.Policy{Allow: allow}.CheckURL}
	storetest.MustInsert(t, p.store, ordertest.NewItem("item", 1_000_000, 1_000))
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t.Failed() {
			t.Logf("reported %v", p.heard)
		}
	})
	return p
}

func (p *post) hear(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, err)
}

// counted returns the number of attempts with that result.
func (p *post) counted(outcome string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tries[outcome]
}

// background runs fn until the test ends, or until stop is called.
func background(t *testing.T, fn func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fn(ctx)
	}()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(ordertest.Limit):
			t.Error("it did not stop")
		}
	}
	t.Cleanup(stop)
	return stop
}

// deliverer returns a deliverer, as that of another process.
func (p *post) deliverer() *Deliverer {
	d := NewDeliverer(p.cfg)
	d.poll = p.poll
	return d
}

// start delivers until the test ends, or until stop is called.
func (p *post) start() (stop func()) { return background(p.t, p.deliverer().Run) }

// tell commits n orders, and returns their events.
func (p *post) tell(prefix string, n int) []toldEvent {
	p.t.Helper()
	before := int64(0)
	for _, e := range allTold(p.t, p.store) {
		before = e.Seq
	}
	storetest.MustCommit(p.t, p.store, ordertest.Distinct(prefix, "item", n)...)
	return slices.DeleteFunc(allTold(p.t, p.store), func(e toldEvent) bool { return e.Seq <= before })
}

// states counts an endpoint's deliveries by their state.
func (p *post) states(endpoint string) map[DeliveryState]int {
	p.t.Helper()
	out := make(map[DeliveryState]int)
	for _, d := range p.list(endpoint) {
		out[d.State]++
	}
	return out
}

func (p *post) list(endpoint string) []Delivery {
	p.t.Helper()
	list, _, err := deliveries(await.Context(p.t), p.store, DeliveryFilter{EndpointID: endpoint, Limit: 1000})
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

func (p *post) awaitStates(endpoint string, want map[DeliveryState]int) {
	p.t.Helper()
	await.Every(p.t, 30*time.Millisecond, fmt.Sprint("deliveries to be ", want), func() bool {
		got := p.states(endpoint)
		return fmt.Sprint(got) == fmt.Sprint(want)
	})
}

func mustNetworks(t testing.TB, texts ...string) []netip.Prefix {
	t.Helper()
	out, err := webhook.ParseNetworks(texts)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// auditOf reads the audit entries.
func auditOf(t testing.TB, s *store.Store) (out []string) {
	t.Helper()
	if err := s.Reader().WithContext(await.Context(t)).Raw("SELECT actor || ' ' || action FROM audit ORDER BY id").Scan(&out).Error; err != nil {
		t.Fatal(err)
	}
	return out
}

func verify(t *testing.T, secret string, p parcel) error {
	t.Helper()
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return wh.Verify([]byte(p.Body), p.Header)
}

// TestDeliverer: a committed event is sent to each endpoint that subscribes to it, signed
// with the endpoint's own secret, byte for byte as in the outbox. Commits of the same
// process wake the deliverer.
func TestDeliverer(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	p.poll = time.Hour
	one, other := newReceiver(t, nil), newReceiver(t, nil)
	first, secret := addHook(t, p.store, one.URL+"/hook")
	second, otherSecret := addHook(t, p.store, other.URL, order.EventPaid)
	p.start()
	events := p.tell("n", 30)
	if _, err := p.store.Pay(await.Context(t), "n0003", ordertest.Money("psp", 1)); err != nil {
		t.Fatal(err)
	}
	p.awaitStates(first.ID, map[DeliveryState]int{DeliveryDelivered: 31})
	p.awaitStates(second.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	bodies := make(map[string]string)
	for _, e := range allTold(t, p.store) {
		bodies[e.ID] = e.Body
	}
	for _, got := range one.parcels() {
		if err := verify(t, secret, got); err != nil || got.Body != bodies[got.ID] {
			t.Errorf("%s: %s: %v", got.ID, got.Body, err)
		}
		if verify(t, otherSecret, got) == nil {
			t.Error("signed with another endpoint's secret")
		}
		delete(bodies, got.ID)
	}
	if len(bodies) != 0 || len(events) != 30 {
		t.Errorf("not sent: %v", bodies)
	}
	if got := other.parcels(); len(got) != 1 || verify(t, otherSecret, got[0]) != nil || !strings.Contains(got[0].Body, "order.paid") {
		t.Errorf("the other endpoint got %+v", got)
	}
	d := p.list(first.ID)[0]
	if d.Type != order.EventPaid || d.OrderID != "n0003" || d.Attempts != 1 || d.LastStatus != 204 || d.LastError != "" ||
		d.DeliveredAt.IsZero() || !d.NextAt.IsZero() || d.LastAt.IsZero() || d.CreatedAt.IsZero() {
		t.Errorf("delivery %+v", d)
	}
	// They are counted after the commit of the results.
	await.True(t, "32 deliveries to be counted", func() bool { return p.counted("delivered") == 32 })
}

// TestDeliverer_Retries: after any failure, the same event is sent again with the same id,
// and a signature for the new time.
func TestDeliverer_Retries(t *testing.T) {
	t.Parallel()
	client := webhook.NewClient(webhook.Config{
		Policy: webhook.Policy{Allow: mustNetworks(t, "127.0.0.1")}, Timeout: 2 * time.Second,
	})
	t.Cleanup(client.Close)
	p := newPost(t, DelivererConfig{Sender: client})
	r := newReceiver(t, func(w http.ResponseWriter, q *http.Request, nth int) {
		switch nth {
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			panic(http.ErrAbortHandler) // the connection is reset
		case 3:
			<-q.Context().Done() // no answer, until the sender gives up
		case 4:
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusFound)
		default:
			w.WriteHeader(http.StatusOK)
		}
	})
	e, secret := addHook(t, p.store, r.URL)
	p.start()
	event := p.tell("n", 1)[0]
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	got := r.parcels()
	if len(got) != 5 {
		t.Fatalf("%d tries", len(got))
	}
	for i := range got {
		if got[i].ID != event.ID || got[i].Body != event.Body || verify(t, secret, got[i]) != nil {
			t.Errorf("try %d: %+v", i, got[i])
		}
	}
	if d := p.list(e.ID)[0]; d.Attempts != 5 || d.LastStatus != 200 || d.LastError != "" {
		t.Errorf("delivery %+v", d)
	}
	await.True(t, "5 tries to be counted", func() bool { return p.counted("failed") == 4 && p.counted("delivered") == 1 })
}

// TestDeliverer_Redeliver: after the last attempt it is a dead letter. A dead letter is
// sent again on request, and so is a delivered event.
func TestDeliverer_Redeliver(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Retries: []time.Duration{time.Millisecond, time.Millisecond}})
	r := newReceiver(t, answering(500, 404, 301, 503, 200))
	e, _ := addHook(t, p.store, r.URL)
	p.start()
	event := p.tell("n", 1)[0]
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDead: 1})
	d := p.list(e.ID)[0]
	if d.Attempts != 3 || d.LastStatus != 301 || d.LastError != "answered 301 Moved Permanently" || !d.DeliveredAt.IsZero() {
		t.Errorf("dead letter %+v", d)
	}
	by := order.By{Actor: "root", RequestID: "r2"}
	if err := p.admin.Redeliver(await.Context(t), e.ID, event.ID, by); err != nil {
		t.Fatal(err)
	}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	if d := p.list(e.ID)[0]; d.Attempts != 2 {
		t.Errorf("redelivered %+v", d)
	}
	if err := p.admin.Redeliver(await.Context(t), e.ID, event.ID, by); err != nil {
		t.Fatal(err)
	}
	await.True(t, "another delivery", func() bool { return len(r.parcels()) == 6 })
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	if ids := r.ids(); ids[event.ID] != 6 {
		t.Errorf("ids %v", ids)
	}
}

// TestDeliverer_Redeliver_Waiting: a delivery requested by an admin does not wait five
// hours for its next attempt.
func TestDeliverer_Redeliver_Waiting(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Retries: []time.Duration{5 * time.Hour}})
	r := newReceiver(t, answering(500, 200))
	e, _ := addHook(t, p.store, r.URL)
	p.start()
	event := p.tell("n", 1)[0]
	await.True(t, "the first try", func() bool { return p.counted("failed") == 1 })
	d := p.list(e.ID)[0]
	if in := time.Until(d.NextAt); in < 4*time.Hour || in > 7*time.Hour || d.State != DeliveryPending || d.Attempts != 1 {
		t.Errorf("waiting delivery %+v, next in %v", d, in)
	}
	if err := p.admin.Redeliver(await.Context(t), e.ID, event.ID, order.By{}); err != nil {
		t.Fatal(err)
	}
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
}

// TestDeliverer_Restart: the row holds the number of attempts and the time of the next, for
// any process. A due time that only a wrong clock can have written is corrected.
func TestDeliverer_Restart(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{Retries: []time.Duration{2 * time.Second}})
	r := newReceiver(t, answering(500, 200))
	e, _ := addHook(t, p.store, r.URL)
	stop := p.start()
	first := p.tell("n", 1)[0]
	await.True(t, "the first try to fail", func() bool { return p.counted("failed") == 1 })
	stop()
	due := p.list(e.ID)[0].NextAt
	second := p.tell("m", 1)[0]
	err := p.store.Writer().Exec("UPDATE webhook_deliveries SET next_at = next_at + ? WHERE event_seq = ?", (20_000 * time.Hour).Milliseconds(), second.Seq).Error
	if err != nil {
		t.Fatal(err)
	}
	p.start()
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 2})
	for i, got := range r.parcels() {
		if i > 0 && got.ID == first.ID && got.At.Before(due) {
			t.Errorf("retried at %v, due at %v", got.At, due)
		}
	}
	if d := p.list(e.ID)[1]; d.Attempts != 2 {
		t.Errorf("the count of attempts was lost: %+v", d)
	}
}

// TestDeliverer_RetryAfter: a receiver that answers with Retry-After gets no request before
// that time.
func TestDeliverer_RetryAfter(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, nth int) {
		if nth == 1 {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	e, _ := addHook(t, p.store, r.URL)
	p.start()
	p.tell("n", 1)
	p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	// The time of the next try is kept in milliseconds.
	if got := r.parcels(); len(got) != 2 || got[1].At.Sub(got[0].At) < 2*time.Second-time.Millisecond {
		t.Errorf("tries %+v", got)
	}
}

func TestDeliverer_judge(t *testing.T) {
	t.Parallel()
	d := NewDeliverer(DelivererConfig{})
	total := time.Duration(0)
	for i, want := range deliveryRetries {
		got := d.judge(&deliveryJob{attempts: i}, webhook.Result{Status: 500})
		if got.state != DeliveryPending || got.next < want || got.next > want*6/5 || got.attempts != i+1 || got.reason != "answered 500 Internal Server Error" {
			t.Errorf("failure %d: %+v, want a pause of about %v", i, got, want)
		}
		total += want
	}
	if total < 72*time.Hour {
		t.Errorf("all tries take %v", total)
	}
	// A later due time counts as the error of a wrong clock, and is corrected.
	if longest := max(slices.Max(deliveryRetries)*6/5, maxRetryAfter); longest >= longestPause {
		t.Errorf("a pause may take %v, want less than %v", longest, longestPause)
	}
	if got := d.judge(new(deliveryJob), webhook.Result{Err: errors.New(strings.Repeat("x", 2*maxDeliveryError))}); len(got.reason) != maxDeliveryError {
		t.Errorf("a reason of %d bytes, want %d", len(got.reason), maxDeliveryError)
	}
	pauses := make(map[time.Duration]bool)
	for range 100 {
		pauses[d.judge(new(deliveryJob), webhook.Result{Status: 500}).next] = true
	}
	if len(pauses) == 1 {
		t.Errorf("all deliveries pause for %v, want a random part", pauses)
	}
	for _, c := range []struct {
		attempts int
		res      webhook.Result
		state    DeliveryState
		gone     bool
		min, max time.Duration
	}{
		{0, webhook.Result{Status: 200}, DeliveryDelivered, false, 0, 0},
		{9, webhook.Result{Status: 299}, DeliveryDelivered, false, 0, 0},
		{9, webhook.Result{Status: 500}, DeliveryDead, false, 0, 0},
		{0, webhook.Result{Status: 410}, DeliveryDead, true, 0, 0},
		{0, webhook.Result{Err: ordertest.ErrTest}, DeliveryPending, false, 5 * time.Second, 6 * time.Second},
		{0, webhook.Result{Status: 199}, DeliveryPending, false, 5 * time.Second, 6 * time.Second},
		{0, webhook.Result{Status: 429, RetryAfter: time.Minute}, DeliveryPending, false, time.Minute, time.Minute},
		{0, webhook.Result{Status: 503, RetryAfter: 1000 * time.Hour}, DeliveryPending, false, 24 * time.Hour, 24 * time.Hour},
		{1, webhook.Result{Status: 503, RetryAfter: time.Second}, DeliveryPending, false, 5 * time.Minute, 6 * time.Minute},
		{0, webhook.Result{Status: 500, RetryAfter: time.Minute}, DeliveryPending, false, 5 * time.Second, 6 * time.Second},
	} {
		got := d.judge(&deliveryJob{attempts: c.attempts}, c.res)
		if got.state != c.state || got.gone != c.gone || got.next < c.min || got.next > c.max {
			t.Errorf("%d tries, then %+v: %+v", c.attempts, c.res, got)
		}
	}
}

// TestDeliverer_Wakes: a commit of the same process wakes the deliverer, and so does a
// redelivery.
func TestDeliverer_Wakes(t *testing.T) {
	t.Parallel()
	p := newPost(t, DelivererConfig{})
	e, _ := addHook(t, p.store, "https://a.example")
	for i, wake := range []func(){
		func() { p.tell("n", 1) },
		func() {
			storetest.MustCommit(t, p.store, ordertest.Bought("n0000", "item", "nu0", "k", 1), ordertest.Bought("x", "item", "x", "k", 1)) // one by one
		},
		func() {
			if _, _, err := worker.RejectDead(await.Context(t), p.store, []order.Task{ordertest.Bought("b", "item", "b", "k", 1)}); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			if _, err := p.store.Pay(await.Context(t), "x", ordertest.Money("psp", 1)); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			if _, err := p.admin.TestEndpoint(await.Context(t), e.ID, order.By{}); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			if err := p.admin.Redeliver(await.Context(t), e.ID, p.list(e.ID)[0].EventID, order.By{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		wake()
		select {
		case <-p.store.EventsCommitted:
		default:
			t.Errorf("change %d did not wake the deliverer", i)
		}
	}
}

// TestClip: a reason is cut between two characters.
func TestClip(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc", "abé": "ab", "aé": "aé", "aéé": "aé"} {
		if got := clip(text, 3); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestDeliverer_State: the state of the outbox is reported, and none once the deliverer has stopped.
func TestDeliverer_State(t *testing.T) {
	t.Parallel()
	states := make(chan OutboxState, 100)
	p := newPost(t, DelivererConfig{
		OnState: func(s OutboxState) { states <- s },
		Sender:  senderFunc(func(context.Context, *webhook.Message) webhook.Result { return webhook.Result{Status: 204} }),
	})
	addHook(t, p.store, "https://a.example")
	p.tell("n", 2)
	stop := p.start()
	select {
	case s := <-states:
		if s.Events != 2 {
			t.Errorf("state %+v, want 2 events", s)
		}
	case <-await.Context(t).Done():
		t.Error("no state was reported")
	}
	stop()
	close(states)
	last := OutboxState{Events: -1}
	for s := range states {
		last = s
	}
	if last != (OutboxState{}) {
		t.Errorf("state %+v after the end, want none", last)
	}
}
