package handler

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"flashsale/catalog"
	"flashsale/handler/apidocs"
	"flashsale/handler/auth"
	"flashsale/handler/metrics"
	"flashsale/handler/ops"
	"flashsale/handler/pages"
	"flashsale/handler/problem"
	"flashsale/handler/request"
)

// route is an entry of the table that defines the router, the access policy, the checks before
// a handler and the 405 responses. admit runs the checks in the same order for all routes.
type route struct {
	// Method is the HTTP method. GET includes HEAD.
	Method string
	// Path is the path. A segment ":name" is a parameter with a check in pathParams.
	Path string
	// Absent: the route does not exist, because the process lacks what it needs.
	Absent bool

	// Gated: requests pass admission control before their token is read.
	Gated bool
	// Loopback: the Host header must name this machine.
	Loopback bool
	// Roles are the roles that may use the route. Empty: anyone, without a token.
	Roles []auth.Role
	// Rate selects the requests that count against the rate limit of a buyer.
	Rate rateCheck
	// Produces is the type that the Accept header must allow. Nil: the header is ignored.
	Produces *request.Media
	// Query lists the query parameters, each allowed once; others are refused. Nil: the query
	// is ignored.
	Query []string
	// AdminQuery lists further query parameters for admins only.
	AdminQuery []string
	// Match determines whether If-Match is read.
	Match matchCheck
	// Keyed: the route requires an Idempotency-Key, so repeating a request is safe.
	Keyed bool
	// Body is the required form of the body.
	Body bodyCheck
	// MaxBody bounds the body, in bytes.
	MaxBody int

	// Page: a browser shows the answer. Refusals are HTML pages, and a request without a valid
	// session is sent to the login form.
	Page bool
	// Counted: the answers are counted for the live figures.
	Counted bool
	// Private: no cache may store a success. None may store the refusal of a read, on any route.
	Private bool
	// Traced: a part of the requests is traced, if the process has a Tracer.
	Traced bool
	// Handle answers a request that passed the checks.
	Handle endpoint
}

// endpoint answers one request: it writes the answer and returns nil, or returns an error that
// the error table converts to an answer.
type endpoint func(q *call) error

// rateCheck selects the requests that count against the rate limit of a buyer.
type rateCheck int

const (
	// rateNone: the requests do not count.
	rateNone rateCheck = iota
	// rateAll: malformed requests count as well, because they cost as much.
	rateAll
	// rateValid: requests with a valid path and valid headers count.
	rateValid
)

// matchCheck determines whether a route reads If-Match.
type matchCheck int

const (
	matchIgnored matchCheck = iota
	// matchOptional: without the header, a change applies to any version.
	matchOptional
	matchRequired
)

// bodyCheck is the required form of a request's body.
type bodyCheck int

const (
	// bodyIgnored: the body is not read.
	bodyIgnored bodyCheck = iota
	// bodyEmpty: there is no body, or an object without members.
	bodyEmpty
	// bodyJSON: the body is application/json, and the handler decodes it.
	bodyJSON
	// bodyForm: the body is a form as browsers send it.
	bodyForm
)

// pathParam is a path parameter and its check.
type pathParam struct {
	name    string
	valid   func(string) bool
	refusal *problem.Problem
}

// pathParams are the path parameters of all routes.
var pathParams = []pathParam{
	{"item", catalog.ValidID, problemItemID},
	{"order", validOrderID, problemOrderID},
	{"user", auth.ValidSubject, problemUserID},
	{"payment", validPaymentID, problemPaymentID},
	{"task", validTaskID, problemTaskID},
	{"webhook", validEndpointID, problemWebhookID},
	{"event", validEventID, problemEventID},
	{"asset", apidocs.HasAsset, problemNoRoute},
	{"build", pages.IsBuild, problemNoRoute},
	{"file", pages.HasFile, problemNoRoute},
}

// params returns the parameters in the route's path. An unknown parameter is an error in the
// table.
func (r *route) params() []pathParam {
	var all []pathParam
	for segment := range strings.SplitSeq(r.Path, "/") {
		name, ok := strings.CutPrefix(segment, ":")
		if !ok {
			continue
		}
		i := slices.IndexFunc(pathParams, func(p pathParam) bool { return p.name == name })
		if i < 0 {
			panic("handler: the path " + r.Path + " has an unknown parameter")
		}
		all = append(all, pathParams[i])
	}
	return all
}

