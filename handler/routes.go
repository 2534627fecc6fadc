package handler

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"flashsale/catalog"
	"flashsale/handler/auth"
)

// route is an entry of the table from which the router, the access policy, the
// checks before a handler and the 405 responses are made. The checks run in the
// order of the fields, but the Content-Type is checked before Accept.
type route struct {
	// Method is the HTTP method. GET includes HEAD.
	Method string
	// Path is the path. A segment ":name" is a parameter, checked as pathParams says.
	Path string
	// Absent: the process lacks what the route needs, so the route does not exist.
	Absent bool

	// Gated: requests pass admission control before their token is read.
	Gated bool
	// Loopback: the Host header must name this machine.
	Loopback bool
	// Roles are those that may use the route. Empty: anyone, and no token is read.
	Roles []auth.Role
	// Rate says which requests count against the rate limit of a buyer.
	Rate rateCheck
	// Produces is what the Accept header must allow. Nil: the header is ignored.
	Produces *media
	// Query lists the query parameters, each sent at most once; others are refused.
	// Nil: the query is ignored.
	Query []string
	// AdminQuery lists further query parameters, which only admins may send.
	AdminQuery []string
	// Match says whether If-Match is read.
	Match matchCheck
	// Keyed: the route requires an Idempotency-Key, so repeating a request is safe.
	Keyed bool
	// Body says what the body must be.
	Body bodyCheck
	// MaxBody bounds the body, in bytes.
	MaxBody int

	// Cache says what the response tells caches.
	Cache cachePolicy
	// Handle answers a request that passed the checks.
	Handle endpoint
}

// endpoint answers one request: it writes the answer and returns nil, or
// returns the error that the error table turns into one.
type endpoint func(q *call) error

type rateCheck int

const (
	// rateNone: the requests do not count.
	rateNone rateCheck = iota
	// rateAll: malformed requests count as well. A client that sends many is no
	// better than one that buys too fast.
	rateAll
	// rateValid: requests count whose path and headers are valid.
	rateValid
)

type matchCheck int

const (
	matchIgnored matchCheck = iota
	matchOptional
	matchRequired
)

type bodyCheck int

const (
	// bodyIgnored: the body is not read.
	bodyIgnored bodyCheck = iota
	// bodyEmpty: there is no body, or an object without members.
	bodyEmpty
	// bodyJSON: the body is application/json, and the handler decodes it.
	bodyJSON
)

type cachePolicy int

const (
	// cacheUnstated: the response does not mention caches.
	cacheUnstated cachePolicy = iota
	// cachePrivate: a success must not be stored.
	cachePrivate
	// cacheNever: neither must a refusal, unless the handler says otherwise. A cache
	// may keep a 404 for as long as it likes, and would hide an item that is created
	// meanwhile.
	cacheNever
)

// pathParam is how a path parameter is checked.
type pathParam struct {
	valid   func(string) bool
	refusal *problem
}

// pathParams are the path parameters of all routes.
var pathParams = map[string]pathParam{
	"item":    {catalog.ValidID, problemItemID},
	"order":   {validOrderID, problemOrderID},
	"user":    {auth.ValidSubject, problemUserID},
	"payment": {validPaymentID, problemPaymentID},
	"task":    {validTaskID, problemTaskID},
	"webhook": {validEndpointID, problemWebhookID},
	"event":   {validEventID, problemEventID},
}

// params are the parameters in the route's path, from left to right.
func (r *route) params() []string {
	var names []string
	for segment := range strings.SplitSeq(r.Path, "/") {
		if name, ok := strings.CutPrefix(segment, ":"); ok {
			names = append(names, name)
		}
	}
	return names
}

var (
	buyers    = []auth.Role{auth.RoleBuyer}
	admins    = []auth.Role{auth.RoleAdmin}
	services  = []auth.Role{auth.RoleService}
	customers = []auth.Role{auth.RoleBuyer, auth.RoleAdmin}
	everyRole = []auth.Role{auth.RoleBuyer, auth.RoleAdmin, auth.RoleService}

	noQuery   = []string{}
	pageQuery = []string{"limit", "cursor"}
)

// routes is everything that the public address answers.
func (e *edge) routes() []route {
	all := e.publicRoutes()
	all = append(all, e.adminItemRoutes()...)
	all = append(all, e.adminRoutes()...)
	return append(all, e.webhookRoutes()...)
}

