package webhooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"flashsale/internal/faultpoint"
	"flashsale/internal/pause"
	"flashsale/order/store"
	"flashsale/webhook"
)

// deliveryRetries are the pauses after the attempts of a delivery, as the Standard Webhooks
// specification proposes. After three days in total the delivery is a dead letter.
var deliveryRetries = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

const (
	// deliveryPoll is how often the deliverer reads which deliveries are due, and which
	// ones other processes have committed. Commits of its own process wake it.
	deliveryPoll = time.Second
	// tidyEvery is how often old events are deleted and the outbox is measured.
	tidyEvery = 30 * time.Second
	// recordBatch is how many results are written together.
	recordBatch = 256
	// maxRetryAfter bounds the Retry-After of a receiver.
	maxRetryAfter = 24 * time.Hour
	// maxDeliveryError is how much of a failure's reason is kept, in bytes.
	maxDeliveryError = 300
)

// Sender sends a message once.
type Sender interface {
	Send(ctx context.Context, m *webhook.Message) webhook.Result
}

// Bounds of the pauses between tries to record the result of a delivery.
const (
	recordRetryMin = 10 * time.Millisecond
	recordRetryMax = 500 * time.Millisecond
)

// DelivererConfig configures a Deliverer. Store and Sender are required.
type DelivererConfig struct {
	Store  *store.Store
	Sender Sender
	// Workers is how many deliveries run concurrently. Default 32.
	Workers int
	// PerEndpoint is how many of them go to one endpoint at most. Default a quarter of
	// Workers, at least 1.
	PerEndpoint int
	// Drain is how long running attempts may take at shutdown; 0: they are cancelled.
	Drain time.Duration
	// Retries are the pauses after each failed attempt but the last. Default: those of the
	// Standard Webhooks specification, 75 hours in total. A fifth of each pause is random.
	Retries []time.Duration
	// OnError receives errors that are retried and are not a receiver's fault.
	OnError func(error)
	// OnAttempt receives the result of each attempt: "delivered", "failed" (to be retried) or
	// "dead".
	OnAttempt func(outcome string)
	// OnState regularly receives the state of the outbox, and a zero state at the end.
	OnState func(OutboxState)
}

// Deliverer sends the pending deliveries of the database. Only their rows record what is
// pending and when the next attempt is due. One process delivers. If a second one runs
// concurrently, messages may be sent twice, and no result is lost.
type Deliverer struct {
	DelivererConfig
	poll time.Duration
	// busy is what is in progress; only the goroutine of Run uses it. Results arrive in
	// results.
	busy    map[deliveryKey]bool
	results chan attempted
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
	if cfg.OnAttempt == nil {
		cfg.OnAttempt = func(string) {}
	}
	if cfg.OnState == nil {
		cfg.OnState = func(OutboxState) {}
	}
	return &Deliverer{
		DelivererConfig: cfg, poll: deliveryPoll,
		busy: make(map[deliveryKey]bool, cfg.Workers), results: make(chan attempted, cfg.Workers),
	}
}

// Run delivers until ctx ends. Then it starts nothing more, waits for running attempts, and
// cancels those that take longer than Drain. It must not run twice concurrently.
func (d *Deliverer) Run(ctx context.Context) {
	var tidying sync.WaitGroup
	tidying.Go(func() {
		defer d.OnState(OutboxState{})
		for more := true; more; more = pause.For(ctx, tidyEvery) {
			err := tidy(ctx, d.Store)
			state, serr := outboxState(ctx, d.Store)
			if serr == nil {
				d.OnState(state)
			}
			d.report(ctx, errors.Join(err, serr))
		}
	})
	defer tidying.Wait()
	sending, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(d.Drain, cut) })()
	for ctx.Err() == nil || len(d.busy) > 0 {
		d.report(ctx, d.fill(ctx, sending)) // reads nothing once ctx has ended
		d.wait(ctx)
	}
}

// report passes on errors that are retried.
func (d *Deliverer) report(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		d.OnError(fmt.Errorf("webhooks: %w", err))
	}
}

// wait returns when there may be work. It records results first.
func (d *Deliverer) wait(ctx context.Context) {
	timer := time.NewTimer(d.poll)
	defer timer.Stop()
	stop := ctx.Done()
	if ctx.Err() != nil && len(d.busy) > 0 {
		stop = nil // wait only for running deliveries
	}
	select {
	case t := <-d.results:
		d.finish(ctx, t)
	case <-d.Store.EventsCommitted:
	case <-timer.C:
	case <-stop:
	}
}

