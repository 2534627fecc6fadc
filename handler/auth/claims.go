package auth

import (
	"strconv"
	"time"

	"flashsale/handler/strictjson"
)

// maxDate is the last second of the year 9999, in seconds since 1970. A date beyond
// it is a mistake of the issuer, or an attempt at a token that never ends.
const maxDate = 253_402_300_799

// readClaims reads the claims of a token whose signature is good.
func readClaims(document []byte, now time.Time, leeway time.Duration) (Identity, error) {
	var (
		c                   Identity
		expires             float64
		begins              float64 // the later of nbf and iat
		hasExpiry, wrong    bool
		audience, ours      bool
		subject, role       []byte
		hasSubject, hasRole bool
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
		case "nbf", "iat":
			begins = max(begins, readDate(v, &wrong))
		case "aud":
			audience = true
			ours = readAudience(v, &wrong)
		}
	}
	at, slack := float64(now.UnixNano())/1e9, leeway.Seconds()
	switch {
	case r.Err() != nil:
		// Claims that are not one clean JSON object were signed by somebody
		// who can be trusted and misunderstood alike.
		return Identity{}, ErrClaims
	case wrong, !hasExpiry, !hasSubject, !hasRole:
		return Identity{}, ErrClaims
	case at >= expires+slack:
		return Identity{}, ErrExpired
	case at < begins-slack:
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
	c.Expires = time.UnixMilli(int64(expires * 1000)).Add(leeway)
	return c, nil
}

// readDate reads a NumericDate: seconds since 1970, with or without a fraction, up
// to maxDate.
func readDate(v strictjson.Value, wrong *bool) float64 {
	var date float64
	switch v.Kind() {
	case strictjson.Integer:
		date = float64(v.Int())
	case strictjson.Fraction:
		f, err := strconv.ParseFloat(string(v.Raw()), 64)
		*wrong = *wrong || err != nil
		date = f
	default:
		*wrong = true
	}
	if date < 0 || date > maxDate {
		*wrong = true
	}
	return date
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