// publicRoutes are the routes of buyers and of the shop's backend.
func (e *edge) publicRoutes() []route {
	return []route{
		{Method: http.MethodGet, Path: "/healthz", Handle: e.health},
		{Method: http.MethodGet, Path: "/readyz", Cache: cacheNever, Handle: e.ready},
		{Method: http.MethodGet, Path: "/docs", Produces: &mediaHTML, Handle: e.showDocs},
		{Method: http.MethodPost, Path: "/dev/tokens", Absent: e.DevTokens == nil, Loopback: true,
			Body: bodyJSON, MaxBody: maxSmallBody, Cache: cachePrivate, Handle: e.devToken},

		{Method: http.MethodGet, Path: "/v1/items", Produces: &mediaJSON, Query: pageQuery,
			Cache: cacheNever, Handle: e.listItems},
		{Method: http.MethodGet, Path: "/v1/items/:item", Produces: &mediaJSON,
			Cache: cacheNever, Handle: e.getItem},
		{Method: http.MethodPost, Path: "/v1/items/:item/orders", Gated: true, Roles: buyers, Rate: rateAll,
			Produces: &mediaJSON, Keyed: true, Body: bodyJSON, MaxBody: maxSmallBody, Handle: e.purchase},

		{Method: http.MethodGet, Path: "/v1/orders", Roles: customers, Rate: rateValid, Produces: &mediaJSON,
			Query: pageQuery, AdminQuery: []string{"user_id", "item_id", "status"},
			Cache: cachePrivate, Handle: e.listOrders},
		{Method: http.MethodGet, Path: "/v1/orders/:order", Roles: everyRole, Rate: rateValid, Produces: &mediaJSON,
			Cache: cachePrivate, Handle: e.getOrder},
		{Method: http.MethodGet, Path: "/v1/orders/:order/events", Absent: e.Feed == nil, Roles: everyRole,
			Rate: rateValid, Produces: &mediaEvents, Handle: e.orderEvents},
		{Method: http.MethodPost, Path: "/v1/orders/:order/cancel", Roles: customers, Rate: rateValid,
			Produces: &mediaJSON, Body: bodyEmpty, MaxBody: maxSmallBody, Cache: cachePrivate, Handle: e.cancelOrder},
		{Method: http.MethodPost, Path: "/v1/orders/:order/payment", Roles: services,
			Produces: &mediaJSON, Body: bodyJSON, MaxBody: maxSmallBody, Cache: cachePrivate, Handle: e.payOrder},
	}
}

// adminItemRoutes are the admin's routes for items.
func (e *edge) adminItemRoutes() []route {
	const one = "/v1/admin/items/:item"
	control := func(name string, to catalog.Control) route {
		return route{Method: http.MethodPost, Path: one + name, Roles: admins, Produces: &mediaJSON, Query: noQuery,
			Match: matchOptional, Body: bodyEmpty, MaxBody: maxSmallBody, Cache: cachePrivate, Handle: e.control(to)}
	}
	return []route{
		{Method: http.MethodPost, Path: "/v1/admin/items", Roles: admins, Produces: &mediaJSON,
			Body: bodyJSON, MaxBody: maxAdminBody, Cache: cachePrivate, Handle: e.createItem},
		{Method: http.MethodGet, Path: one, Roles: admins, Produces: &mediaJSON,
			Cache: cachePrivate, Handle: e.adminItem},
		{Method: http.MethodPatch, Path: one, Roles: admins, Produces: &mediaJSON, Query: noQuery,
			Match: matchRequired, Body: bodyJSON, MaxBody: maxAdminBody, Cache: cachePrivate, Handle: e.changeItem},
		{Method: http.MethodPost, Path: one + "/restock", Roles: admins, Produces: &mediaJSON, Query: noQuery,
			Match: matchOptional, Keyed: true, Body: bodyJSON, MaxBody: maxSmallBody, Cache: cachePrivate, Handle: e.restock},
		control("/pause", catalog.ControlPaused),
		control("/resume", catalog.ControlOpen),
		control("/close", catalog.ControlClosed),
		{Method: http.MethodGet, Path: one + "/ledger", Roles: admins, Produces: &mediaJSON,
			Cache: cachePrivate, Handle: e.ledger},
		{Method: http.MethodPost, Path: one + "/warm", Roles: admins, Produces: &mediaJSON,
			Cache: cachePrivate, Handle: e.warmItem},
	}
}