// The largest bodies, in bytes.
const (
	maxSmallBody = 4 << 10
	maxAdminBody = 16 << 10
)

var (
	buyers    = []auth.Role{auth.RoleBuyer}
	admins    = []auth.Role{auth.RoleAdmin}
	services  = []auth.Role{auth.RoleService}
	customers = []auth.Role{auth.RoleBuyer, auth.RoleAdmin}
	everyRole = []auth.Role{auth.RoleBuyer, auth.RoleAdmin, auth.RoleService}

	noQuery   = []string{}
	pageQuery = []string{"limit", "cursor"}
)

// features are the handlers of all routes. Each only has the dependencies that it needs.
type features struct {
	ready      *ops.Readiness
	docs       docsRoutes
	signToken  func(sub, role string, ttl time.Duration) (string, error)
	shop       shopRoutes
	dashboard  dashboardRoutes
	items      itemRoutes
	purchases  purchaseRoutes
	orders     orderRoutes
	streams    streamRoutes
	figures    figuresRoutes
	adminItems adminItemRoutes
	queues     queueRoutes
	buyers     buyerRoutes
	audit      auditRoutes
	reconcile  reconcileRoutes
	system     systemRoutes
	payments   paymentRoutes
	timelines  timelineRoutes
	webhooks   webhookRoutes
}

func newFeatures(c *Config, m *metrics.Metrics, refusals zerolog.Logger) *features {
	cursors := sealer{c.CursorKey}
	shared := streams{Streams: c.Streams, metrics: m, now: c.Now, log: c.Log}
	purchases := purchaseRoutes{items: c.Items, orders: c.Orders, admission: c.Admission, metrics: m,
		defaultWait: c.Limits.DefaultWait, maxWait: c.Limits.MaxWait}
	sessions := sessions{verifier: c.Verifier, signToken: c.DevTokens, loginURL: c.LoginURL, now: c.Now}
	return &features{
		ready:     ops.NewReadiness(c.Ready, c.Workers, c.Now, c.Log),
		docs:      docsRoutes{page: apidocs.New(c.DevTokens != nil)},
		signToken: c.DevTokens,
		shop: shopRoutes{sessions: sessions, items: c.Items, orders: c.Orders, units: c.Orders, purchases: purchases, cursors: cursors,
			now: c.Now, itemNow: c.ItemNow, charge: c.Charge, shared: new(pages.SharedPages)},
		dashboard:  dashboardRoutes{sessions: sessions},
		items:      itemRoutes{items: c.Items, cursors: cursors, now: c.Now, itemNow: c.ItemNow},
		purchases:  purchases,
		orders:     orderRoutes{items: c.Items, orders: c.Orders, payments: c.Payments, cursors: cursors, log: c.Log},
		streams:    streamRoutes{streams: shared, orders: c.Orders},
		figures:    figuresRoutes{streams: shared, items: c.Items},
		adminItems: adminItemRoutes{sales: c.Sales, ledgers: c.Ledgers, items: c.Items, cursors: cursors, itemNow: c.ItemNow},
		queues:     queueRoutes{tasks: c.Tasks, workers: c.Workers, log: c.Log},
		buyers:     buyerRoutes{buyers: c.Buyers, now: c.Now, log: c.Log},
		audit:      auditRoutes{log: c.Audit, cursors: cursors},
		system:     systemRoutes{reader: c.System},
		reconcile:  reconcileRoutes{reconciler: c.Reconciler, log: c.Log, refusals: refusals},
		payments:   paymentRoutes{payments: c.Payments, orders: c.Orders, cursors: cursors},
		timelines:  timelineRoutes{timelines: c.Timelines},
		webhooks:   webhookRoutes{webhooks: c.Webhooks, cursors: cursors},
	}
}

// routes are all routes of the public address.
func (f *features) routes() []route {
	all := f.publicTable()
	all = append(all, f.shopTable()...)
	all = append(all, f.dashboardTable()...)
	all = append(all, f.adminItemTable()...)
	all = append(all, f.adminTable()...)
	return append(all, f.webhookTable()...)
}

