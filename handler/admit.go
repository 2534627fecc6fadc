package handler

import (
	"errors"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"flashsale/handler/auth"
	"flashsale/inventory"
)

// admit runs the checks of the request's route in their order.
func (e *edge) admit(q *call, params []pathParam) error {
	r, h := q.route, q.c.Request.Header
	if headersTooLarge(q.c.Request) {
		return problemHeaderTooLarge
	}
	if err := e.authorize(q); err != nil {
		return err
	}
	if r.Rate == rateAll {
		if err := e.limit(q); err != nil {
			return err
		}
	}
	for _, p := range params {
		if !p.valid(q.c.Param(p.name)) {
			return p.refusal
		}
	}
	if r.Body == bodyJSON {
		if err := checkContent(h); err != nil {
			return err
		}
	}
	if err := r.Produces.accepted(h); err != nil {
		return err
	}
	if r.Rate == rateValid {
		if err := e.limit(q); err != nil {
			return err
		}
	}
	return q.readInput(h)
}

// authorize checks the request's address, the load, and the token.
func (e *edge) authorize(q *call) error {
	r := q.route
	if e.addresses != nil {
		if err := e.addresses.allow(addressKey(q.c.ClientIP()), q.start); err != nil {
			return err
		}
	}
	if r.Gated {
		if err := e.gate(q); err != nil {
			return err
		}
	}
	if r.Loopback && !loopbackHost(q.c.Request.Host) {
		// The address is loopback, but a web page in a browser on this machine may use a host
		// name that its owner points there.
		return problemForbidden
	}
	if len(r.Roles) == 0 {
		return nil
	}
	id, err := e.authenticate(q.c.Request.Header)
	if err != nil {
		return err
	}
	q.identity = id
	if !slices.Contains(r.Roles, id.Role) {
		return problemForbidden
	}
	return nil
}

// readInput reads the route's input other than its path.
func (q *call) readInput(h http.Header) (err error) {
	r := q.route
	if r.Query != nil {
		if q.query, err = q.readQuery(); err != nil {
			return err
		}
	}
	if r.Match != matchIgnored {
		var stated bool
		if q.match, stated, err = ifMatch(h); err != nil {
			return err
		}
		if !stated && r.Match == matchRequired {
			return problemMatchMissing
		}
	}
	if r.Keyed {
		if q.key, err = idempotencyKey(h); err != nil {
			return err
		}
	}
	switch r.Body {
	case bodyJSON:
		return q.readBody(r.MaxBody)
	case bodyEmpty:
		return q.readNothing()
	default:
		return nil
	}
}

// limit counts the request against its buyer's rate. Admins and services have no limit, because
// the shop may send payments in bursts.
func (e *edge) limit(q *call) error {
	if e.buyers == nil || q.identity.Role != auth.RoleBuyer {
		return nil
	}
	return e.buyers.allow(q.identity.Subject, q.start)
}

// authenticate returns the identity of the sender. Tokens are only read from the Authorization
// header, because a query string would be logged.
func (e *edge) authenticate(h http.Header) (auth.Identity, error) {
	value, present, err := single(h, "Authorization")
	if err != nil {
		return auth.Identity{}, err
	}
	if !present {
		return auth.Identity{}, problemAuthMissing
	}
	const scheme = "Bearer"
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return auth.Identity{}, problemAuthMissing
	}
	token := value[len(scheme):]
	if token == "" {
		return auth.Identity{}, auth.ErrMalformed
	}
	if token[0] != ' ' {
		return auth.Identity{}, problemAuthMissing // another scheme with the same prefix
	}
	return e.Verifier.Verify(strings.TrimLeft(token, " "))
}

const (
	defaultTokenLife = time.Hour
	maxTokenLife     = 30 * 24 * time.Hour
)

// devToken answers POST /dev/tokens {"sub","role","ttl"?}, which only exists in development
// mode; ttl is a duration such as "90s" or "1h".
func devToken(sign func(sub, role string, ttl time.Duration) (string, error)) endpoint {
	return func(q *call) error {
		ttl := defaultTokenLife
		b := newFields(q.in)
		sub := b.text("sub", true)
		role := b.text("role", true)
		life := b.text("ttl", false)
		if err := b.done(); err != nil {
			return err
		}
		if !auth.ValidSubject(sub) {
			return problemFieldRange.with("sub", "sub has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")
		}
		if !auth.Role(role).Valid() {
			return problemFieldRange.with("role", "role is one of buyer, admin, service.")
		}
		if b.has("ttl") {
			var err error
			if ttl, err = time.ParseDuration(life); err != nil || ttl < time.Second || ttl > maxTokenLife {
				return problemFieldRange.with("ttl", `ttl is a duration from "1s" to "720h".`)
			}
		}
		token, err := sign(sub, role, ttl)
		if err != nil {
			return err
		}
		q.out = append(appendTextField(q.out[:0], `{"token":`, token), '}')
		return q.json(200)
	}
}

// loopbackHost reports whether a Host header names this machine.
func loopbackHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}

// admission is the admission control for purchases.
type admission interface {
	// Admit returns nil if a purchase of the item may be accepted. With inventory.ErrOverloaded
	// it returns the time after which a retry is useful. It must be very cheap.
	Admit(item string) (wait time.Duration, err error)
	// Late reports whether the item's orders are committed so late that a purchase should not
	// wait for its commit.
	Late(item string) bool
	// Wait estimates the time until the waiting orders are committed.
	Wait(item string) time.Duration
}