// adminRoutes are the admin's routes for queues, buyers, payments and records.
func (e *edge) adminRoutes() []route {
	const dead, buyer = "/v1/admin/dead", "/v1/admin/buyers/:user"
	fate := func(name string, decide endpoint) route {
		return route{Method: http.MethodPost, Path: dead + "/:task" + name, Absent: e.Tasks == nil, Roles: admins,
			Produces: &mediaJSON, Body: bodyEmpty, MaxBody: maxSmallBody, Cache: cachePrivate, Handle: decide}
	}
	return []route{
		{Method: http.MethodGet, Path: "/v1/admin/queue", Absent: e.Tasks == nil, Roles: admins,
			Produces: &mediaJSON, Query: noQuery, Cache: cachePrivate, Handle: e.queueDepths},
		{Method: http.MethodPost, Path: "/v1/admin/queue/verify", Absent: e.Tasks == nil, Roles: admins,
			Produces: &mediaJSON, Query: []string{"repair"}, Body: bodyEmpty, MaxBody: maxSmallBody,
			Cache: cachePrivate, Handle: e.verifyQueues},
		{Method: http.MethodGet, Path: dead, Absent: e.Tasks == nil, Roles: admins,
			Produces: &mediaJSON, Query: pageQuery, Cache: cachePrivate, Handle: e.deadLetters},
		fate("/retry", e.fate(TaskFates.Retry, "ready")),
		fate("/discard", e.fate(TaskFates.Discard, "discarded")),

		{Method: http.MethodGet, Path: buyer, Absent: e.Buyers == nil, Roles: admins,
			Produces: &mediaJSON, Cache: cachePrivate, Handle: e.exportBuyer},
		{Method: http.MethodPost, Path: buyer + "/erase", Absent: e.Buyers == nil, Roles: admins,
			Produces: &mediaJSON, Query: noQuery, Body: bodyJSON, MaxBody: maxAdminBody,
			Cache: cachePrivate, Handle: e.eraseBuyer},

		{Method: http.MethodGet, Path: "/v1/admin/audit", Roles: admins, Produces: &mediaJSON,
			Query: []string{"limit", "cursor", "item_id", "order_id"}, Cache: cachePrivate, Handle: e.audit},
		{Method: http.MethodPost, Path: "/v1/admin/reconcile", Absent: e.Reconciler == nil, Roles: admins,
			Produces: &mediaJSON, Query: []string{"repair", "item_id", "deep"}, Body: bodyEmpty, MaxBody: maxSmallBody,
			Cache: cachePrivate, Handle: e.reconcile},

		{Method: http.MethodGet, Path: "/v1/admin/payments", Absent: e.Money == nil, Roles: admins, Produces: &mediaJSON,
			Query: []string{"outcome", "needs_refund", "limit", "cursor"}, Cache: cachePrivate, Handle: e.listPayments},
		{Method: http.MethodPost, Path: "/v1/admin/payments/:payment/refunded", Absent: e.Money == nil, Roles: admins,
			Produces: &mediaJSON, Query: noQuery, Body: bodyEmpty, MaxBody: maxSmallBody,
			Cache: cachePrivate, Handle: e.markRefunded},
		{Method: http.MethodPost, Path: "/v1/admin/orders/:order/refund", Absent: e.Money == nil, Roles: admins,
			Produces: &mediaJSON, Query: noQuery, Body: bodyJSON, MaxBody: maxAdminBody,
			Cache: cachePrivate, Handle: e.refundOrder},
	}
}

// webhookRoutes are the admin's routes for webhooks.
func (e *edge) webhookRoutes() []route {
	const list, one = "/v1/admin/webhooks", "/v1/admin/webhooks/:webhook"
	all := []route{
		{Method: http.MethodGet, Path: list, Query: noQuery, Cache: cachePrivate, Handle: e.listWebhooks},
		{Method: http.MethodPost, Path: list, Body: bodyJSON, MaxBody: maxAdminBody, Cache: cachePrivate, Handle: e.createWebhook},
		{Method: http.MethodGet, Path: one, Cache: cachePrivate, Handle: e.getWebhook},
		{Method: http.MethodPatch, Path: one, Body: bodyJSON, MaxBody: maxAdminBody, Cache: cachePrivate, Handle: e.changeWebhook},
		{Method: http.MethodDelete, Path: one, Body: bodyEmpty, MaxBody: maxSmallBody, Handle: e.deleteWebhook},
		{Method: http.MethodPost, Path: one + "/rotate", Body: bodyEmpty, MaxBody: maxSmallBody, Cache: cachePrivate, Handle: e.rotateWebhook},
		{Method: http.MethodPost, Path: one + "/test", Body: bodyEmpty, MaxBody: maxSmallBody, Handle: e.testWebhook},
		{Method: http.MethodGet, Path: one + "/deliveries", Query: []string{"status", "limit", "cursor"},
			Cache: cachePrivate, Handle: e.listDeliveries},
		{Method: http.MethodPost, Path: one + "/deliveries/:event/redeliver", Body: bodyEmpty, MaxBody: maxSmallBody, Handle: e.redeliver},
	}
	for i := range all {
		all[i].Absent, all[i].Roles, all[i].Produces = e.Webhooks == nil, admins, &mediaJSON
	}
	return all
}

// newRouter makes the router of a table of routes.
func (e *edge) newRouter(table []route) (http.Handler, error) {
	r := plainRouter()
	if err := r.SetTrustedProxies(e.TrustedProxies); err != nil {
		return nil, fmt.Errorf("handler: Config.TrustedProxies: %w", err)
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
	r.NoRoute(e.serve(&route{Path: "none", Handle: func(*call) error { return problemNoRoute }}))
	r.NoMethod(e.serve(&route{Path: "none", Handle: func(*call) error { return problemMethod }}))
	return r, nil
}

// plainRouter returns a router that guesses nothing: no redirect, no cleaned-up
// path, and path values exactly as they were meant, an encoded slash included.
func plainRouter() *gin.Engine {
	// Otherwise Gin prints each route and warns of its defaults.
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.RedirectTrailingSlash = false
	r.RedirectFixedPath = false
	r.HandleMethodNotAllowed = true
	r.UseRawPath = true
	r.UnescapePathValues = true
	return r
}