// publicTable has the routes of buyers and of the shop's backend.
func (f *features) publicTable() []route {
	return []route{
		{Method: http.MethodGet, Path: "/healthz", Handle: health},
		{Method: http.MethodGet, Path: "/readyz", Private: true, Handle: ready(f.ready)},
		{Method: http.MethodGet, Path: "/docs", Produces: request.MediaHTML, Handle: f.docs.show},
		{Method: http.MethodGet, Path: apidocs.Prefix + ":asset", Handle: f.docs.asset},
		{Method: http.MethodGet, Path: "/openapi.yaml", Produces: request.MediaYAML, Handle: f.docs.contract},
		{Method: http.MethodPost, Path: "/dev/tokens", Absent: f.signToken == nil, Loopback: true,
			Body: bodyJSON, MaxBody: maxSmallBody, Private: true, Handle: devToken(f.signToken)},

		{Method: http.MethodGet, Path: "/v1/items", Produces: request.MediaJSON, Query: pageQuery,
			Handle: f.items.list},
		{Method: http.MethodGet, Path: "/v1/items/:item", Produces: request.MediaJSON,
			Handle: f.items.get},
		{Method: http.MethodGet, Path: "/items/:item/image.svg", Handle: placeholderImage},
		{Method: http.MethodPost, Path: "/v1/items/:item/orders", Gated: true, Counted: true, Roles: buyers, Rate: rateAll,
			Produces: request.MediaJSON, Keyed: true, Body: bodyJSON, MaxBody: maxSmallBody, Traced: true, Handle: f.purchases.purchase},

		{Method: http.MethodGet, Path: "/v1/orders", Roles: customers, Rate: rateValid, Produces: request.MediaJSON,
			Query: pageQuery, AdminQuery: []string{"user_id", "item_id", "status"},
			Private: true, Handle: f.orders.list},
		{Method: http.MethodGet, Path: "/v1/orders/:order", Roles: everyRole, Rate: rateValid, Produces: request.MediaJSON,
			Private: true, Handle: f.orders.get},
		{Method: http.MethodGet, Path: "/v1/orders/:order/events", Absent: f.streams.Feed == nil, Roles: everyRole,
			Rate: rateValid, Produces: request.MediaEvents, Handle: f.streams.follow},
		{Method: http.MethodPost, Path: "/v1/orders/:order/cancel", Roles: customers, Rate: rateValid,
			Produces: request.MediaJSON, Body: bodyEmpty, MaxBody: maxSmallBody, Private: true, Handle: f.orders.cancel},
		{Method: http.MethodPost, Path: "/v1/orders/:order/payment", Roles: services,
			Produces: request.MediaJSON, Body: bodyJSON, MaxBody: maxSmallBody, Private: true, Handle: f.orders.pay},
	}
}

// adminItemTable has the routes of the admin for items.
func (f *features) adminItemTable() []route {
	const one = "/v1/admin/items/:item"
	control := func(name string, to catalog.Control) route {
		return route{Method: http.MethodPost, Path: one + name, Roles: admins, Produces: request.MediaJSON, Query: noQuery,
			Match: matchOptional, Body: bodyEmpty, MaxBody: maxSmallBody, Private: true, Handle: f.adminItems.control(to)}
	}
	return []route{
		{Method: http.MethodGet, Path: "/v1/admin/items", Roles: admins, Produces: request.MediaJSON,
			Query: []string{"state", "limit", "cursor"}, Private: true, Handle: f.adminItems.list},
		{Method: http.MethodPost, Path: "/v1/admin/items", Roles: admins, Produces: request.MediaJSON,
			Body: bodyJSON, MaxBody: maxAdminBody, Private: true, Handle: f.adminItems.create},
		{Method: http.MethodGet, Path: one, Roles: admins, Produces: request.MediaJSON,
			Private: true, Handle: f.adminItems.show},
		{Method: http.MethodPatch, Path: one, Roles: admins, Produces: request.MediaJSON, Query: noQuery,
			Match: matchRequired, Body: bodyJSON, MaxBody: maxAdminBody, Private: true, Handle: f.adminItems.change},
		{Method: http.MethodPost, Path: one + "/restock", Roles: admins, Produces: request.MediaJSON, Query: noQuery,
			Match: matchOptional, Keyed: true, Body: bodyJSON, MaxBody: maxSmallBody, Private: true, Handle: f.adminItems.restock},
		control("/pause", catalog.ControlPaused),
		control("/resume", catalog.ControlOpen),
		control("/close", catalog.ControlClosed),
		{Method: http.MethodGet, Path: one + "/ledger", Roles: admins, Produces: request.MediaJSON,
			Private: true, Handle: f.adminItems.ledger},
		{Method: http.MethodPost, Path: one + "/warm", Roles: admins, Produces: request.MediaJSON, Query: noQuery,
			Body: bodyEmpty, MaxBody: maxSmallBody, Private: true, Handle: f.adminItems.warm},
	}
}

