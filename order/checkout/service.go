// Package checkout places orders and waits for their commits. It reads, lists, pays, cancels
// and refunds them, and notifies those who follow an order.
package checkout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/release"
	"flashsale/order/store"
)

// Stock is the part of the inventory that a Service uses.
type Stock interface {
	// Refusal returns the refusal of a purchase that needs neither a Request nor Redis, otherwise nil.
	Refusal(item, buyer, idempotencyKey string, quantity int64) error
	Submit(r *inventory.Request) error
	// Held returns how many units of an item a buyer holds.
	Held(ctx context.Context, item, buyer string) (int64, error)
}

// Items is the part of the catalogue that a Service uses.
type Items interface {
	Item(ctx context.Context, id string) (catalog.Item, error)
	// Outdated makes this process read an item again if its copy is older than the version.
	Outdated(id string, version int64)
}

// Buckets moves units between the buckets of an item.
type Buckets interface {
	// Refill moves units into the bucket id; see items.Service.Refill.
	Refill(ctx context.Context, item *catalog.Item, id string, quantity int64) (bool, error)
}

// Config configures a Service. All fields but ChangeNotifier, Queued and OnError are
// required.
type Config struct {
	Store    *store.Store
	Stock    Stock
	Items    Items
	Buckets  Buckets
	Tasks    []order.Queued // one per partition
	Waiters  *Waiters
	Releaser *release.Releaser
	// ChangeNotifier notifies processes that follow orders of their changes. Default nil: no
	// notifications.
	ChangeNotifier *ChangeNotifier
	// Queued finds the queued orders of a buyer. Default nil: lists contain only committed
	// orders.
	Queued order.BuyersQueued
	// Volatile means that Redis loses its data on a restart. Then a purchase is answered
	// only after its commit, whatever wait it asked for.
	Volatile bool
	// OnError receives errors that do not change an answer.
	OnError func(error)
}

// Service places and reads orders.
type Service struct {
	Config
	volatileWait time.Duration
}

// NewService returns a Service.
func NewService(cfg Config) *Service {
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	return &Service{cfg, volatileWait}
}

// Held returns how many units of an item a buyer holds, by the count that its limit is checked with.
// Errors: inventory.ErrUnavailable.
func (s *Service) Held(ctx context.Context, item *catalog.Item, buyer string) (int64, error) {
	return s.Stock.Held(ctx, bucket.Home(item.ID, buyer, item.Buckets), buyer)
}

// Get reads an order: from the database, or from the queue while it waits there. Errors:
// ErrNotFound; inventory.ErrStopped instead while the database is known to have lost
// orders.
func (s *Service) Get(ctx context.Context, id string) (order.Order, error) {
	o, err := s.Store.Order(ctx, id)
	if !errors.Is(err, order.ErrNotFound) {
		return o, err
	}
	for _, q := range s.Tasks {
		found, err := q.Find(ctx, id)
		if err != nil {
			return order.Order{}, fmt.Errorf("find order %s in the queue: %w: %w", id, inventory.ErrUnavailable, err)
		}
		if found[0].OrderID == "" {
			continue
		}
		t, err := order.ParseAccepted(found[0])
		if err != nil {
			// Its content is lost. The task becomes a dead letter, which operators see.
			s.OnError(fmt.Errorf("read queued order %s: %w", id, err))
			return order.Order{}, order.ErrNotFound
		}
		return t.Queued(), nil
	}
	// It may have been committed between the two reads.
	o, err = s.Store.Order(ctx, id)
	if errors.Is(err, order.ErrNotFound) && s.Store.HighWater().AnyStopped() {
		err = fmt.Errorf("order %s may have been lost by the database: %w", id, inventory.ErrStopped)
	}
	return o, err
}
