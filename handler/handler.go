// Package handler is the HTTP API of the service: the table of its routes, and what each of them
// does. It authenticates, limits rates, and converts results and errors to the answers of the
// API. The packages that it calls decide about purchases.
//
// A request passes through these packages and files:
//
//   - handler/server: bounds on time and size, and checks of the raw bytes that net/http does
//     not make.
//   - routes.go: the table of routes, from which the router is built.
//   - call.go: the state of one request, its log and its metrics (handler/metrics).
//   - admit.go: the checks in the route's entry, in the same order for all routes. Tokens are
//     verified by handler/auth, rates limited by handler/ratelimit, and headers, parameters and
//     bodies read by handler/request.
//   - purchase.go, items.go, orders.go, events.go, admin_*.go, webhooks.go: one type for each
//     group of routes. stream.go: the connections of event streams. cursors.go: where a page of a
//     list begins.
//   - shop.go, dashboard.go: the pages for buyers and admins. page.go: what all pages have in
//     common. session.go: their cookies.
//   - formats.go, with handler/encode: the answer. problems.go, with handler/problem: the
//     refusal that the error table has for an error.
//
// To add a route, write a method on the type of its group and add an entry to the
// table; list its errors in the error table and describe new codes in
// docs/problems.md. health.go and docs.go serve /healthz, /readyz and the API reference, whose page
// is in handler/apidocs. handler/ops is the operators' address.
//
// The packages below handler know nothing of its routes, and never import it.
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
	"flashsale/handler/metrics"
	"flashsale/handler/ops"
	"flashsale/handler/ratelimit"
	"flashsale/handler/request"
	"flashsale/internal/tracing"
	"flashsale/order"
	"flashsale/order/items"
)

// orderService has what the groups of routes use of orders.
type orderService interface {
	orderPlacer
	orderBook
	orderRefunder
	unitCounter
}

// itemCatalog returns the items on sale, from memory if possible.
type itemCatalog interface {
	// Item returns one item for a purchase, or catalog.ErrItemNotFound.
	Item(ctx context.Context, id string) (catalog.Item, error)
	// View returns one item for display, or catalog.ErrItemNotFound.
	View(ctx context.Context, id string) (*catalog.View, error)
	// List returns all items for display.
	List(ctx context.Context) (*catalog.ListView, error)
	// Warm loads an item and its sale into memory and Redis, in all processes.
	Warm(ctx context.Context, id string) (*catalog.View, error)
}

// itemService creates and changes items. Errors: those of items.Service's methods.
type itemService interface {
	// CreateItem opens a sale, or returns order.ErrItemExists.
	CreateItem(ctx context.Context, n order.NewItem) (catalog.Item, error)
	// Item returns the item's current state from the database.
	Item(ctx context.Context, id string) (catalog.Item, error)
	ChangeItem(ctx context.Context, id string, c items.Change, by order.By) (catalog.Item, error)
	ControlItem(ctx context.Context, id string, c items.Control, by order.By) (catalog.Item, error)
	// Restock also reports whether an earlier request with the same key made the change.
	Restock(ctx context.Context, id string, r items.Restock, by order.By) (item catalog.Item, replayed bool, err error)
}

// ledgerService reads the conservation equation of an item.
type ledgerService interface {
	// Ledger returns the item's conservation equation, or catalog.ErrItemNotFound.
	Ledger(ctx context.Context, item string) (order.Ledger, error)
}

// auditLog reads the audit log.
type auditLog interface {
	// Audit returns a page of the audit log, newest first, and whether more follow.
	Audit(ctx context.Context, f order.AuditFilter) (entries []order.AuditEntry, more bool, err error)
}

// Config configures the routes. The fields up to Verifier are required; every other field has
// a default.
type Config struct {
	// Orders places and reads orders: a *checkout.Service.
	Orders orderService
	// Items are the items on sale, from memory where possible: a *catalog.Catalog.
	Items itemCatalog
	// Sales creates and changes items: an *items.Service.
	Sales itemService
	// Ledgers reads ledgers: a *reconcile.Reconciler.
	Ledgers ledgerService
	// Payments lists received amounts: a *payments.Service.
	Payments paymentService
	// Buyers exports and erases personal data: a *privacy.Service.
	Buyers buyerService
	// Audit is the record of changes: a *store.Store.
	Audit    auditLog
	Verifier *auth.Verifier

	// Tasks manages the task queues. Default nil: its routes do not exist.
	Tasks taskService
	// Timelines gathers what is recorded about an order: a *timeline.Service. Default nil: its
	// route does not exist.
	Timelines timelineService
	// Reconciler answers POST /v1/admin/reconcile. Default nil: the route does not exist.
	Reconciler reconciler
	// System answers GET /v1/admin/system. Default nil: the route does not exist.
	System systemReader
	// Webhooks manages webhooks. Default nil: the routes do not exist.
	Webhooks Webhooks
	// DevTokens signs tokens for POST /dev/tokens. Default nil: the route does not exist. It
	// must only be set in development mode.
	DevTokens func(sub, role string, ttl time.Duration) (string, error)
	// Charge asks the payment provider to collect the price of an order. It returns once the
	// provider has accepted the request; the provider reports the payment later, through
	// POST /v1/orders/{order}/payment. A repeat for the same order is safe. Default nil: the
	// shop page has no pay button.
	Charge func(ctx context.Context, o order.Order) error

	// LoginURL is where buyers log in who open the shop page without a session: a page of the
	// shop that sets the cookie flashsale_buyer. Default empty: the shop page asks for a token.
	LoginURL string

	// Ready are the checks of /readyz. Default none: always ready.
	Ready []ops.Check
	// Workers is shown by /readyz, which stays 200 without any worker, and by GET
	// /v1/admin/queue. Default nil: workers are not shown.
	Workers workerStatus

	// Limits bounds the load that clients can cause.
	Limits Limits
	// Admission refuses purchases when too many orders are queued. Default nil: only
	// the purchase script refuses them.
	Admission admission
	// Streams configures event streams.
	Streams Streams
	// Purchases counts the answers to purchases for the live figures: a *figures.Counters.
	// Default nil: they are not counted.
	Purchases purchaseObserver

	// CursorKey authenticates the cursors of lists. Processes that serve the same clients need
	// the same key. Default: a fixed key, which detects damage but not manipulation.
	CursorKey []byte

	// Log receives failures at error level and requests at debug level.
	// Default: nothing is logged.
	Log zerolog.Logger
	// Registerer receives the metrics. Default: they are not registered.
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Process begins the request ids that this process generates. Default: a random name.
	Process string
	// Tracer samples purchases for traces. Default nil: none is sampled.
	Tracer *tracing.Tracer
	// ItemNow is the clock by which an item's sale opens and closes. Purchases use the same
	// clock. Default: Now.
	ItemNow func(item string) time.Time
}