// adminTable has the routes of the admin for queues, buyers, payments and records.
func (f *features) adminTable() []route {
	const dead, buyer = "/v1/admin/dead", "/v1/admin/buyers/:user"
	fate := func(name string, decide endpoint) route {
		return route{Method: http.MethodPost, Path: dead + "/:task" + name, Absent: f.queues.tasks == nil, Roles: admins,
			Produces: request.MediaJSON, Body: bodyEmpty, MaxBody: maxSmallBody, Private: true, Handle: decide}
	}
	many := func(name string, decide endpoint) route {
		return route{Method: http.MethodPost, Path: dead + name, Absent: f.queues.tasks == nil, Roles: admins,
			Produces: request.MediaJSON, Query: noQuery, Body: bodyJSON, MaxBody: maxSmallBody, Private: true, Handle: decide}
	}
	return []route{
		{Method: http.MethodGet, Path: "/v1/admin/queue", Absent: f.queues.tasks == nil, Roles: admins,
			Produces: request.MediaJSON, Query: noQuery, Private: true, Handle: f.queues.depths},
		{Method: http.MethodPost, Path: "/v1/admin/queue/verify", Absent: f.queues.tasks == nil, Roles: admins,
			Produces: request.MediaJSON, Query: []string{"repair"}, Body: bodyEmpty, MaxBody: maxSmallBody,
			Private: true, Handle: f.queues.verify},
		{Method: http.MethodGet, Path: dead, Absent: f.queues.tasks == nil, Roles: admins,
			Produces: request.MediaJSON, Query: []string{"limit", "cursor", "group"}, Private: true, Handle: f.queues.dead},
		{Method: http.MethodGet, Path: dead + "/groups", Absent: f.queues.tasks == nil, Roles: admins,
			Produces: request.MediaJSON, Query: noQuery, Private: true, Handle: f.queues.groups},
		{Method: http.MethodGet, Path: dead + "/:task/payload", Absent: f.queues.tasks == nil, Roles: admins,
			Produces: request.MediaJSON, Private: true, Handle: f.queues.letter},
		many("/retry", f.queues.decideMany(taskService.RetryMany, "ready")),
		many("/discard", f.queues.decideMany(taskService.DiscardMany, "discarded")),
		fate("/retry", f.queues.decide(taskService.Retry, "ready")),
		fate("/discard", f.queues.decide(taskService.Discard, "discarded")),

		{Method: http.MethodGet, Path: buyer, Roles: admins,
			Produces: request.MediaJSON, Private: true, Handle: f.buyers.export},
		{Method: http.MethodPost, Path: buyer + "/erase", Roles: admins,
			Produces: request.MediaJSON, Query: noQuery, Body: bodyJSON, MaxBody: maxAdminBody,
			Private: true, Handle: f.buyers.erase},

		{Method: http.MethodGet, Path: "/v1/admin/events", Absent: f.figures.Figures == nil, Roles: admins,
			Produces: request.MediaEvents, Query: []string{"item"}, Handle: f.figures.watch},
		{Method: http.MethodGet, Path: "/v1/admin/system", Absent: f.system.reader == nil, Roles: admins, Produces: request.MediaJSON,
			Query: noQuery, Private: true, Handle: f.system.show},
		{Method: http.MethodGet, Path: "/v1/admin/audit", Roles: admins, Produces: request.MediaJSON,
			Query: []string{"limit", "cursor", "item_id", "order_id"}, Private: true, Handle: f.audit.list},
		{Method: http.MethodPost, Path: "/v1/admin/reconcile", Absent: f.reconcile.reconciler == nil, Roles: admins,
			Produces: request.MediaJSON, Query: []string{"repair", "item_id", "deep"}, Body: bodyEmpty, MaxBody: maxSmallBody,
			Private: true, Handle: f.reconcile.reconcile},

		{Method: http.MethodGet, Path: "/v1/admin/payments", Roles: admins, Produces: request.MediaJSON,
			Query: []string{"outcome", "needs_refund", "reference", "limit", "cursor"}, Private: true, Handle: f.payments.list},
		{Method: http.MethodPost, Path: "/v1/admin/payments/:payment/refunded", Roles: admins,
			Produces: request.MediaJSON, Query: noQuery, Body: bodyEmpty, MaxBody: maxSmallBody,
			Private: true, Handle: f.payments.markRefunded},
		{Method: http.MethodPost, Path: "/v1/admin/orders/:order/refund", Roles: admins,
			Produces: request.MediaJSON, Query: noQuery, Body: bodyJSON, MaxBody: maxAdminBody,
			Private: true, Handle: f.payments.refund},
		{Method: http.MethodGet, Path: "/v1/admin/orders/:order/timeline", Absent: f.timelines.timelines == nil, Roles: admins,
			Produces: request.MediaJSON, Private: true, Handle: f.timelines.show},
	}
}

