package auth

import (
	"errors"

	"flashsale/handler/strictjson"
)

// AdminConfig gives admins' tokens their own signer, so that the signer of buyers' tokens
// cannot sign an admin's. The mapping of claims to roles is that of the buyers' Terms.
type AdminConfig struct {
	// Secret or Keys is the key of the admins' signer, as in Config. Without either, the
	// buyers' Keys also sign for admins, and Issuer or Audience must differ from the buyers':
	// the identity provider then decides which tokens it issues.
	Secret []byte
	Keys   *Keys
	// Issuer and Audience are required of admins' tokens. Empty: the values for buyers' tokens.
	Issuer, Audience string
	// Service makes the admins' signer also sign the tokens of services.
	Service bool
}

// ErrNotSeparate means that an AdminConfig does not separate admins from buyers.
var ErrNotSeparate = errors.New("auth: admins need a separate key, or a set of public keys with another issuer or audience")

// realm is one signer and the required claims of its tokens.
type realm struct {
	key   key
	terms Terms
}

// signers decides which signer may sign for which role. Each role has exactly one realm,
// selected by the role that a token claims; no other realm can then verify the token.
type signers struct {
	buyers  realm
	admins  *realm // nil: the buyers' realm signs for all roles
	service bool   // the admins' realm also signs for services
}

// newSigners validates the keys of c.
func newSigners(c Config) (signers, error) {
	own, err := newKey(c.Secret, c.Keys)
	if err != nil {
		return signers{}, err
	}
	s := signers{buyers: realm{own, c.Terms.withDefaults()}}
	if c.Admin == nil {
		return s, nil
	}
	s.service = c.Admin.Service
	terms := s.buyers.terms
	if c.Admin.Issuer != "" {
		terms.Issuer = c.Admin.Issuer
	}
	if c.Admin.Audience != "" {
		terms.Audience = c.Admin.Audience
	}
	switch {
	case c.Admin.Secret == nil && c.Admin.Keys == nil:
		if c.Keys == nil || terms == s.buyers.terms {
			return signers{}, ErrNotSeparate
		}
	case c.Admin.Secret != nil && string(c.Admin.Secret) == string(c.Secret):
		return signers{}, ErrNotSeparate
	case c.Keys != nil && c.Admin.Keys != nil && terms == s.buyers.terms && c.Keys.shares(c.Admin.Keys):
		return signers{}, ErrNotSeparate
	default:
		if own, err = newKey(c.Admin.Secret, c.Admin.Keys); err != nil {
			return signers{}, err
		}
	}
	s.admins = &realm{own, terms}
	return s, nil
}

// newKey returns the one key that is configured.
func newKey(secret []byte, keys *Keys) (key, error) {
	switch {
	case keys != nil && secret != nil:
		return nil, errors.New("auth: both a secret and a key set are configured; configure only one")
	case keys != nil:
		return keys, nil
	case len(secret) >= MinSecret:
		return newSecretKey(secret), nil
	default:
		return nil, ErrSecretTooShort
	}
}

// of returns the realm that signs for the role.
func (s *signers) of(role Role) *realm {
	if s.admins != nil && (role == RoleAdmin || role == RoleService && s.service) {
		return s.admins
	}
	return &s.buyers
}

// choose returns the realm of the role that a token claims. The token is not verified yet: the
// claim selects the key that must verify it.
func (s *signers) choose(rawClaims string) *realm {
	if s.admins == nil {
		return &s.buyers
	}
	pooled := scratch.Get().(*[]byte)
	defer scratch.Put(pooled)
	buf, document, err := decodeSegment((*pooled)[:0], rawClaims)
	*pooled = buf
	if err != nil {
		return &s.buyers
	}
	return s.of(claimedRole(document, s.buyers.terms.Roles))
}

// claimedRole returns the role in the claims, or "".
func claimedRole(document []byte, roles *Roles) (role Role) {
	r := strictjson.Read(document)
	for r.Next() {
		if string(r.Name()) == roles.path[0] {
			role, _ = roles.read(r.Value()) // a malformed claim is refused once the signature is verified
		}
	}
	return role
}

// verify checks the signature with the realm's key. A token that only the other realm's key
// verifies claims a role for which its signer may not sign.
func (s *signers) verify(r *realm, h header, signed string, signature []byte) error {
	err := r.key.verify(h, signed, signature)
	if err == nil || s.admins == nil || s.admins.key == s.buyers.key {
		return err
	}
	other := s.admins
	if r == s.admins {
		other = &s.buyers
	}
	if other.key.verify(h, signed, signature) == nil {
		return ErrRole
	}
	return err
}