// fill starts due deliveries up to the limit of workers. An endpoint with the fewest
// running deliveries comes first, so that slow endpoints cannot take all workers, however
// many they are. The order among equals is random, or an endpoint with an old backlog would
// always win.
func (d *Deliverer) fill(ctx, sending context.Context) error {
	room := d.Workers - len(d.busy)
	if room == 0 {
		return nil
	}
	page, err := due(ctx, d.Store, d.PerEndpoint)
	if err != nil {
		return err
	}
	turns := make(map[string]int) // by endpoint
	for key := range d.busy {
		turns[key.EndpointID]++
	}
	page = slices.DeleteFunc(page, func(p dueDelivery) bool { return d.busy[p.deliveryKey] })
	slices.SortFunc(page, func(a, b dueDelivery) int { return cmp.Compare(a.NextAt, b.NextAt) })
	for i := range page {
		page[i].turn = turns[page[i].EndpointID]
		turns[page[i].EndpointID]++
	}
	page = slices.DeleteFunc(page, func(p dueDelivery) bool { return p.turn >= d.PerEndpoint })
	rand.Shuffle(len(page), func(i, j int) { page[i], page[j] = page[j], page[i] })
	slices.SortStableFunc(page, func(a, b dueDelivery) int { return cmp.Compare(a.turn, b.turn) })
	for _, p := range page[:min(room, len(page))] {
		j, err := job(ctx, d.Store, p.deliveryKey)
		if errors.Is(err, ErrDeliveryNotFound) {
			continue // it has just ended
		}
		if err != nil {
			return err
		}
		d.busy[p.deliveryKey] = true
		go func() { d.results <- d.try(sending, &j) }()
	}
	return nil
}

// finish records a result, together with others that have arrived by then, in one
// transaction. So the database syncs once for many results, and orders rarely wait for the
// only writer. Their workers stay taken until that has succeeded, so that a process that
// cannot write does not send the same message repeatedly.
func (d *Deliverer) finish(ctx context.Context, first attempted) {
	ended := []attempted{first}
	for len(ended) < recordBatch && len(d.results) > 0 {
		ended = append(ended, <-d.results)
	}
	d.record(ctx, slices.DeleteFunc(slices.Clone(ended), func(t attempted) bool { return t.state == "" }))
	for i := range ended {
		delete(d.busy, ended[i].job.deliveryKey)
	}
}

// record writes results until that succeeds. Once ctx has ended it tries only once: a
// result that is not recorded means that the message is sent again.
func (d *Deliverer) record(ctx context.Context, tries []attempted) {
	if len(tries) == 0 {
		return
	}
	for wait := recordRetryMin; ; wait = min(2*wait, recordRetryMax) {
		err := record(ctx, d.Store, tries)
		if err == nil {
			break
		}
		d.OnError(fmt.Errorf("webhooks: %w", err))
		if !pause.Jittered(ctx, wait) {
			return
		}
	}
	for i := range tries {
		outcome := string(tries[i].state)
		if tries[i].state == DeliveryPending {
			outcome = "failed"
		}
		d.OnAttempt(outcome)
	}
}

// try sends a delivery once. The result has no state if this process cancelled it, which
// proves nothing about the receiver.
func (d *Deliverer) try(ctx context.Context, j *deliveryJob) (t attempted) {
	defer func() {
		if v := recover(); v != nil {
			d.OnError(fmt.Errorf("webhooks: panic: %v\n%s", v, debug.Stack()))
			t = d.judge(j, webhook.Result{Err: errSendPanicked})
		}
	}()
	if !j.enabled {
		return attempted{job: j, state: DeliveryDead, attempts: j.attempts, reason: "the endpoint is disabled"}
	}
	res := d.Sender.Send(ctx, &webhook.Message{ID: j.eventID, URL: j.url, Secrets: j.secrets, Body: j.body})
	faultpoint.Reach("webhook.sent")
	if !res.Delivered() && ctx.Err() != nil {
		return attempted{job: j}
	}
	return d.judge(j, res)
}

var errSendPanicked = errors.New("webhook: internal error")

// judge decides the next state of a delivery from an answer, or from its absence.
func (d *Deliverer) judge(j *deliveryJob, res webhook.Result) attempted {
	t := attempted{job: j, state: DeliveryPending, attempts: j.attempts + 1, status: res.Status}
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

// clip cuts a text to at most n bytes, at a character boundary.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
