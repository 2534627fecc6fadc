package handler

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/problem"
	"flashsale/handler/request"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/feed"
	"flashsale/order/figures"
	"flashsale/order/items"
	"flashsale/order/privacy"
	"flashsale/order/store/database"
	"flashsale/order/webhooks"
	"flashsale/order/worker"
)

// errClientGone means that the client has disconnected before it could read the response.
var errClientGone = errors.New("handler: client gone")

// statusClientGone is the status in logs and metrics of a request whose client disconnected
// before the answer; it is never sent.
const statusClientGone = 499

// write sends a problem.
func (e *edge) write(q *call, p *problem.Problem) {
	h := q.c.Writer.Header()
	p.SetHeaders(h)
	if m := q.c.Request.Method; m == http.MethodGet || m == http.MethodHead {
		// A cache may keep a 404 or a 405 for long without this, which would hide an item, an order or a
		// route that exists by then.
		h["Cache-Control"] = headerNoStore
	}
	var err error
	if q.route.Page && p.Status != http.StatusNotAcceptable { // that client reads no pages
		err = q.refusalPage(p)
	}
	if !q.c.Writer.Written() {
		q.out = p.AppendBody(q.out[:0], q.requestID()) // a valid id needs no escaping
		q.c.Writer.WriteHeader(p.Status)
		_, err = q.c.Writer.Write(q.out)
	}
	if err != nil {
		e.Log.Debug().Str("request_id", q.requestID()).Msg("client disconnected before the response")
	}
	if q.gone {
		return
	}
	e.metrics.Problem(p.Code)
	if q.route.Counted && e.Purchases != nil {
		e.Purchases.Refused(p.Code)
	}
	if q.trace != nil {
		q.trace.Refused(p.Code)
	}
}

// refuse converts an error to the answer in the error table.
func (e *edge) refuse(q *call, err error) {
	p := lookUp(err)
	if p == nil && (errors.Is(err, errClientGone) || q.ctx().Err() != nil) {
		// A client that has only closed its sending side can still read: it learns that the
		// outcome is unknown. In the metrics it counts as disconnected.
		q.gone = true
		if !q.c.Writer.Written() {
			e.write(q, problemUnavailable.For(q.route.Keyed, q.c.Request.Method).One())
		}
		e.Log.Debug().Str("request_id", q.requestID()).Err(err).Msg("client disconnected before the response")
		return
	}
	if p == nil {
		e.Log.Error().Str("request_id", q.requestID()).Str("method", q.c.Request.Method).
			Str("path", q.c.Request.URL.Path).Err(err).Msg("request failed")
		p = problemInternal
	}
	if p.Status == http.StatusServiceUnavailable {
		e.refusals.Warn().Str("request_id", q.requestID()).Err(err).Msg("request refused")
	}
	e.write(q, p.For(q.route.Keyed || q.showRefusal != nil, q.c.Request.Method).One())
}

// The refusals of this package itself.
var (
	problemNoRoute = problem.New(404, "route_not_found", "No such route",
		"Nothing is served at this path; GET /docs lists the routes.")
	problemMethod = problem.New(405, "method_not_allowed", "Method not allowed",
		"The path does not support this method; the Allow header lists the methods it supports.")
	problemInternal = problem.New(500, "internal", "Internal error",
		"The service failed. Quote the request id when you report it.")

	problemAuthMissing = unauthorized("auth_missing", "Authentication required",
		"Send a token: Authorization: Bearer <token>.", "")
	problemForbidden = problem.New(403, "forbidden", "Forbidden",
		"The token's role may not use this route.")
	problemNotLoopback = problemForbidden.With("Host",
		"Development mode signs tokens only for requests to this machine's own name; use localhost or 127.0.0.1 in the address.")

	problemLastEventID = problem.New(400, "last_event_id_invalid", "Invalid last event id",
		"").With("Last-Event-ID", "Send the id of the last event that you received, or omit the header.")

	problemWindow = problem.New(422, "window_invalid", "Invalid sale window",
		"closes_at must be after opens_at; both are RFC 3339 times in the years 2000 to 2999.")
	problemQuantity = problem.New(422, "quantity_range", "Quantity out of range",
		"").With("quantity", "quantity must be at least 1 and at most the item's per_user_limit.")

	problemID = problem.New(400, "id_invalid", "Invalid id",
		"The id in the path is malformed.")
	problemItemID = problemID.With("item",
		"An item id has 1 to 64 characters of a-z, 0-9 and '-', and starts with a letter or digit.")
	problemWebhookID  = problemID.With("webhook", "A webhook's id is we_ and 32 hexadecimal digits in lower case.")
	problemEventID    = problemID.With("event", "An event's id is msg_ and 32 hexadecimal digits in lower case.")
	problemOrderID    = problemID.With("order", "An order id is a UUID in lower case.")
	problemPaymentID  = problemID.With("payment", "A payment's id is a whole number, 1 or more.")
	problemTaskID     = problemID.With("task", "A task id has 1 to 255 visible ASCII characters; GET /v1/admin/dead lists them.")
	problemUserID     = problemID.With("user", "A buyer's id has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")
	problemFieldFixed = problem.New(422, "field_fixed", "Field cannot change",
		"A field of the body is fixed when the item is created.")
	problemNotChanged = problem.New(503, "unavailable", "Change not made",
		"The change may not have been applied. Retry with the same Idempotency-Key; it is applied at most once.").Among(1).
		Unkeyed(detailRead, "The change may not have been applied. Read the item before you retry.")
	problemNotErased = problem.New(503, "unavailable", "Erasure not finished",
		"The erasure is incomplete. Repeat the request; it continues where it stopped.").Among(1)
)

