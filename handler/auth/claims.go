package auth

import (
	"math"
	"strconv"
	"time"

	"flashsale/handler/strictjson"
)

// latest is the last second (in the year 2242) that an expiry is computed with,
// so that it fits into nanoseconds since 1970.
const latest = math.MaxInt32 * 4

// readClaims reads the claims of a token whose signature is good.
func readClaims(document []byte, now time.Time) (Identity, error) {
	var (
		c                   Identity
		expires, notBefore  float64
		hasExpiry, wrong    bool
		audience, ours      bool
		subject, role       []byte
		hasSubject, hasRole bool
		hasNotBefore        bool
	)
	r := strictjson.Read(document)
	for r.Next() {
		v := r.Value()
		switch string(r.Name()) {
		case "sub":
			subject, hasSubject = v.Text(), true
		case "role":
			role, hasRole = v.Text(), true
		case "exp":
			expires, hasExpiry = readDate(v, &wrong), true
		case "nbf":
			notBefore, hasNotBefore = readDate(v, &wrong), true
		case "iat":
			readDate(v, &wrong) // nothing hangs on it but its type
		case "aud":
			audience = true
			ours = readAudience(v, &wrong)
		}
	}
	switch {
	case r.Err() != nil:
		// Claims that are not one clean JSON object were signed by somebody
		// who can be trusted and misunderstood alike.
		return Identity{}, ErrClaims
	case wrong, !hasExpiry, !hasSubject, !hasRole:
		return Identity{}, ErrClaims
	case float64(now.UnixNano())/1e9 >= expires:
		return Identity{}, ErrExpired
	case hasNotBefore && float64(now.UnixNano())/1e9 < notBefore:
		return Identity{}, ErrNotYetValid
	case !audience, !ours:
		return Identity{}, ErrAudience
	}
	switch string(role) {
	case string(RoleBuyer):
		c.Role = RoleBuyer
	case string(RoleAdmin):
		c.Role = RoleAdmin
	case string(RoleService):
		c.Role = RoleService
	default:
		return Identity{}, ErrClaims
	}
	c.Subject = string(subject)
	if !ValidSubject(c.Subject) {
		return Identity{}, ErrClaims
	}
	c.Expires = time.UnixMilli(int64(min(expires, latest) * 1000))
	return c, nil
}

// readDate reads a NumericDate: seconds since 1970, with or without a fraction.
func readDate(v strictjson.Value, wrong *bool) float64 {
	switch v.Kind() {
	case strictjson.Integer:
		return float64(v.Int())
	case strictjson.Fraction:
		f, err := strconv.ParseFloat(string(v.Raw()), 64)
		if err != nil {
			*wrong = true
		}
		return f
	default:
		*wrong = true
		return 0
	}
}

// readAudience reports whether the audience, one or a list, contains ours.
func readAudience(v strictjson.Value, wrong *bool) (ours bool) {
	if v.Kind() == strictjson.String {
		return string(v.Text()) == Audience
	}
	if !v.Strings(func(one []byte) { ours = ours || string(one) == Audience }) {
		*wrong = true
	}
	return ours
}
