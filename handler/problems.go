package handler

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/strictjson"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/feed"
	"flashsale/order/items"
	"flashsale/order/privacy"
	"flashsale/order/store"
	"flashsale/order/webhooks"
	"flashsale/order/worker"
)

// errClientGone means that the client has disconnected before it could read the response.
var errClientGone = errors.New("handler: client gone")

// statusClientGone is the status in logs and metrics of a request whose client disconnected
// before the answer; it is never sent.
const statusClientGone = 499

// problem is a refusal in the form of RFC 9457. It is an error, so that an endpoint can return
// it.
type problem struct {
	status int
	code   string
	title  string
	detail string // names the field and the fix; never an internal text
	param  string // the field, parameter or header at fault; empty: none
	// retryAfter is in seconds; 0: none.
	retryAfter int64
	headers    []headerField
	// spread are copies with different times to retry; nil: all clients get the same.
	spread []*problem
	// forRead and forChange replace it on routes without an Idempotency-Key; nil if it does not
	// mention the key.
	forRead, forChange *problem

	// head is the body up to the request id, encoded once for a problem that does not vary.
	head []byte
}

type headerField struct {
	name  string
	value []string
}

func (p *problem) Error() string { return "handler: " + p.code }

// problemStatus has the statuses of all codes. It is complete once the package is initialized,
// and never changes after that.
var problemStatus = make(map[string]int)

// newProblem returns a new problem. It may only be called while the package is initialized;
// each code has one status, and a section in docs/problems.md.
func newProblem(status int, code, title, detail string) *problem {
	if known, ok := problemStatus[code]; ok && known != status {
		panic("handler: the code " + code + " has two statuses")
	}
	problemStatus[code] = status
	p := &problem{status: status, code: code, title: title, detail: detail}
	p.head = p.appendHead(nil)
	return p
}

// with returns a copy about one parameter.
func (p *problem) with(param, detail string) *problem {
	own := *p
	own.param, own.detail, own.spread = param, detail, nil
	own.head = own.appendHead(nil)
	return &own
}

// retry returns a copy with a Retry-After of the given seconds.
func (p *problem) retry(seconds int64) *problem {
	own := *p
	own.retryAfter, own.spread = max(1, seconds), nil
	own.headers = append(own.headers[:len(own.headers):len(own.headers)],
		headerField{"Retry-After", []string{strconv.FormatInt(own.retryAfter, 10)}})
	own.head = own.appendHead(nil)
	return &own
}

// among is retry for many clients: each gets its own time between the given seconds and twice
// as many.
func (p *problem) among(seconds int64) *problem {
	own := p.retry(seconds)
	for more := range seconds + 1 {
		own.spread = append(own.spread, p.retry(seconds+more))
	}
	return own
}

// one returns the problem for one client.
func (p *problem) one() *problem {
	if len(p.spread) == 0 {
		return p
	}
	return p.spread[rand.N(len(p.spread))]
}

// unkeyed returns a copy with other details for routes without an Idempotency-Key: one for
// reading requests, one for those that change something.
func (p *problem) unkeyed(read, change string) *problem {
	own := *p
	own.forRead, own.forChange = p.worded(read), p.worded(change)
	return &own
}

// worded returns a copy with another detail.
func (p *problem) worded(detail string) *problem {
	own := p.with(p.param, detail)
	for _, later := range p.spread {
		own.spread = append(own.spread, later.worded(detail))
	}
	return own
}

// unlessKeyed returns the problem for a request with the method, to a route with or without an
// Idempotency-Key.
func (p *problem) unlessKeyed(keyed bool, method string) *problem {
	switch {
	case keyed || p.forRead == nil:
		return p
	case method == http.MethodGet || method == http.MethodHead:
		return p.forRead
	default:
		return p.forChange
	}
}

// header returns a copy that sets one more header.
func (p *problem) header(name, value string) *problem {
	own := *p
	own.spread = nil
	own.headers = append(own.headers[:len(own.headers):len(own.headers)], headerField{name, []string{value}})
	return &own
}

func (p *problem) appendHead(b []byte) []byte {
	b = append(b, `{"type":"/docs#`...)
	b = append(b, p.code...)
	b = append(b, `","title":`...)
	b = appendString(b, p.title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(p.status), 10)
	b = append(b, `,"detail":`...)
	b = appendString(b, p.detail)
	b = append(b, `,"code":`...)
	b = appendString(b, p.code)
	if p.param != "" {
		b = append(b, `,"param":`...)
		b = appendString(b, p.param)
	}
	if p.retryAfter > 0 {
		b = append(b, `,"retry_after":`...)
		b = strconv.AppendInt(b, p.retryAfter, 10)
	}
	return append(b, `,"request_id":"`...)
}

