package order

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"flashsale/internal/faultpoint"
	"flashsale/queue"
	"flashsale/webhook"
)

// DeliveryPrefix is the prefix of the queue of webhook deliveries, which has
// nothing to do with the items' partitions.
const DeliveryPrefix = "fs:{p0}:q:webhooks:"

// deliveryRetries are the pauses behind the tries of a delivery, as the Standard
// Webhooks scheme proposes them: three days in all, and then it is a dead letter.
var deliveryRetries = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// DeliveryAttempts is how often a delivery's task is handled before the queue
// gives it up: above the tries of a delivery, which the database counts, since
// only what kills its workers gets there.
const DeliveryAttempts = 50

const (
	// maxRetryAfter bounds what a receiver can ask for.
	maxRetryAfter = 24 * time.Hour
	// longestPause is above what there can be between two tries.
	longestPause = 30 * time.Hour
	// maxDeliveryError is how much of a failure's reason is kept, in bytes.
	maxDeliveryError = 300
	// unreadPause is when a delivery that the database could not give comes back.
	unreadPause = 2 * time.Second
)

// Sender sends a message once.
type Sender interface {
	Send(ctx context.Context, m *webhook.Message) webhook.Result
}

// DelivererConfig configures a Deliverer. Store and Sender are required.
type DelivererConfig struct {
	Store  *Store
	Sender Sender
	// Workers is how many deliveries are under way at once. Default 32.
	Workers int
	// PerEndpoint is how many of them go to one endpoint at most. Default a quarter
	// of Workers, at least 1.
	PerEndpoint int
	// Drain is how long tries under way may take when it is to end. Default 10 s.
	Drain time.Duration
	// Retries are the pauses behind each failed try but the last. Default those of
	// the Standard Webhooks scheme, 75 hours in all. A fifth of each is at random.
	Retries []time.Duration
	// OnError hears of what is tried again without being a delivery's own fault.
	OnError func(error)
	// OnTry hears of each try: "delivered", "failed" (to be tried again) or "dead".
	OnTry func(outcome string)
}

// Deliverer sends the deliveries that the relay has put into the queue. Any
// number of them may work on it; each has its own bounds.
type Deliverer struct {
	DelivererConfig
	lanes    *lanes
	recorder *recorder
}

// NewDeliverer returns a Deliverer.
func NewDeliverer(cfg DelivererConfig) *Deliverer {
	if cfg.Workers == 0 {
		cfg.Workers = 32
	}
	if cfg.PerEndpoint == 0 {
		cfg.PerEndpoint = max(1, cfg.Workers/4)
	}
	if cfg.Retries == nil {
		cfg.Retries = deliveryRetries
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	if cfg.OnTry == nil {
		cfg.OnTry = func(string) {}
	}
	return &Deliverer{DelivererConfig: cfg, lanes: newLanes(cfg.PerEndpoint)}
}

// Work delivers until ctx ends, and then finishes what is under way.
func (d *Deliverer) Work(ctx context.Context, q *queue.Queue) error {
	d.recorder = newRecorder(d.Store, d.OnError)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.recorder.run(context.WithoutCancel(ctx))
	}()
	err := q.RunEach(ctx, d.deliver, queue.RunConfig{Workers: d.Workers, Drain: d.Drain, OnError: d.OnError})
	if !errors.Is(err, queue.ErrAbandoned) {
		close(d.recorder.in) // after an abandoned handler nobody knows who still writes
		<-ended
	}
	return err
}

// deliveryType is the type of the tasks in the queue of deliveries.
const deliveryType = "webhook"

// deliveryID names the task of one delivery, so that a second one is refused.
func deliveryID(eventID, endpointID string) string { return eventID + "." + endpointID }

// deliveryTask is the task of one delivery; the database has all else of it.
func deliveryTask(eventID, endpointID string) queue.Task {
	return queue.Task{ID: deliveryID(eventID, endpointID), Type: deliveryType}
}

// deliver makes one try, and writes what it has led to before the queue hears of
// it: who dies in between delivers again, under the same id.
func (d *Deliverer) deliver(ctx context.Context, l queue.Leased) error {
	eventID, endpointID, ok := strings.Cut(l.ID, ".")
	if !ok {
		return queue.Discard(fmt.Errorf("order: %q names no delivery", l.ID))
	}
	began := time.Now()
	if wait := d.lanes.enter(endpointID, began); wait > 0 {
		return queue.Snooze(wait)
	}
	defer func() { d.lanes.leave(endpointID, time.Since(began)) }()
	job, err := d.Store.job(ctx, eventID, endpointID)
	switch {
	case errors.Is(err, ErrDeliveryNotFound):
		return nil // its endpoint was deleted, or it was forgotten
	case err != nil && ctx.Err() == nil:
		d.OnError(err)
		return queue.Snooze(unreadPause)
	case err != nil:
		return err
	case job.state != DeliveryPending:
		return nil // another task of it was quicker
	}
	if wait := job.early(d.Store.now()); wait > 0 {
		return queue.Snooze(wait)
	}
	var t tried
	if job.enabled {
		res := d.Sender.Send(ctx, &webhook.Message{ID: eventID, URL: job.url, Secrets: job.secrets, Body: job.body})
		faultpoint.Reach("webhook.sent")
		if !res.Delivered() && ctx.Err() != nil {
			return context.Cause(ctx) // cut off by us, which says nothing of the receiver
		}
		t = d.judge(&job, res)
	} else {
		t = tried{job: &job, state: DeliveryDead, attempts: job.attempts, reason: "the endpoint is disabled"}
	}
	if err := d.recorder.write(ctx, t); err != nil {
		return err
	}
	switch t.state {
	case DeliveryDelivered:
		d.OnTry("delivered")
	case DeliveryDead:
		d.OnTry("dead")
	case DeliveryPending:
		d.OnTry("failed")
		return queue.RetryIn(t.next, errors.New(t.reason))
	}
	return nil
}

// early is how long before its time a delivery has come: who has tried it died
// before the queue was told when the next try is due. More than any pause is the
// word of a clock that was wrong, and means nothing.
func (j *deliveryJob) early(now time.Time) time.Duration {
	if wait := j.nextAt.Sub(now); j.attempts > 0 && wait <= longestPause {
		return wait
	}
	return 0
}

// judge says what follows from an answer, or from none.
func (d *Deliverer) judge(j *deliveryJob, res webhook.Result) tried {
	t := tried{job: j, state: DeliveryPending, attempts: j.attempts + 1, status: res.Status}
	switch {
	case res.Delivered():
		t.state = DeliveryDelivered
		return t
	case res.Err != nil:
		t.reason = clip(res.Err.Error(), maxDeliveryError)
	default:
		t.reason = strings.TrimSpace(fmt.Sprintf("answered %d %s", res.Status, http.StatusText(res.Status)))
	}
	if res.Status == http.StatusGone {
		t.state, t.gone = DeliveryDead, true
		return t
	}
	if t.attempts > len(d.Retries) {
		t.state = DeliveryDead
		return t
	}
	t.next = d.Retries[t.attempts-1]
	t.next += rand.N(t.next/5 + 1)
	if res.Status == http.StatusTooManyRequests || res.Status == http.StatusServiceUnavailable {
		t.next = max(t.next, min(res.RetryAfter, maxRetryAfter))
	}
	return t
}

// clip cuts a text to at most n bytes, between characters.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
