// Package auth says who sends a request: it verifies bearer tokens (JWT) and
// signs them for development and for the command line.
//
// The algorithm is pinned by the configured key and never chosen by the token.
// A token that points to a key of its own (jwk, jku, x5u, x5c) is refused and
// nothing is fetched on its behalf.
package auth

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Role is what an identity may do.
type Role string

// The roles. A buyer buys and reads their own orders, an admin runs the sale,
// a service is the shop's own software.
const (
	RoleBuyer   Role = "buyer"
	RoleAdmin   Role = "admin"
	RoleService Role = "service"
)

// Valid reports whether the role is a known one.
func (r Role) Valid() bool { return r == RoleBuyer || r == RoleAdmin || r == RoleService }

// Audience is the value that a token's `aud` must contain unless configured otherwise.
const Audience = "flashsale"

// MinSecret is the least length of an HS256 secret, in bytes.
const MinSecret = 32

// MaxToken is the greatest length of a token that is looked at, in bytes.
const MaxToken = 8 << 10

// MaxLeeway is the greatest leeway of a Verifier.
const MaxLeeway = 5 * time.Minute

// Identity is who a verified token speaks for.
type Identity struct {
	Subject string // matches ValidSubject
	Role    Role
	// Expires is when the token ends, the leeway included; what outlives one request
	// has to end by then.
	Expires time.Time
}

// Why a token is refused.
var (
	ErrMalformed   = errors.New("auth: token malformed")
	ErrAlgorithm   = errors.New("auth: token algorithm refused")
	ErrKey         = errors.New("auth: token key unknown")
	ErrSignature   = errors.New("auth: token signature invalid")
	ErrExpired     = errors.New("auth: token expired")
	ErrNotYetValid = errors.New("auth: token not yet valid")
	ErrClaims      = errors.New("auth: token claims invalid")
	ErrAudience    = errors.New("auth: token for another audience")
	ErrIssuer      = errors.New("auth: token of another issuer")
	ErrRole        = errors.New("auth: token claims a role that its signer may not grant")
)

// ErrSecretTooShort says that an HS256 secret has fewer than MinSecret bytes.
var ErrSecretTooShort = fmt.Errorf("auth: the secret has fewer than %d bytes", MinSecret)

// ErrUnmapped says that no value of the claim makes a token of this role.
var ErrUnmapped = errors.New("no value is mapped to the role")

// ValidSubject reports whether sub can name somebody:
// 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.
func ValidSubject(sub string) bool {
	if len(sub) == 0 || len(sub) > 128 {
		return false
	}
	for i := range len(sub) {
		c := sub[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == ':', c == '@', c == '-':
		default:
			return false
		}
	}
	return true
}

// Terms are what the tokens of a signer say besides their subject and times. The zero
// value is any issuer, the audience Audience, and the role in the claim `role`.
type Terms struct {
	// Issuer is the exact value of `iss`. Empty: `iss` is not read.
	Issuer string
	// Audience is what `aud` must contain. Default Audience.
	Audience string
	// SubjectClaim is the outermost claim that names the buyer, admin or service; see
	// ValidSubject and ValidSubjectClaim. Default `sub`.
	SubjectClaim string
	// Roles maps a claim to roles. Default: the claim `role` holds the role itself.
	Roles *Roles
}

func (t Terms) withDefaults() Terms {
	if t.Audience == "" {
		t.Audience = Audience
	}
	if t.SubjectClaim == "" {
		t.SubjectClaim = DefaultSubjectClaim
	}
	if t.Roles == nil {
		t.Roles = contractRoles
	}
	return t
}

// SignToken makes an HS256 token for sub that is valid from now on for ttl, with the
// claims of the default Terms.
func SignToken(secret []byte, sub string, role Role, ttl time.Duration, now time.Time) (string, error) {
	return Terms{}.Sign(secret, sub, role, ttl, now)
}

// Sign makes an HS256 token for sub that is valid from now on for ttl and meets the terms.
func (t Terms) Sign(secret []byte, sub string, role Role, ttl time.Duration, now time.Time) (string, error) {
	switch {
	case len(secret) < MinSecret:
		return "", ErrSecretTooShort
	case !ValidSubject(sub):
		return "", fmt.Errorf("auth: sign token: the subject %q is not 1 to 128 characters of A-Z a-z 0-9 . _ : @ -", sub)
	case !role.Valid():
		return "", fmt.Errorf("auth: sign token: the role %q is not buyer, admin or service", role)
	case ttl < time.Second:
		return "", fmt.Errorf("auth: sign token: the lifetime %s is below one second", ttl)
	}
	t = t.withDefaults()
	claims := jwt.MapClaims{
		"aud": t.Audience,
		"iat": now.Unix(),
		"exp": now.Add(ttl).Unix(),
	}
	if t.Issuer != "" {
		claims["iss"] = t.Issuer
	}
	roles, err := t.Roles.claim(role)
	if err != nil {
		return "", err
	}
	maps.Copy(claims, roles)
	claims[t.SubjectClaim] = sub
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
	if err != nil {
		return "", fmt.Errorf("auth: sign token: %w", err)
	}
	return signed, nil
}