// write sends a problem.
func (e *edge) write(q *call, p *problem) {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentProblem
	for _, f := range p.headers {
		h[f.name] = f.value
	}
	// A request id contains no character that JSON would escape.
	q.out = append(append(append(q.out[:0], p.head...), q.requestID()...), `"}`...)
	q.c.Writer.WriteHeader(p.status)
	if _, err := q.c.Writer.Write(q.out); err != nil {
		e.Log.Debug().Str("request_id", q.requestID()).Msg("client disconnected before the response")
	}
	if !q.gone {
		e.metrics.problem(p.code)
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
			e.write(q, problemUnavailable.unlessKeyed(q.route.Keyed, q.c.Request.Method).one())
		}
		e.Log.Debug().Str("request_id", q.requestID()).Err(err).Msg("client disconnected before the response")
		return
	}
	if p == nil {
		e.Log.Error().Str("request_id", q.requestID()).Str("method", q.c.Request.Method).
			Str("path", q.c.Request.URL.Path).Err(err).Msg("request failed")
		p = problemInternal
	}
	if p.status == http.StatusServiceUnavailable {
		e.refusals.Warn().Str("request_id", q.requestID()).Err(err).Msg("request refused")
	}
	e.write(q, p.unlessKeyed(q.route.Keyed, q.c.Request.Method).one())
}

