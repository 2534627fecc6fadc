// Package handler is the edge of the service: it speaks HTTP. It decodes
// strictly, authenticates, limits rates, and turns the outcome into the
// contract's answers. What a purchase means is decided behind it.
package handler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/order"
)

// Orders places orders and reads them back.
type Orders interface {
	// Place takes the stock and queues the order. Its refusals are the errors
	// of package inventory.
	Place(ctx context.Context, p order.Purchase) (order.Placed, error)
	// Get returns one order, or order.ErrNotFound. Who may see it is decided here.
	Get(ctx context.Context, id string) (order.Order, error)
	// List returns a page of orders, newest first, and the id below which the next
	// page begins; empty: there is none.
	List(ctx context.Context, f order.Filter) (orders []order.Order, next string, err error)
	// Pay records a payment and settles the order with it. Errors: those of
	// order.Service.Pay.
	Pay(ctx context.Context, id string, p order.Payment) (order.Order, error)
	// Cancel cancels an order that is not paid. Errors: those of
	// order.Service.Cancel.
	Cancel(ctx context.Context, id string, by order.Canceller) (order.Order, error)
}

// Items answers what is on sale, from memory where it can.
type Items interface {
	// Item returns one item to buy by, or catalog.ErrItemNotFound.
	Item(ctx context.Context, id string) (catalog.Item, error)
	// View returns one item to show, or catalog.ErrItemNotFound.
	View(ctx context.Context, id string) (*catalog.View, error)
	// List returns all items to show.
	List(ctx context.Context) (*catalog.ListView, error)
	// Warm loads an item and its sale into memory and Redis, everywhere.
	Warm(ctx context.Context, id string) (*catalog.View, error)
}

// Sales is what an admin does to a sale.
type Sales interface {
	// CreateItem opens a sale, or returns order.ErrItemExists.
	CreateItem(ctx context.Context, n order.NewItem) (catalog.Item, error)
	// Ledger returns the item's conservation equation, or catalog.ErrItemNotFound.
	Ledger(ctx context.Context, item string) (order.Ledger, error)
}

// Changes is what an admin does to an item while it is on sale. Errors: those
// of order.Service's methods.
type Changes interface {
	// Item returns the item as it is now, and not from memory.
	Item(ctx context.Context, id string) (catalog.Item, error)
	ChangeItem(ctx context.Context, id string, c order.ItemChange, by order.By) (catalog.Item, error)
	ControlItem(ctx context.Context, id string, c order.ItemControl, by order.By) (catalog.Item, error)
	// Restock also tells whether it was made by an earlier request with its key.
	Restock(ctx context.Context, id string, r order.Restock, by order.By) (item catalog.Item, replayed bool, err error)
}

// Trail tells who changed what.
type Trail interface {
	// Audit returns a page of the audit, newest first, and whether more follow.
	Audit(ctx context.Context, f order.AuditFilter) (entries []order.AuditEntry, more bool, err error)
}

// Identity is who sends a request.
type Identity = auth.Identity

// Verifier tells who a bearer token speaks for; its errors are those of
// package auth.
type Verifier interface {
	Verify(token string) (Identity, error)
}

// Config is what the edge needs. Orders, Items, Sales, Changes, Trail and
// Verifier are required; every other field works at its zero value.
type Config struct {
	Orders   Orders
	Items    Items
	Sales    Sales
	Changes  Changes
	Trail    Trail
	Verifier Verifier

	// Tasks shows operators the task queues. Default nil: their routes do not
	// exist.
	Tasks Tasks

	// Reconciler answers POST /v1/admin/reconcile. Default nil: the route does not exist.
	Reconciler Reconciler

	// Money answers the admin's routes for payments and refunds. Default nil: the
	// routes do not exist, and no order shows its payments.
	Money Money

	// Webhooks administrates webhooks. Default nil: the routes do not exist.
	Webhooks Webhooks

	// Ready lists the parts that /readyz asks. Default none: always ready.
	Ready []Check
	// Workers is shown by /readyz, which stays 200 without any, and by
	// GET /v1/admin/queue. Default nil: nothing is said about workers.
	Workers Workers

	// DevTokens signs tokens for POST /dev/tokens. Default nil: the route
	// does not exist. Set it in development mode only.
	DevTokens func(sub, role string, ttl time.Duration) (string, error)

	// RateBuyer is the number of requests per second that one buyer may send.
	// Default 20; negative: no limit.
	RateBuyer float64
	// BurstBuyer is how many of them may come at once. Default: twice RateBuyer.
	BurstBuyer int
	// RateAddress is the number of requests per second from one client
	// address (IPv6: one /64 network), with bursts of twice that. Default 0: no limit.
	RateAddress float64
	// TrustedProxies lists the addresses and networks whose X-Forwarded-For
	// is believed. Default none: the peer of the connection is the client.
	TrustedProxies []string

	// MaxInFlight bounds the purchases that are being answered at one time;
	// one more gets 503. Default 50,000; negative: no bound.
	MaxInFlight int64
	// Admission refuses purchases for which the orders that wait leave no room.
	// Default nil: none is refused for that before the purchase script does.
	Admission Admission
	// DefaultWait is how long a purchase waits for its commit when the client
	// states no preference. Default 2 s; negative: not at all.
	DefaultWait time.Duration
	// MaxWait is the longest wait that a client may ask for. Default 10 s.
	MaxWait time.Duration

	// Buyers exports and erases buyers' data for /v1/admin/buyers/{user}. Default
	// nil: the routes do not exist.
	Buyers Buyers

	// Streams configures event streams.
	Streams Streams

	// CursorKey authenticates the cursors of lists. Processes that serve the
	// same clients need the same key. Default: a fixed key, which still finds
	// damage but not intent.
	CursorKey []byte

	// Log receives failures at error level and requests at debug level.
	// Default: nothing is logged.
	Log zerolog.Logger
	// Registerer receives the metrics. Default: they are not registered.
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// ItemNow is the time by which an item's sale opens and closes: that of its
	// purchases. Default: Now.
	ItemNow func(item string) time.Time
}

