package handler

import (
	"net/http"
	"slices"

	"flashsale/handler/auth"
	"flashsale/order"
)

// admit makes the checks of the request's route, in their order.
func (e *edge) admit(q *call, params []string) error {
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
	for _, name := range params {
		if p := pathParams[name]; !p.valid(q.c.Param(name)) {
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

// authorize admits the request by its address, the load, and its token.
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
		// The address is loopback, but a page in a browser on this machine may have
		// made a name of its own point there.
		return problemForbidden
	}
	if len(r.Roles) == 0 {
		return nil
	}
	id, err := e.authenticate(q.c.Request.Header)
	if err != nil {
		return err
	}
	q.who = id
	if !slices.Contains(r.Roles, id.Role) {
		return problemForbidden
	}
	return nil
}

// readInput reads what the route takes besides its path.
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

// limit counts the request against its buyer's rate. The shop's own people and
// programs are not limited: a burst of payments is theirs to send.
func (e *edge) limit(q *call) error {
	if e.buyers == nil || q.who.Role != auth.RoleBuyer {
		return nil
	}
	return e.buyers.allow(q.who.Subject, q.start)
}

// by is the sender of the request, for the audit log.
func (q *call) by() order.By { return order.By{Actor: q.who.Subject, RequestID: q.requestID()} }