// unauthorized returns a 401 with the required WWW-Authenticate header.
func unauthorized(code, title, detail, oauthError string) *problem.Problem {
	challenge := `Bearer realm="flashsale"`
	if oauthError != "" {
		challenge += `, error="` + oauthError + `", error_description="` + title + `"`
	}
	return problem.New(401, code, title, detail).WithHeader("Www-Authenticate", challenge)
}

// invalidToken returns the 401 for a token that was verified and refused.
func invalidToken(code, title, detail string) *problem.Problem {
	return unauthorized(code, title, detail, "invalid_token")
}

// The details of a 503 for requests without an Idempotency-Key.
const (
	detailRead   = "Temporarily unavailable. Retry after the seconds in Retry-After."
	detailChange = "Temporarily unavailable. The request may not have been applied; read the current state before you retry."
)

// The refusals for errors that carry additional data.
var (
	problemNotOpen = problem.New(409, "sale_not_open", "Sale not open",
		"The sale has not opened yet; Retry-After gives the seconds until it opens.")
	problemUnavailable = problem.New(503, "unavailable", "Unavailable",
		"Temporarily unavailable. Retry with the same Idempotency-Key; at most one order is created.").Among(1).
		Unkeyed(detailRead, detailChange)
)

// problemOverloaded refuses a purchase because of a lack of capacity; see overloadedFor.
var problemOverloaded = problem.New(503, "overloaded", "Overloaded",
	"Too many purchases are waiting. Retry with the same Idempotency-Key.")

// inFlightRetry is the time after which orders in flight may have been committed, in seconds.
const inFlightRetry = 5

// stoppedRetry is the time after which purchases of a stopped sale may retry, in seconds: an
// operator must decide first.
const stoppedRetry = 30

// streamRetry is the time after which a client whose stream was refused may retry, in seconds.
const streamRetry = 5