// withDefaults fills in the defaults and checks the rest.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Orders == nil:
		return c, errors.New("handler: Config.Orders is missing")
	case c.Items == nil:
		return c, errors.New("handler: Config.Items is missing")
	case c.Sales == nil:
		return c, errors.New("handler: Config.Sales is missing")
	case c.Changes == nil:
		return c, errors.New("handler: Config.Changes is missing")
	case c.Trail == nil:
		return c, errors.New("handler: Config.Trail is missing")
	case c.Verifier == nil:
		return c, errors.New("handler: Config.Verifier is missing")
	case c.RateAddress < 0:
		return c, fmt.Errorf("handler: Config.RateAddress is %g; it must be 0 (no limit) or more", c.RateAddress)
	case c.BurstBuyer < 0:
		return c, fmt.Errorf("handler: Config.BurstBuyer is %d; it must be 0 (twice the rate) or more", c.BurstBuyer)
	case c.MaxWait < 0:
		return c, fmt.Errorf("handler: Config.MaxWait is %s; it must not be negative", c.MaxWait)
	}
	if c.RateBuyer == 0 {
		c.RateBuyer = 20
	}
	if c.BurstBuyer == 0 {
		c.BurstBuyer = twice(c.RateBuyer)
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 50_000
	}
	if c.MaxWait == 0 {
		c.MaxWait = 10 * time.Second
	}
	if c.DefaultWait == 0 {
		c.DefaultWait = 2 * time.Second
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{
		{"Heartbeat", &c.Streams.Heartbeat, 15 * time.Second},
		{"Life", &c.Streams.Life, 30 * time.Minute},
		{"Stall", &c.Streams.Stall, 10 * time.Second},
	} {
		if *d.value < 0 {
			return c, fmt.Errorf("handler: Config.Streams.%s is %s; it must not be negative", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	c.DefaultWait = min(max(c.DefaultWait, 0), c.MaxWait)
	if len(c.CursorKey) == 0 {
		c.CursorKey = []byte("flashsale list cursor")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.ItemNow == nil {
		c.ItemNow = func(string) time.Time { return c.Now() }
	}
	return c, nil
}

// twice returns the burst that goes with a rate: at least one request.
func twice(rate float64) int { return max(1, int(2*rate)) }

// edge is the state behind the routes.
type edge struct {
	Config
	refusals   zerolog.Logger // Log for what may come in floods
	requestIDs requestIDs
	buyers     *limiter // nil: no limit
	addresses  *limiter // nil: no limit
	metrics    *metrics
	inFlight   atomic.Int64
	calls      sync.Pool
}

// New returns the public routes. Serve them with NewServer.
func New(c Config) (http.Handler, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &edge{
		Config:     c,
		refusals:   c.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second}),
		requestIDs: newRequestIDs(),
		calls:      sync.Pool{New: func() any { return newCall() }},
	}
	if c.RateBuyer > 0 {
		e.buyers = newLimiter(c.RateBuyer, c.BurstBuyer)
	}
	if c.RateAddress > 0 {
		e.addresses = newLimiter(c.RateAddress, twice(c.RateAddress))
	}
	if e.metrics, err = newMetrics(c.Registerer); err != nil {
		return nil, err
	}
	return e.newRouter(newFeatures(&c, e.metrics, e.refusals).routes())
}