// The refusals of this package itself.
var (
	problemNoRoute = newProblem(404, "route_not_found", "No such route",
		"Nothing is served at this path; the README lists the routes.")
	problemMethod = newProblem(405, "method_not_allowed", "Method not allowed",
		"The path does not support this method; the Allow header lists the methods it supports.")
	problemHeaderTooLarge = newProblem(431, "header_too_large", "Header too large",
		"The request line or the headers exceed 16 KiB; send a shorter path and query, or fewer and shorter headers.").header("Connection", "close")
	problemInternal = newProblem(500, "internal", "Internal error",
		"The service failed. Quote the request id when you report it.")
	problemTimeout = newProblem(408, "request_timeout", "Request timed out",
		"The body did not arrive in time; send it at once.").header("Connection", "close")
	problemBodyCut = newProblem(400, "body_incomplete", "Body incomplete",
		"The body ended before its announced length, or its chunks are malformed.").header("Connection", "close")
	problemHeaderDuplicate = newProblem(400, "header_duplicate", "Header sent twice",
		"A header that takes one value was sent more than once; send it once.")

	problemAuthMissing = unauthorized("auth_missing", "Authentication required",
		"Send a token: Authorization: Bearer <token>.", "")
	problemForbidden = newProblem(403, "forbidden", "Forbidden",
		"The token's role may not use this route.")

	problemRateLimited = newProblem(429, "rate_limited", "Too many requests",
		"You send more requests than allowed; retry after the seconds in Retry-After.")
	problemNotAcceptable = newProblem(406, "not_acceptable", "Not acceptable",
		"The response is application/json; allow it in the Accept header.").with("Accept",
		"The response is application/json; allow it in the Accept header.")
	problemEventsNotAcceptable = newProblem(406, "not_acceptable", "Not acceptable",
		"").with("Accept", "The response is text/event-stream; allow it in the Accept header.")
	problemDocsNotAcceptable = newProblem(406, "not_acceptable", "Not acceptable",
		"").with("Accept", "The response is text/html; allow it in the Accept header.")
	problemLastEventID = newProblem(400, "last_event_id_invalid", "Invalid last event id",
		"").with("Last-Event-ID", "Send the id of the last event that you received, or omit the header.")
	problemContentType = newProblem(415, "content_type", "Unsupported content type",
		"").with("Content-Type", "Send the body as Content-Type: application/json (UTF-8).")
	problemContentEncoding = newProblem(415, "content_encoding", "Unsupported content encoding",
		"").with("Content-Encoding", "Send the body uncompressed, without a Content-Encoding.")
	problemBodyTooLarge = newProblem(413, "body_too_large", "Body too large",
		"The body exceeds what this route takes; the purchase takes 4 KiB.")
	problemBodyMissing = newProblem(400, "body_missing", "Body missing",
		"The route needs a JSON object in the body.")

	problemJSONInvalid = newProblem(400, "json_invalid", "Invalid JSON",
		"The body is not one JSON object in valid UTF-8.")
	problemJSONTrailing = newProblem(400, "json_trailing", "Bytes after the JSON object",
		"The body continues after the JSON object; send only the object.")
	problemJSONDuplicate = newProblem(400, "json_duplicate_key", "Member named twice",
		"The JSON object names a member twice; name each once.")
	problemUnknownField = newProblem(400, "unknown_field", "Unknown field",
		"The body has a field that the route does not take.")
	problemFieldMissing = newProblem(400, "field_missing", "Field missing",
		"The body lacks a required field.")
	problemFieldType = newProblem(400, "field_type", "Wrong type of field",
		"A field of the body has the wrong type.")
	problemFieldRange = newProblem(422, "field_range", "Field out of range",
		"A field of the body is out of its range.")
	problemWindow = newProblem(422, "window_invalid", "Invalid sale window",
		"closes_at must be after opens_at; both are RFC 3339 times in the years 2000 to 2999.")
	problemQuantity = newProblem(422, "quantity_range", "Quantity out of range",
		"").with("quantity", "quantity must be at least 1 and at most the item's per_user_limit.")

	problemID = newProblem(400, "id_invalid", "Invalid id",
		"The id in the path is malformed.")
	problemItemID = problemID.with("item",
		"An item id has 1 to 64 characters of a-z, 0-9 and '-', and starts with a letter or digit.")
	problemWebhookID  = problemID.with("webhook", "A webhook's id is we_ and 32 hexadecimal digits in lower case.")
	problemEventID    = problemID.with("event", "An event's id is msg_ and 32 hexadecimal digits in lower case.")
	problemOrderID    = problemID.with("order", "An order id is a UUID in lower case.")
	problemPaymentID  = problemID.with("payment", "A payment's id is a whole number, 1 or more.")
	problemTaskID     = problemID.with("task", "A task id has 1 to 255 visible ASCII characters; GET /v1/admin/dead lists them.")
	problemUserID     = problemID.with("user", "A buyer's id has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")
	problemKeyMissing = newProblem(400, "idempotency_key_missing", "Idempotency key missing",
		"").with("Idempotency-Key", "Send an Idempotency-Key header: a new value for each purchase or restock, the same for a repeat.")
	problemKeyInvalid = newProblem(400, "idempotency_key_invalid", "Invalid idempotency key",
		"").with("Idempotency-Key", "An idempotency key has 1 to 255 visible ASCII characters.")
	problemLimit = newProblem(400, "limit_range", "Limit out of range",
		"").with("limit", "limit must be a whole number from 1 to 100.")
	problemCursor = newProblem(400, "cursor_invalid", "Invalid cursor",
		"").with("cursor", "Use the next_cursor of the previous page, unchanged and with the same filters.")
	problemParameter = newProblem(400, "parameter_invalid", "Invalid parameter",
		"A query parameter is malformed.")
	problemUnknownParameter = newProblem(400, "unknown_parameter", "Unknown parameter",
		"The route does not take this query parameter.")
	problemMatchMissing = newProblem(428, "version_required", "Version required",
		"").with("If-Match", "Send If-Match with the ETag of GET /v1/admin/items/{item}, so that no concurrent change is overwritten; or * to change any version.")
	problemMatchInvalid = newProblem(400, "if_match_invalid", "Invalid If-Match",
		"").with("If-Match", `If-Match is *, or entity tags such as "4" with commas between them.`)
	problemFieldFixed = newProblem(422, "field_fixed", "Field cannot change",
		"A field of the body is fixed when the item is created.")
	problemNotChanged = newProblem(503, "unavailable", "Change not made",
		"The change may not have been applied. Retry with the same Idempotency-Key; it is applied at most once.").among(1).
		unkeyed(detailRead, "The change may not have been applied. Read the item before you retry.")
	problemNotErased = newProblem(503, "unavailable", "Erasure not finished",
		"The erasure is incomplete. Repeat the request; it continues where it stopped.").among(1)
	problemNotReady = newProblem(503, "unavailable", "Not ready",
		"A required dependency is unavailable.").among(1)
)

// unauthorized returns a 401 with the required WWW-Authenticate header.
func unauthorized(code, title, detail, oauthError string) *problem {
	challenge := `Bearer realm="flashsale"`
	if oauthError != "" {
		challenge += `, error="` + oauthError + `", error_description="` + title + `"`
	}
	return newProblem(401, code, title, detail).header("Www-Authenticate", challenge)
}