// errorTable maps each known error to its answer. The first match counts.
var errorTable = []struct {
	err    error
	answer *problem.Problem
}{
	{inventory.ErrSoldOut, problem.New(409, "sold_out", "Sold out",
		"No units of this item are left.")},
	{inventory.ErrUserLimit, problem.New(409, "user_limit", "Limit per buyer reached",
		"With this order you would hold more units than the item's per_user_limit.")},
	{inventory.ErrClosed, problem.New(409, "sale_closed", "Sale closed",
		"The sale of this item has ended.")},
	{inventory.ErrPaused, problem.New(409, "sale_paused", "Sale paused",
		"The sale of this item is paused; try again later.")},
	{inventory.ErrKeyReused, problem.New(422, "idempotency_key_reused", "Idempotency key reused",
		"").With("Idempotency-Key", "The key was used for another purchase; use a new one, or repeat the first purchase unchanged.")},
	{inventory.ErrOverloaded, problemOverloaded.Among(1).
		Unkeyed("Too many orders are waiting. Retry after the seconds in Retry-After.",
			"Too many orders are waiting. The request may not have been applied; read the current state before you retry.")},
	{inventory.ErrStopped, problem.New(503, "sale_stopped", "Sale stopped",
		"The sale is stopped for a check of its records. Retry later with the same Idempotency-Key; at most one order is created.").Among(stoppedRetry).
		Unkeyed("The sale is stopped for a check of its records. Retry after the seconds in Retry-After.",
			"The sale is stopped for a check of its records, and nothing was changed. Retry after the seconds in Retry-After.")},
	{inventory.ErrRebuilding, problem.New(503, "rebuilding", "Rebuilding",
		"The sale's state is being restored. Retry with the same Idempotency-Key; at most one order is created.").Among(1).
		Unkeyed("The sale's state is being restored. Retry after the seconds in Retry-After.",
			"The sale's state is being restored. The request may not have been applied; read the current state before you retry.")},
	{inventory.ErrUnavailable, problemUnavailable},
	{database.ErrUnavailable, problemUnavailable},
	{database.ErrTooManyLists, problem.New(503, "overloaded", "Overloaded",
		"Too many lists are being read. Retry after the seconds in Retry-After.").Among(1)},
	{feed.ErrClosed, problemUnavailable},
	{feed.ErrTooManyStreams, problem.New(503, "overloaded", "Overloaded",
		"Too many streams are open; retry later or poll the order.").Among(streamRetry)},
	{figures.ErrClosed, problemUnavailable},
	{figures.ErrTooManyWatchers, problem.New(503, "overloaded", "Overloaded",
		"Too many streams of figures are open on this process; close one, or retry later.").Among(streamRetry)},
	{feed.ErrTooManyOwnStreams, problem.New(429, "rate_limited", "Too many streams",
		"You have too many streams open; close one first.").Retry(streamRetry)},

	{catalog.ErrItemNotFound, problem.New(404, "item_not_found", "Item not found",
		"No item has this id.")},
	{order.ErrNotFound, problem.New(404, "order_not_found", "Order not found",
		"No order that you may see has this id.")},
	{order.ErrPaidAlready, problem.New(409, "order_final", "Order is final",
		"Another payment has paid the order. This one is recorded; refund it.")},
	{order.ErrOrderFinal, problem.New(409, "order_final", "Order is final",
		"The order is in a final state and cannot change.")},
	{order.ErrOrderExpired, problem.New(409, "order_expired", "Order expired",
		"The order could no longer be paid. The payment is recorded; refund it.")},
	{order.ErrAmountMismatch, problem.New(409, "amount_mismatch", "Amount does not match",
		"").With("amount_minor", "amount_minor and currency must be the order's unit price times its quantity, in its currency. The payment is recorded; refund it.")},
	{order.ErrPaymentLimit, problem.New(409, "payment_limit", "Too many payments",
		"The order has 100 recorded payments; this one was not recorded. Refund it.")},
	{order.ErrPaymentNotFound, problem.New(404, "payment_not_found", "Payment not found",
		"No payment has this id; GET /v1/admin/payments lists them.")},
	{order.ErrPaymentAccepted, problem.New(409, "payment_accepted", "Payment has paid its order",
		"This payment has paid its order; refund the order: POST /v1/admin/orders/{order}/refund.")},
	{checkout.ErrNotPaid, problem.New(409, "order_not_paid", "Order is not paid",
		"Only a paid order can be refunded. Cancel an unpaid order; mark a payment that paid no order as refunded by its own id.")},
	{checkout.ErrRefundDiffers, problem.New(409, "order_final", "Order is final",
		"").With("restock", "The order was already refunded with the other value of restock, which cannot change.")},
	{order.ErrReferenceReused, problem.New(409, "payment_reference_reused", "Payment reference reused",
		"").With("reference", "The reference belongs to a payment that is recorded for another order, or for another amount. Nothing was recorded; use a separate reference for each payment.")},
	{worker.ErrTaskNotFound, problem.New(404, "task_not_found", "No such dead letter",
		"No dead letter has this id; GET /v1/admin/dead lists them.")},
	{privacy.ErrOrdersInFlight, problem.New(409, "orders_in_flight", "Orders in flight",
		"The buyer has orders in the queue. Retry after they are committed; retry or discard dead letters first.").Retry(inFlightRetry)},
	{order.ErrVersion, problem.New(412, "version_conflict", "Item has changed",
		"").With("If-Match", "The item has changed since that version; read it again before you change it.")},
	{order.ErrWindow, problemWindow.With("closes_at", "closes_at must be after opens_at, also after the change.")},
	{order.ErrItemClosed, problem.New(409, "sale_closed", "Sale closed",
		"The sale of this item was closed, which is final; create another item.")},
	{items.ErrStockRange, request.ErrFieldRange.With("quantity", "With this quantity the item's stock_total would be above 1,000,000,000.")},
	{inventory.ErrStockBelowSold, problem.New(409, "stock_below_sold", "Units are sold",
		"").With("quantity", "Quantity exceeds unsold stock, in-flight orders included.")},
	{items.ErrRestockReused, problem.New(422, "idempotency_key_reused", "Idempotency key reused",
		"").With("Idempotency-Key", "The key was used for another restock of this item; use a new one, or repeat the first restock unchanged.")},
	{order.ErrItemExists, problem.New(409, "item_exists", "Item exists",
		"").With("id", "An item with this id exists; choose another id.")},

	{webhooks.ErrEndpointNotFound, problem.New(404, "webhook_not_found", "Webhook not found",
		"No webhook has this id.")},
	{webhooks.ErrEndpointLimit, problem.New(409, "webhook_limit", "Too many webhooks",
		"There are 50 webhooks already; delete one first.")},
	{webhooks.ErrEndpointDisabled, problem.New(409, "webhook_disabled", "Webhook disabled",
		"The webhook is disabled and receives no events; enable it first.")},
	{webhooks.ErrDeliveryNotFound, problem.New(404, "delivery_not_found", "Delivery not found",
		"No delivery of this event to this webhook is on record. Deliveries are kept for a week.")},

	{auth.ErrMalformed, invalidToken("token_malformed", "Malformed token",
		"The bearer token is not a signed JWT of three parts.")},
	{auth.ErrAlgorithm, invalidToken("token_alg", "Algorithm refused",
		"The token is not signed with the algorithm of the service's key.")},
	{auth.ErrKey, invalidToken("token_key", "Unknown key",
		"The token names a key that the service does not know, or carries its own.")},
	{auth.ErrSignature, invalidToken("token_signature", "Invalid signature",
		"The token's signature does not match its content.")},
	{auth.ErrExpired, invalidToken("token_expired", "Token expired",
		"The token has expired; get a new one.")},
	{auth.ErrNotYetValid, invalidToken("token_not_yet_valid", "Token not yet valid",
		"The token is not valid yet; check the clock of its issuer.")},
	{auth.ErrClaims, invalidToken("token_claims", "Invalid claims",
		"The token needs a subject, a role (buyer, admin or service), aud and exp in the claims that the service is configured for, by default sub and role; exp, nbf and iat are seconds since 1970, at most in the year 9999.")},
	{auth.ErrAudience, invalidToken("token_audience", "Wrong audience",
		"The token's aud does not contain the audience of this service, which is flashsale unless configured otherwise.")},
	{auth.ErrIssuer, invalidToken("token_issuer", "Wrong issuer",
		"The token's iss is not the issuer that this service is configured for.")},
	{auth.ErrRole, invalidToken("token_role", "Role not granted by this key",
		"The key that signed the token may not grant the role that it claims; admins' tokens have a separate key.")},

	// A call of this package's dependencies timed out although the client did not.
	{context.DeadlineExceeded, problemUnavailable},
}

