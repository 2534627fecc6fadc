// Package auth identifies the senders of requests: it verifies bearer tokens (JWT), and signs
// them for development and for the command line.
//
// The configured key determines the algorithm, never the token. A token that refers to a key of
// its own (jwk, jku, x5u, x5c) is refused without fetching anything.
package auth

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Role determines what an identity may do.
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

// MinSecret is the minimum length of an HS256 secret, in bytes.
const MinSecret = 32

// MaxToken is the maximum length of a token, in bytes.
const MaxToken = 8 << 10

// MaxLeeway is the maximum leeway of a Verifier.
const MaxLeeway = 5 * time.Minute

// Identity is the identity proved by a verified token.
type Identity struct {
	Subject string // matches ValidSubject
	Role    Role
	// Expires is the end of the token, leeway included. An operation that outlives its request
	// must end by then.
	Expires time.Time
}

// The reasons for refusing a token.
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

// ErrSecretTooShort means that an HS256 secret has fewer than MinSecret bytes.
var ErrSecretTooShort = fmt.Errorf("auth: the secret has fewer than %d bytes", MinSecret)

// ErrUnmapped means that no value of the claim is mapped to this role.
var ErrUnmapped = errors.New("no value is mapped to the role")

// ValidSubject reports whether sub is a valid subject: 1 to 128 characters of A-Z a-z 0-9 . _ :
// @ -.
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

// Terms are the required claims of a signer's tokens, other than subject and times. The zero
// value requires the audience Audience and the role in the claim `role`, with any issuer.
type Terms struct {
	// Issuer is the exact value of `iss`. Empty: `iss` is ignored.
	Issuer string
	// Audience is what `aud` must contain. Default Audience.
	Audience string
	// SubjectClaim is the outermost claim with the buyer, admin or service; see ValidSubject
	// and ValidSubjectClaim. Default `sub`.
	SubjectClaim string
	// Roles maps a claim to roles. Default: the claim `role` contains the role itself.
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

// SignToken signs an HS256 token for sub that is valid for ttl from now, with the claims of the
// default Terms.
func SignToken(secret []byte, sub string, role Role, ttl time.Duration, now time.Time) (string, error) {
	return Terms{}.Sign(secret, sub, role, ttl, now)
}

// Sign signs an HS256 token for sub that is valid for ttl from now and satisfies the terms.
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