// invalidToken returns the 401 for a token that was verified and refused.
func invalidToken(code, title, detail string) *problem {
	return unauthorized(code, title, detail, "invalid_token")
}

// The details of a 503 for requests without an Idempotency-Key.
const (
	detailRead   = "Temporarily unavailable. Retry after the seconds in Retry-After."
	detailChange = "Temporarily unavailable. The request may not have been applied; read the current state before you retry."
)

// The refusals for errors that carry additional data.
var (
	problemNotOpen = newProblem(409, "sale_not_open", "Sale not open",
		"The sale has not opened yet; Retry-After gives the seconds until it opens.")
	problemUnavailable = newProblem(503, "unavailable", "Unavailable",
		"Temporarily unavailable. Retry with the same Idempotency-Key; at most one order is created.").among(1).
		unkeyed(detailRead, detailChange)
)

// problemOverloaded refuses a purchase because of a lack of capacity; see overloadedFor.
var problemOverloaded = newProblem(503, "overloaded", "Overloaded",
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
	answer *problem
}{
	{inventory.ErrSoldOut, newProblem(409, "sold_out", "Sold out",
		"No units of this item are left.")},
	{inventory.ErrUserLimit, newProblem(409, "user_limit", "Limit per buyer reached",
		"With this order you would hold more units than the item's per_user_limit.")},
	{inventory.ErrClosed, newProblem(409, "sale_closed", "Sale closed",
		"The sale of this item has ended.")},
	{inventory.ErrPaused, newProblem(409, "sale_paused", "Sale paused",
		"The sale of this item is paused; try again later.")},
	{inventory.ErrKeyReused, newProblem(422, "idempotency_key_reused", "Idempotency key reused",
		"").with("Idempotency-Key", "The key was used for another purchase; use a new one, or repeat the first purchase unchanged.")},
	{inventory.ErrOverloaded, problemOverloaded.among(1).
		unkeyed("Too many orders are waiting. Retry after the seconds in Retry-After.",
			"Too many orders are waiting. The request may not have been applied; read the current state before you retry.")},
	{inventory.ErrStopped, newProblem(503, "sale_stopped", "Sale stopped",
		"The sale is stopped for a check of its records. Retry later with the same Idempotency-Key; at most one order is created.").among(stoppedRetry).
		unkeyed("The sale is stopped for a check of its records. Retry after the seconds in Retry-After.",
			"The sale is stopped for a check of its records, and nothing was changed. Retry after the seconds in Retry-After.")},
	{inventory.ErrRebuilding, newProblem(503, "rebuilding", "Rebuilding",
		"The sale's state is being restored. Retry with the same Idempotency-Key; at most one order is created.").among(1).
		unkeyed("The sale's state is being restored. Retry after the seconds in Retry-After.",
			"The sale's state is being restored. The request may not have been applied; read the current state before you retry.")},
	{inventory.ErrUnavailable, problemUnavailable},
	{order.ErrDatabase, problemUnavailable},
	{store.ErrTooManyLists, newProblem(503, "overloaded", "Overloaded",
		"Too many lists are being read. Retry after the seconds in Retry-After.").among(1)},
	{feed.ErrClosed, problemUnavailable},
	{feed.ErrTooManyStreams, newProblem(503, "overloaded", "Overloaded",
		"Too many streams are open; retry later or poll the order.").among(streamRetry)},
	{feed.ErrTooManyOwnStreams, newProblem(429, "rate_limited", "Too many streams",
		"You have too many streams open; close one first.").retry(streamRetry)},

	{catalog.ErrItemNotFound, newProblem(404, "item_not_found", "Item not found",
		"No item has this id.")},
	{order.ErrNotFound, newProblem(404, "order_not_found", "Order not found",
		"No order that you may see has this id.")},
	{order.ErrOrderFinal, newProblem(409, "order_final", "Order is final",
		"The order is in a final state and cannot change.")},
	{order.ErrOrderExpired, newProblem(409, "order_expired", "Order expired",
		"The order could no longer be paid. The payment is recorded; refund it.")},
	{order.ErrAmountMismatch, newProblem(409, "amount_mismatch", "Amount does not match",
		"").with("amount_minor", "amount_minor and currency must be the order's unit price times its quantity, in its currency. The payment is recorded; refund it.")},
	{order.ErrPaymentLimit, newProblem(409, "payment_limit", "Too many payments",
		"The order has 100 recorded payments; this one was not recorded. Refund it.")},
	{order.ErrPaymentNotFound, newProblem(404, "payment_not_found", "Payment not found",
		"No payment has this id; GET /v1/admin/payments lists them.")},
	{order.ErrPaymentAccepted, newProblem(409, "payment_accepted", "Payment has paid its order",
		"This payment has paid its order; refund the order: POST /v1/admin/orders/{order}/refund.")},
	{checkout.ErrNotPaid, newProblem(409, "order_not_paid", "Order is not paid",
		"Only a paid order can be refunded. Cancel an unpaid order; mark a payment that paid no order as refunded by its own id.")},
	{checkout.ErrRefundDiffers, newProblem(409, "order_final", "Order is final",
		"").with("restock", "The order was already refunded with the other value of restock, which cannot change.")},
	{order.ErrReferenceReused, newProblem(409, "payment_reference_reused", "Payment reference reused",
		"").with("reference", "The reference belongs to a payment that is recorded for another order, or for another amount. Nothing was recorded; use a separate reference for each payment.")},
	{worker.ErrTaskNotFound, newProblem(404, "task_not_found", "No such dead letter",
		"No dead letter has this id; GET /v1/admin/dead lists them.")},
	{privacy.ErrOrdersInFlight, newProblem(409, "orders_in_flight", "Orders in flight",
		"The buyer has orders in the queue. Retry after they are committed; retry or discard dead letters first.").retry(inFlightRetry)},
	{order.ErrVersion, newProblem(412, "version_conflict", "Item has changed",
		"").with("If-Match", "The item has changed since that version; read it again before you change it.")},
	{order.ErrWindow, problemWindow.with("closes_at", "closes_at must be after opens_at, also after the change.")},
	{order.ErrItemClosed, newProblem(409, "sale_closed", "Sale closed",
		"The sale of this item was closed, which is final; create another item.")},
	{items.ErrStockRange, problemFieldRange.with("quantity", "With this quantity the item's stock_total would be above 1,000,000,000.")},
	{inventory.ErrStockBelowSold, newProblem(409, "stock_below_sold", "Units are sold",
		"").with("quantity", "Quantity exceeds unsold stock, in-flight orders included.")},
	{items.ErrRestockReused, newProblem(422, "idempotency_key_reused", "Idempotency key reused",
		"").with("Idempotency-Key", "The key was used for another restock of this item; use a new one, or repeat the first restock unchanged.")},
	{order.ErrItemExists, newProblem(409, "item_exists", "Item exists",
		"").with("id", "An item with this id exists; choose another id.")},

	{webhooks.ErrEndpointNotFound, newProblem(404, "webhook_not_found", "Webhook not found",
		"No webhook has this id.")},
	{webhooks.ErrEndpointLimit, newProblem(409, "webhook_limit", "Too many webhooks",
		"There are 50 webhooks already; delete one first.")},
	{webhooks.ErrEndpointDisabled, newProblem(409, "webhook_disabled", "Webhook disabled",
		"The webhook is disabled and receives no events; enable it first.")},
	{webhooks.ErrDeliveryNotFound, newProblem(404, "delivery_not_found", "Delivery not found",
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

	{strictjson.ErrEmpty, problemBodyMissing},
	{strictjson.ErrSyntax, problemJSONInvalid},
	{strictjson.ErrTrailing, problemJSONTrailing},
	{strictjson.ErrDuplicate, problemJSONDuplicate},

	// A call of this package's dependencies timed out although the client did not.
	{context.DeadlineExceeded, problemUnavailable},
}

// lookUp returns the answer to an error, or nil for an unexpected one.
func lookUp(err error) *problem {
	if p, ok := err.(*problem); ok { //nolint:errorlint // the common case, unwrapped; the general one follows
		return p
	}
	for i := range errorTable {
		// Most refusals are not wrapped; unwrapping is only necessary for the others.
		if errorTable[i].err == err { //nolint:errorlint // as above
			return errorTable[i].answer
		}
	}
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var notOpen *inventory.NotOpenError
	if errors.As(err, &notOpen) {
		return problemNotOpen.retry(ceilSeconds(notOpen.In))
	}
	var quantity *inventory.QuantityError
	if errors.As(err, &quantity) {
		return problemQuantity.with("quantity",
			"quantity must be at least 1 and at most "+strconv.FormatInt(quantity.Limit, 10)+", the item's per_user_limit.")
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