// webhookTable has the routes of the admin for webhooks.
func (f *features) webhookTable() []route {
	const list, one = "/v1/admin/webhooks", "/v1/admin/webhooks/:webhook"
	all := []route{
		{Method: http.MethodGet, Path: list, Query: noQuery, Private: true, Handle: f.webhooks.list},
		{Method: http.MethodPost, Path: list, Body: bodyJSON, MaxBody: maxAdminBody, Private: true, Handle: f.webhooks.create},
		{Method: http.MethodGet, Path: one, Private: true, Handle: f.webhooks.get},
		{Method: http.MethodPatch, Path: one, Body: bodyJSON, MaxBody: maxAdminBody, Private: true, Handle: f.webhooks.change},
		{Method: http.MethodDelete, Path: one, Body: bodyEmpty, MaxBody: maxSmallBody, Handle: f.webhooks.delete},
		{Method: http.MethodPost, Path: one + "/rotate", Body: bodyEmpty, MaxBody: maxSmallBody, Private: true, Handle: f.webhooks.rotate},
		{Method: http.MethodPost, Path: one + "/test", Body: bodyEmpty, MaxBody: maxSmallBody, Handle: f.webhooks.test},
		{Method: http.MethodGet, Path: one + "/deliveries", Query: []string{"status", "limit", "cursor"},
			Private: true, Handle: f.webhooks.deliveries},
		{Method: http.MethodPost, Path: one + "/deliveries/:event/redeliver", Body: bodyEmpty, MaxBody: maxSmallBody, Handle: f.webhooks.redeliver},
	}
	for i := range all {
		all[i].Absent, all[i].Roles, all[i].Produces = f.webhooks.webhooks == nil, admins, request.MediaJSON
	}
	return all
}

// newRouter builds the router from a table of routes.
func (e *edge) newRouter(table []route) (http.Handler, error) {
	r := plainRouter()
	if err := r.SetTrustedProxies(e.Limits.TrustedProxies); err != nil {
		return nil, fmt.Errorf("handler: Limits.TrustedProxies: %w", err)
	}
	for i := range table {
		entry := &table[i]
		if entry.Absent {
			continue
		}
		h := e.serve(entry)
		r.Handle(entry.Method, entry.Path, h)
		if entry.Method == http.MethodGet {
			r.HEAD(entry.Path, h)
		}
	}
	r.NoRoute(e.unserved(func(*call) error { return problemNoRoute }))
	r.NoMethod(e.unserved(func(q *call) error {
		if q.route.Page && q.c.Request.Method == http.MethodGet && formPath(q.c.Request.URL.Path) {
			return q.redirect(parentOf(q.c.Request.URL.EscapedPath())) // the address of a form's answer, opened again
		}
		return problemMethod
	}))
	return r, nil
}

// unserved answers requests without a route: browsers get a page.
func (e *edge) unserved(answer endpoint) gin.HandlerFunc {
	inJSON := e.serve(&route{Path: "none", Handle: answer})
	asPage := e.serve(&route{Path: "none", Page: true, Handle: answer})
	return func(c *gin.Context) {
		if strings.Contains(c.GetHeader("Accept"), "text/html") && !strings.HasPrefix(c.Request.URL.Path, "/v1/") {
			asPage(c)
			return
		}
		inJSON(c)
	}
}

// plainRouter returns a router without redirects and path cleaning, which passes path values
// exactly as sent, including an encoded slash.
func plainRouter() *gin.Engine {
	// Otherwise Gin prints each route and warns about its defaults.
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.RedirectTrailingSlash = false
	r.RedirectFixedPath = false
	r.HandleMethodNotAllowed = true
	r.UseRawPath = true
	r.UnescapePathValues = true
	// A trusted proxy sets X-Forwarded-For. Gin would also read X-Real-Ip, which a proxy may pass on
	// as its client wrote it.
	r.RemoteIPHeaders = []string{"X-Forwarded-For"}
	return r
}
