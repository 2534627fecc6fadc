package mockpayments

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"flashsale/client"
)

const (
	// maxEvents bounds the webhooks that are shown.
	maxEvents = 100
	// maxSeen bounds the ids by which repeats are recognized.
	maxSeen = 1000
)

// event is a verified webhook.
type event struct {
	ID, Type string
	Subject  string    // the id of the order, item or payment that it is about
	Status   string    // of the order
	At       time.Time // when it happened
}

// inbox receives the webhooks of the service.
type inbox struct {
	verifier *client.WebhookVerifier // nil: webhooks get 503

	mu       sync.Mutex
	events   []event  // the oldest first
	seen     []string // the latest ids, the oldest first
	repeats  int      // webhooks that were received again
	unsigned int      // webhooks that were refused
}

// ServeHTTP answers POST /webhooks. With any other answer than 2xx the service sends the webhook
// again later.
func (in *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if in.verifier == nil {
		http.Error(w, "not registered for webhooks", http.StatusServiceUnavailable)
		return
	}
	m, err := in.verifier.Read(r)
	if err != nil {
		in.refuse()
		http.Error(w, "not a webhook of the service", http.StatusBadRequest)
		return
	}
	in.add(&m)
	w.WriteHeader(http.StatusNoContent)
}

func (in *inbox) refuse() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.unsigned++
}

// add records a webhook once.
func (in *inbox) add(m *client.WebhookMessage) {
	var about struct {
		ID     string `json:"id"`
		ItemID string `json:"item_id"`
		Status string `json:"status"`
	}
	// The data of types that are added later may have another form, which is not shown.
	_ = json.Unmarshal(m.Data, &about) //nolint:errcheck // see above
	in.mu.Lock()
	defer in.mu.Unlock()
	if slices.Contains(in.seen, m.ID) {
		in.repeats++
		return
	}
	in.seen = keep(append(in.seen, m.ID), maxSeen)
	in.events = keep(append(in.events, event{
		ID: m.ID, Type: m.Type, Subject: cmp.Or(about.ID, about.ItemID), Status: about.Status, At: m.Timestamp,
	}), maxEvents)
}

// keep returns the last n elements.
func keep[T any](list []T, n int) []T {
	return slices.Delete(list, 0, max(0, len(list)-n))
}

// latest returns the webhooks, the newest first, and how many were repeats and refused.
func (in *inbox) latest() (events []event, repeats, unsigned int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	events = slices.Clone(in.events)
	slices.Reverse(events)
	return events, in.repeats, in.unsigned
}
