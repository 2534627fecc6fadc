package handler

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"flashsale/handler/auth"
	"flashsale/handler/problem"
	"flashsale/handler/ratelimit"
	"flashsale/handler/request"
	"flashsale/inventory"
)

// admit runs the checks of the request's route in their order.
func (e *edge) admit(q *call, params []pathParam) error {
	r, h := q.route, q.c.Request.Header
	if request.HeadersTooLarge(q.c.Request) {
		return request.ErrHeaderTooLarge
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
	switch r.Body {
	case bodyJSON:
		if err := request.CheckContent(h); err != nil {
			return err
		}
	case bodyForm:
		if err := request.CheckForm(h); err != nil {
			return err
		}
	case bodyIgnored, bodyEmpty:
	}
	if err := r.Produces.CheckAccept(h); err != nil {
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
		if err := e.addresses.Allow(ratelimit.AddressKey(q.c.ClientIP()), q.start); err != nil {
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
		return problemNotLoopback
	}
	if len(r.Roles) == 0 {
		if r.Page {
			// A page that everyone may read shows who is logged in.
			if id, err := e.authenticateCookie(q); err == nil {
				q.identity = id
			}
		}
		return nil
	}
	id, err := e.authenticate(q)
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
		known := r.Query
		if len(r.AdminQuery) > 0 && q.identity.Role == auth.RoleAdmin {
			known = slices.Concat(known, r.AdminQuery)
		}
		if r.Page {
			q.query = request.PickQuery(q.c.Request, known)
		} else if q.query, err = request.ReadQuery(q.c.Request, known); err != nil {
			return err
		}
	}
	if r.Match != matchIgnored {
		if q.match, err = request.IfMatch(h, r.Match == matchRequired); err != nil {
			return err
		}
	}
	if r.Keyed {
		if q.key, err = request.IdempotencyKey(h); err != nil {
			return err
		}
	}
	if r.Body == bodyIgnored {
		return nil
	}
	if q.in, err = request.ReadBody(q.c.Writer, q.c.Request, q.in, r.MaxBody); err != nil {
		return err
	}
	switch r.Body {
	case bodyEmpty:
		return request.CheckEmpty(h, q.in)
	case bodyForm:
		return q.readForm()
	case bodyIgnored, bodyJSON:
	}
	return nil
}

// limit counts the request against its buyer's rate. Admins and services have no limit, because
// the shop may send payments in bursts.
func (e *edge) limit(q *call) error {
	if e.buyers == nil || q.identity.Role != auth.RoleBuyer {
		return nil
	}
	return e.buyers.Allow(q.identity.Subject, q.start)
}

// authenticate returns the identity of the sender. Tokens are read from the Authorization header,
// and for pages in a browser from a cookie; never from the query string, which would be logged.
func (e *edge) authenticate(q *call) (auth.Identity, error) {
	value, present, err := request.Single(q.c.Request.Header, "Authorization")
	if err != nil {
		return auth.Identity{}, err
	}
	if !present {
		return e.authenticateCookie(q)
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
var overloaded = func() (all [longestRetry + 1]*problem.Problem) {
	for i := range all {
		all[i] = problemOverloaded.Retry(int64(i))
	}
	return all
}()

// overloadedFor returns the refusal with a time to retry. Each client gets a random time of up
// to twice the wait, so that the clients do not all retry at once.
func overloadedFor(wait time.Duration) *problem.Problem {
	n := min(max(1, ceilSeconds(wait)), longestRetry/2)
	return overloaded[n+rand.Int64N(n+1)]
}
