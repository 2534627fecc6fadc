// Package store has the statements that several features need: the commit of a batch, the
// transitions of an order, the outbox of events, the audit, and the high-water marks that detect
// lost commits. It runs them on a [database.DB]. Statements that only one feature uses are in the
// package of that feature.
package store

import (
	"context"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// largeLoad is the number of sold units from which the load of a sale is large: it reads many orders.
const largeLoad = 20_000

// Store keeps items, orders and buyers in the database.
type Store struct {
	*database.DB
	now             func() time.Time // see WithClock
	EventsCommitted chan struct{}    // receives a token when events were committed; see Announce

	highWater *HighWater // nil: revisions are not recorded; see NewHighWater
	// comparedLife is the database.Tx.ServerLife of the server on which this process may write; nil: none.
	// See compareServer.
	comparedLife atomic.Pointer[string]

	itemNow func(item string) time.Time // nil: now; see WithClock

	onPayment    func(order.PaymentOutcome)          // see WithPayments
	onCheckpoint func(took time.Duration, err error) // see WithCheckpoints
}

// Option sets an optional part of a Store.
type Option func(*Store)

// Clock is the time by which sales open and close.
type Clock interface {
	// Now is the time for everything that belongs to no single item.
	Now() time.Time
	// ItemNow is the time by which the item's sale opens and closes.
	ItemNow(item string) time.Time
}

// WithClock makes the store write and compare times by this clock instead of the host's, so
// that all processes agree on when an order expires and whether a payment is late.
func WithClock(c Clock) Option {
	return func(s *Store) { s.now, s.itemNow = c.Now, c.ItemNow }
}

// WithPayments makes the store call fn for every recorded payment, and every refund, once
// it is committed.
func WithPayments(fn func(order.PaymentOutcome)) Option {
	return func(s *Store) { s.onPayment = fn }
}

// WithCheckpoints makes the store call fn after each checkpoint beside the commits; see
// [database.Config].
func WithCheckpoints(fn func(took time.Duration, err error)) Option {
	return func(s *Store) { s.onCheckpoint = fn }
}

// SaleTime is the time by which an item's sale opens and closes.
func SaleTime(s *Store, item string) time.Time {
	if s.itemNow != nil {
		return s.itemNow(item)
	}
	return s.now()
}

// Open opens the database of a setting; see [database.Open].
func Open(ctx context.Context, setting string, options ...Option) (*Store, error) {
	s := &Store{now: time.Now, EventsCommitted: make(chan struct{}, 1), onPayment: func(order.PaymentOutcome) {}}
	for _, set := range options {
		set(s)
	}
	var err error
	s.DB, err = database.Open(ctx, setting, database.Config{
		Prepared: preparedTexts, Probe: writeProbe, Hooks: s.newTransaction, Checkpointed: s.onCheckpoint,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Loading runs fn on one consistent view of the database, to load the sales of these items.
func (s *Store) Loading(ctx context.Context, items []string, fn func(tx *gorm.DB) error) error {
	sold, err := soldOf(ctx, s, items)
	if err != nil {
		return err
	}
	return s.Load(ctx, sold >= largeLoad, fn)
}

// soldOf returns the total number of sold units of some items.
func soldOf(ctx context.Context, s *Store, items []string) (sold int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	err = s.Reader().WithContext(ctx).Raw("SELECT COALESCE(SUM(sold), 0) FROM items WHERE id IN (SELECT value FROM json_each(?))",
		database.JSONList(items...)).Scan(&sold).Error
	if err != nil {
		return 0, database.Wrap("read units sold", err)
	}
	return sold, nil
}

// Now returns the time by the store's clock.
func (s *Store) Now() time.Time { return s.now() }

// HighWater returns what detects a database that has lost commits; nil: nothing does.
func (s *Store) HighWater() *HighWater { return s.highWater }

// ReportPayment reports an outcome to the observer of [WithPayments].
func (s *Store) ReportPayment(o order.PaymentOutcome) { s.onPayment(o) }