// Limits bounds rates, concurrency and waits.
type Limits struct {
	// RateBuyer is the number of requests per second that one buyer may send.
	// Default 20; negative: no limit.
	RateBuyer float64
	// BurstBuyer is how many of them may come at once. Default: twice RateBuyer.
	BurstBuyer int
	// RateAddress is the number of requests per second from one client
	// address (IPv6: one /64 network), with bursts of twice that. Default 0: no limit.
	RateAddress float64
	// TrustedProxies lists the addresses and networks whose X-Forwarded-For header is trusted.
	// Default none: the peer of the connection is the client.
	TrustedProxies []string
	// InFlight bounds the concurrent purchases; further ones get 503. Default 50,000; negative:
	// no bound.
	InFlight int64
	// DefaultWait is how long a purchase waits for its commit when the client
	// states no preference. Default 2 s; negative: not at all.
	DefaultWait time.Duration
	// MaxWait is the longest wait that a client may ask for. Default 10 s.
	MaxWait time.Duration
}

// withDefaults sets the defaults and checks the other fields.
func (l Limits) withDefaults() (Limits, error) {
	switch {
	case l.RateAddress < 0:
		return l, fmt.Errorf("handler: Limits.RateAddress is %g; it must be 0 (no limit) or more", l.RateAddress)
	case l.BurstBuyer < 0:
		return l, fmt.Errorf("handler: Limits.BurstBuyer is %d; it must be 0 (twice the rate) or more", l.BurstBuyer)
	case l.MaxWait < 0:
		return l, fmt.Errorf("handler: Limits.MaxWait is %s; it must not be negative", l.MaxWait)
	}
	if l.RateBuyer == 0 {
		l.RateBuyer = 20
	}
	if l.BurstBuyer == 0 {
		l.BurstBuyer = twice(l.RateBuyer)
	}
	if l.InFlight == 0 {
		l.InFlight = 50_000
	}
	if l.MaxWait == 0 {
		l.MaxWait = 10 * time.Second
	}
	if l.DefaultWait == 0 {
		l.DefaultWait = 2 * time.Second
	}
	l.DefaultWait = min(max(l.DefaultWait, 0), l.MaxWait)
	return l, nil
}

// withDefaults sets the defaults and checks the other fields.
func (c Config) withDefaults() (_ Config, err error) {
	switch {
	case c.Orders == nil:
		return c, errors.New("handler: Config.Orders is missing")
	case c.Items == nil:
		return c, errors.New("handler: Config.Items is missing")
	case c.Sales == nil:
		return c, errors.New("handler: Config.Sales is missing")
	case c.Ledgers == nil:
		return c, errors.New("handler: Config.Ledgers is missing")
	case c.Payments == nil:
		return c, errors.New("handler: Config.Payments is missing")
	case c.Buyers == nil:
		return c, errors.New("handler: Config.Buyers is missing")
	case c.Audit == nil:
		return c, errors.New("handler: Config.Audit is missing")
	case c.Verifier == nil:
		return c, errors.New("handler: Config.Verifier is missing")
	}
	if c.Limits, err = c.Limits.withDefaults(); err != nil {
		return c, err
	}
	if c.Streams, err = c.Streams.withDefaults(); err != nil {
		return c, err
	}
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

// twice returns the burst for a rate: at least one request.
func twice(rate float64) int { return max(1, int(2*rate)) }

// edge is the shared state of the routes.
type edge struct {
	Config
	refusals   zerolog.Logger // Log, sampled, for events that clients can cause in large numbers
	requestIDs request.IDs
	buyers     *ratelimit.Limiter // nil: no limit
	addresses  *ratelimit.Limiter // nil: no limit
	metrics    *metrics.Metrics
	inFlight   atomic.Int64
	calls      sync.Pool
	made       atomic.Int64 // calls
}

// New returns the public routes. Serve them with server.New.
func New(c Config) (http.Handler, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &edge{
		Config:     c,
		refusals:   c.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second}),
		requestIDs: request.NewIDs(c.Process),
	}
	e.calls.New = func() any { return newCall(int(e.made.Add(1))) }
	if c.Limits.RateBuyer > 0 {
		e.buyers = ratelimit.New(c.Limits.RateBuyer, c.Limits.BurstBuyer)
	}
	if c.Limits.RateAddress > 0 {
		e.addresses = ratelimit.New(c.Limits.RateAddress, twice(c.Limits.RateAddress))
	}
	if e.metrics, err = metrics.New(c.Registerer); err != nil {
		return nil, err
	}
	return e.newRouter(newFeatures(&c, e.metrics, e.refusals).routes())
}
