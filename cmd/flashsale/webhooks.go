package main

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/handler"
	"flashsale/order"
	"flashsale/webhook"
)

// webhookAdmin is what the API does about webhooks; it sends none.
func (a *app) webhookAdmin() (handler.Webhooks, error) {
	policy, err := a.settings.WebhookPolicy()
	if err != nil {
		return nil, err
	}
	return &order.Webhooks{Store: a.store, CheckURL: policy.CheckURL}, nil
}

// addWebhooks makes the process offer to deliver webhooks: one of all processes does.
func (a *app) addWebhooks() error {
	policy, err := a.settings.WebhookPolicy()
	if err != nil {
		return err
	}
	client := webhook.NewClient(webhook.Config{Policy: policy})
	report := a.reporter("webhooks")
	d := order.NewDeliverer(order.DelivererConfig{
		Store: a.store, Sender: client, Workers: a.settings.WebhookWorkers,
		// A try that is cut off is made again, so it must not keep the orders waiting.
		Drain:   a.settings.Drain / 10,
		OnError: report, OnTry: a.deliveryMetrics(), OnLook: a.outboxMetrics(),
	})
	return a.lead("webhooks", func(ctx context.Context) {
		defer client.Close()
		if err := a.dropDeliveryQueue(ctx); err != nil {
			report(err)
		}
		d.Run(ctx)
	})
}

// dropDeliveryQueue deletes the task queue that earlier versions kept deliveries in: the
// database says what is owed.
func (a *app) dropDeliveryQueue(ctx context.Context) error {
	var keys []string
	for _, name := range strings.Fields("ready delayed leased body meta clock wake dead unique unique_until paused done counts rate") {
		keys = append(keys, "fs:{p0}:q:webhooks:"+name)
	}
	if err := a.rdb.Unlink(ctx, keys...).Err(); err != nil {
		return fmt.Errorf("delete the queue of an earlier version: %w", err)
	}
	return nil
}

// deliveryMetrics registers the figures of deliveries, and returns what counts
// them. No endpoint becomes a label: its URL is nobody else's business.
func (a *app) deliveryMetrics() func(outcome string) {
	tries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flashsale_webhook_deliveries_total",
		Help: "Tries of webhook deliveries: delivered, failed (to be tried again) or dead.",
	}, []string{"outcome"})
	a.registry.MustRegister(tries)
	counters := make(map[string]prometheus.Counter)
	for _, outcome := range []string{"delivered", "failed", "dead"} {
		counters[outcome] = tries.WithLabelValues(outcome)
	}
	return func(outcome string) { counters[outcome].Inc() }
}

// outboxMetrics registers the figures of the outbox, and returns what sets them.
// They are those of the process that delivers, and 0 in the others.
func (a *app) outboxMetrics() func(order.OutboxState) {
	var mu sync.Mutex
	var now order.OutboxState
	gauge := func(name, help string, value func(order.OutboxState) float64) {
		a.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			mu.Lock()
			defer mu.Unlock()
			return value(now)
		}))
	}
	gauge("flashsale_webhook_outbox_events", "Events kept for webhooks, in the process that delivers; 0 elsewhere.",
		func(s order.OutboxState) float64 { return float64(s.Events) })
	gauge("flashsale_webhook_oldest_pending_seconds",
		"Age of the oldest event that an endpoint is still owed, at the last look, in the process that delivers; 0 elsewhere.",
		func(s order.OutboxState) float64 { return s.OldestPending.Seconds() })
	return func(s order.OutboxState) {
		mu.Lock()
		defer mu.Unlock()
		now = s
	}
}