// gate admits purchases while there is capacity. It precedes all other checks, including the
// token's: refusing a purchase for lack of capacity should cost as little as possible.
func (e *edge) gate(q *call) error {
	if e.Limits.InFlight > 0 {
		q.counted = true
		if e.inFlight.Add(1) > e.Limits.InFlight {
			return overloadedFor(time.Second)
		}
	}
	if e.Admission != nil {
		switch wait, err := e.Admission.Admit(q.c.Param("item")); {
		case errors.Is(err, inventory.ErrOverloaded):
			return overloadedFor(wait)
		case err != nil:
			return err
		}
	}
	return nil
}

// ungate removes the call from the count of purchases in flight.
func (e *edge) ungate(q *call) {
	if q.counted {
		q.counted = false
		e.inFlight.Add(-1)
	}
}

// longestRetry bounds Retry-After, in seconds.
const longestRetry = 120

// overloaded are the refusals for lack of capacity, by their Retry-After in seconds.
var overloaded = func() (all [longestRetry + 1]*problem) {
	for i := range all {
		all[i] = problemOverloaded.retry(int64(i))
	}
	return all
}()

// overloadedFor returns the refusal with a time to retry. Each client gets a random time of up
// to twice the wait, so that the clients do not all retry at once.
func overloadedFor(wait time.Duration) *problem {
	n := min(max(1, ceilSeconds(wait)), longestRetry/2)
	return overloaded[n+rand.Int64N(n+1)]
}

// maxHeader bounds the headers of a request, in bytes as they are sent.
const maxHeader = 16 << 10

func headersTooLarge(r *http.Request) bool {
	size := len(r.Host) // the server has removed it from the other headers
	for name, values := range r.Header {
		for _, v := range values {
			size += len(name) + len(": ") + len(v) + len("\r\n")
		}
	}
	return size > maxHeader
}

// single returns the value of a header that may be sent once. The name is in
// canonical form.
func single(h http.Header, name string) (value string, present bool, err error) {
	switch values := h[name]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	default:
		return "", true, problemHeaderDuplicate.with(name, name+" was sent more than once; send it once.")
	}
}

// checkContent refuses a body that is not plain JSON.
func checkContent(h http.Header) error {
	if encoding, present, err := single(h, "Content-Encoding"); err != nil {
		return err
	} else if present && !strings.EqualFold(encoding, "identity") {
		return problemContentEncoding
	}
	value, _, err := single(h, "Content-Type")
	if err != nil {
		return err
	}
	if value == "application/json" {
		return nil
	}
	media, params, err := mime.ParseMediaType(value)
	if err != nil || media != "application/json" {
		return problemContentType
	}
	if charset, stated := params["charset"]; stated && !strings.EqualFold(charset, "utf-8") {
		return problemContentType
	}
	return nil
}

// media is a response type.
type media struct {
	name, group string
	refusal     *problem // for a request whose Accept header excludes it
}

// The response types.
var (
	mediaJSON   = media{"application/json", "application/*", problemNotAcceptable}
	mediaEvents = media{"text/event-stream", "text/*", problemEventsNotAcceptable}
	mediaHTML   = media{"text/html", "text/*", problemDocsNotAcceptable}
)

// accepted refuses a request whose Accept header excludes the type; nil: any.
func (m *media) accepted(h http.Header) error {
	values := h["Accept"]
	if m == nil || len(values) == 0 {
		return nil
	}
	if v := values[0]; len(values) == 1 && (v == "*/*" || v == m.name) {
		return nil
	}
	if accepts(strings.Join(values, ","), m.name, m.group) {
		return nil
	}
	return m.refusal
}

// accepts matches an Accept header against a media type and its group. The most specific
// matching range decides. A client that only accepts problem+json is accepted too, since
// refusals have that type.
func accepts(accept, media, group string) bool {
	if strings.TrimSpace(accept) == "" {
		return true
	}
	best, takes, problemToo := 0, false, false
	for one := range strings.SplitSeq(accept, ",") {
		given, params, _ := strings.Cut(one, ";")
		specific := 0
		switch strings.ToLower(strings.TrimSpace(given)) {
		case media:
			specific = 3
		case group:
			specific = 2
		case "*/*":
			specific = 1
		case "application/problem+json":
			problemToo = problemToo || !weightZero(params)
		}
		if specific > best {
			best, takes = specific, !weightZero(params)
		}
	}
	return takes || problemToo
}

// weightZero reports whether the parameters say q=0: not acceptable.
func weightZero(params string) bool {
	for one := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(one, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return err != nil || q <= 0
		}
	}
	return false
}

// idempotencyKey returns the key, 1 to 255 visible ASCII characters.
func idempotencyKey(h http.Header) (string, error) {
	key, present, err := single(h, "Idempotency-Key")
	switch {
	case err != nil:
		return "", err
	case !present:
		return "", problemKeyMissing
	case len(key) == 0 || len(key) > 255:
		return "", problemKeyInvalid
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "", problemKeyInvalid
		}
	}
	return key, nil
}
