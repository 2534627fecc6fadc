package service

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler"
	"flashsale/order/store"
	"flashsale/order/webhooks"
	"flashsale/webhook"
)

// newWebhookAdmin creates the webhook management of the API. It sends no webhooks.
func newWebhookAdmin(s *config.Settings, store *store.Store, mock *mockPayments) (handler.Webhooks, error) {
	policy, err := s.WebhookPolicy()
	if err != nil {
		return nil, err
	}
	return &webhooks.Admin{Store: store, CheckURL: mock.checkURL(policy.CheckURL)}, nil
}

// newDeliverer creates the part that delivers webhooks, in one of all processes.
func newDeliverer(e *env, eng *engine, mock *mockPayments, l *leaders) (part, error) {
	policy, err := e.settings.WebhookPolicy()
	if err != nil {
		return part{}, err
	}
	client := webhook.NewClient(webhook.Config{Policy: policy})
	report := e.reporter("webhooks")
	d := webhooks.NewDeliverer(webhooks.DelivererConfig{
		Store: eng.store, Sender: mock.sender(client), Workers: e.settings.WebhookWorkers,
		// An interrupted delivery is retried, so it must not delay the drain of the orders.
		Drain:   e.settings.Drain / 10,
		OnError: report, OnAttempt: deliveryMetrics(e.registry), OnState: outboxMetrics(e.registry),
	})
	return l.lead("webhooks", func(ctx context.Context) {
		defer client.Close()
		if err := dropDeliveryQueue(ctx, eng.rdb); err != nil {
			report(err)
		}
		d.Run(ctx)
	}), nil
}

// dropDeliveryQueue deletes the task queue in which earlier versions kept deliveries. They are
// now in the database.
func dropDeliveryQueue(ctx context.Context, rdb redis.UniversalClient) error {
	var keys []string
	for _, name := range strings.Fields("ready delayed leased body meta clock wake dead unique unique_until paused done counts rate") {
		keys = append(keys, "fs:{p0}:q:webhooks:"+name)
	}
	if err := rdb.Unlink(ctx, keys...).Err(); err != nil {
		return fmt.Errorf("delete the queue of an earlier version: %w", err)
	}
	return nil
}

// deliveryMetrics registers the metrics of deliveries, and returns the function that counts
// them. Endpoints are not labels, because their URLs are confidential.
func deliveryMetrics(registry prometheus.Registerer) func(outcome string) {
	tries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flashsale_webhook_deliveries_total",
		Help: "Webhook delivery attempts: delivered, failed (to be retried) or dead.",
	}, []string{"outcome"})
	registry.MustRegister(tries)
	counters := make(map[string]prometheus.Counter)
	for _, outcome := range []string{"delivered", "failed", "dead"} {
		counters[outcome] = tries.WithLabelValues(outcome)
	}
	return func(outcome string) { counters[outcome].Inc() }
}

// outboxMetrics registers the metrics of the outbox, and returns the function that sets them.
// They are 0 except in the process that delivers.
func outboxMetrics(registry prometheus.Registerer) func(webhooks.OutboxState) {
	var mu sync.Mutex
	var now webhooks.OutboxState
	gauge := func(name, help string, value func(webhooks.OutboxState) float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			mu.Lock()
			defer mu.Unlock()
			return value(now)
		}))
	}
	gauge("flashsale_webhook_outbox_events", "Events kept for webhooks, in the process that delivers; 0 elsewhere.",
		func(s webhooks.OutboxState) float64 { return float64(s.Events) })
	gauge("flashsale_webhook_oldest_pending_age_seconds",
		"Age of the oldest event that an endpoint is still owed, at the last look, in the process that delivers; 0 elsewhere.",
		func(s webhooks.OutboxState) float64 { return s.OldestPending.Seconds() })
	return func(s webhooks.OutboxState) {
		mu.Lock()
		defer mu.Unlock()
		now = s
	}
}
