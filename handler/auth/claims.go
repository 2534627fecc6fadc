package auth

import (
	"strconv"
	"time"

	"flashsale/handler/strictjson"
)

// maxDate is the last second of the year 9999, in seconds since 1970. A later date is a mistake
// of the issuer, or an attempt at a token that never expires.
const maxDate = 253_402_300_799

// claims are those of a token that are read, before they are judged.
type claims struct {
	subject          []byte
	role             Role
	expires          float64
	begins           float64 // the later of nbf and iat
	hasExpiry, wrong bool
	hasSubject       bool
	audience, ours   bool
	issued           bool // by the issuer of the terms, or by any where they name none
}

// readClaims reads the claims of a token whose signature is good.
func readClaims(document []byte, terms Terms, now time.Time, leeway time.Duration) (Identity, error) {
	c := claims{role: terms.Roles.fallback, issued: terms.Issuer == ""}
	r := strictjson.Read(document)
	for r.Next() {
		c.read(r.Name(), r.Value(), terms)
	}
	at, slack := float64(now.UnixNano())/1e9, leeway.Seconds()
	switch {
	case r.Err() != nil:
		// The signer of claims that are not one valid JSON object is trusted, but the claims
		// may be misread.
		return Identity{}, ErrClaims
	case c.wrong, !c.hasExpiry, !c.hasSubject:
		return Identity{}, ErrClaims
	case at >= c.expires+slack:
		return Identity{}, ErrExpired
	case at < c.begins-slack:
		return Identity{}, ErrNotYetValid
	case !c.issued:
		return Identity{}, ErrIssuer
	case !c.audience, !c.ours:
		return Identity{}, ErrAudience
	case c.role == "":
		return Identity{}, ErrClaims
	}
	id := Identity{
		Subject: string(c.subject), Role: c.role,
		Expires: time.UnixMilli(int64(c.expires * 1000)).Add(leeway),
	}
	if !ValidSubject(id.Subject) {
		return Identity{}, ErrClaims
	}
	return id, nil
}

// read takes one claim.
func (c *claims) read(name []byte, v strictjson.Value, terms Terms) {
	switch string(name) {
	case terms.SubjectClaim:
		c.subject, c.hasSubject = v.Text(), true
	case "exp":
		c.expires, c.hasExpiry = readDate(v, &c.wrong), true
	case "nbf", "iat":
		c.begins = max(c.begins, readDate(v, &c.wrong))
	case "iss":
		c.issued = c.issued || v.Kind() == strictjson.String && string(v.Text()) == terms.Issuer
	case "aud":
		c.audience = true
		c.ours = readAudience(v, terms.Audience, &c.wrong)
	case terms.Roles.path[0]:
		role, ok := terms.Roles.read(v)
		c.wrong = c.wrong || !ok
		if role != "" {
			c.role = role
		}
	}
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

// readAudience reports whether the audience, one or a list, contains want.
func readAudience(v strictjson.Value, want string, wrong *bool) (ours bool) {
	if v.Kind() == strictjson.String {
		return string(v.Text()) == want
	}
	if !v.Strings(func(one []byte) { ours = ours || string(one) == want }) {
		*wrong = true
	}
	return ours
}