// lookUp returns the answer to an error, or nil for an unexpected one.
func lookUp(err error) *problem.Problem {
	if p, ok := err.(*problem.Problem); ok { //nolint:errorlint // the common case, unwrapped; the general one follows
		return p
	}
	for i := range errorTable {
		// Most refusals are not wrapped; unwrapping is only necessary for the others.
		if errorTable[i].err == err { //nolint:errorlint // as above
			return errorTable[i].answer
		}
	}
	var p *problem.Problem
	if errors.As(err, &p) {
		return p
	}
	var notOpen *inventory.NotOpenError
	if errors.As(err, &notOpen) {
		return problemNotOpen.Retry(ceilSeconds(notOpen.In))
	}
	var quantity *inventory.QuantityError
	if errors.As(err, &quantity) {
		return problemQuantity.With("quantity",
			"quantity must be at least 1 and at most "+strconv.FormatInt(quantity.Limit, 10)+", the item's per_user_limit.")
	}
	var more *order.BucketsError
	if errors.As(err, &more) {
		return request.ErrFieldRange.With("buckets", "Redis has orders of this item in at least "+strconv.Itoa(more.Buckets)+
			" buckets, from before the database was restored; create the item with the number of buckets that it had.")
	}
	for i := range errorTable {
		if errors.Is(err, errorTable[i].err) {
			return errorTable[i].answer
		}
	}
	return nil
}

// ceilSeconds rounds up, so that a client that waits that long is not early.
func ceilSeconds(d time.Duration) int64 {
	return int64((max(d, 0) + time.Second - 1) / time.Second)
}
