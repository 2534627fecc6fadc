package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/handler"
	"flashsale/order"
	"flashsale/queue"
	"flashsale/webhook"
)

// webhookPolicy is which addresses webhooks may be sent to.
func (s *Settings) webhookPolicy() (webhook.Policy, error) {
	allow, err := webhook.ParseNetworks(s.WebhookAllow)
	return webhook.Policy{Allow: allow}, err
}

// openDeliveries makes the queue of webhook deliveries. What Redis loses of it the
// relay puts there again: the database says what is owed.
func (a *app) openDeliveries() (err error) {
	a.hooks, err = queue.New(a.rdb, queue.Config{
		Prefix: order.DeliveryPrefix, Lease: a.settings.Lease,
		MaxLength: a.settings.QueueLimit, MaxAttempts: order.DeliveryAttempts,
	})
	return err
}

// webhookAdmin is what the API does about webhooks; it sends none.
func (a *app) webhookAdmin() (handler.Webhooks, error) {
	policy, err := a.settings.webhookPolicy()
	if err != nil {
		return nil, err
	}
	return &order.Webhooks{Store: a.store, Tasks: a.hooks, CheckURL: policy.CheckURL}, nil
}

// addWebhooks makes the process deliver webhooks, and offer to relay them.
func (a *app) addWebhooks() error {
	policy, err := a.settings.webhookPolicy()
	if err != nil {
		return err
	}
	client := webhook.NewClient(webhook.Config{Policy: policy})
	d := order.NewDeliverer(order.DelivererConfig{
		Store: a.store, Sender: client, Workers: a.settings.WebhookWorkers,
		// A try that is cut off is made again, so it must not keep the orders waiting.
		Drain:   a.settings.Drain / 10,
		OnError: a.reporter("webhooks"), OnTry: a.deliveryMetrics(),
	})
	a.life.add(part{name: "webhooks", run: func(ctx context.Context) error {
		defer client.Close()
		return d.Work(ctx, a.hooks)
	}})
	relay := order.NewRelay(a.store, a.hooks, a.reporter("webhooks"), a.outboxMetrics())
	return a.lead("webhooks", relay.Run)
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
// They are those of the process that relays, and 0 in the others.
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
	gauge("flashsale_webhook_outbox_events", "Events kept for webhooks, in the process that relays; 0 elsewhere.",
		func(s order.OutboxState) float64 { return float64(s.Events) })
	gauge("flashsale_webhook_oldest_pending_seconds",
		"Age of the oldest event that an endpoint is still owed, at the last look, in the process that relays; 0 elsewhere.",
		func(s order.OutboxState) float64 { return s.OldestPending.Seconds() })
	return func(s order.OutboxState) {
		mu.Lock()
		defer mu.Unlock()
		now = s
	}
}

// validNetworks says what is wrong with a list of networks.
func validNetworks(texts []string) (cause string) {
	if _, err := webhook.ParseNetworks(texts); err != nil {
		return fmt.Sprintf("one of %q is neither an address nor a network", texts)
	}
	return ""
}
