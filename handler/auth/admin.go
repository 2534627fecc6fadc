package auth

import (
	"errors"

	"flashsale/handler/strictjson"
)

// AdminConfig gives the tokens of admins a signer of their own, so that whatever signs
// buyers' tokens cannot make an admin's. The claims' mapping to roles is that of the
// buyers' Terms.
type AdminConfig struct {
	// Secret or Keys is the key of the admins' signer, as in Config. Without either, the
	// buyers' Keys sign for admins too, and Issuer or Audience has to differ from the
	// buyers': the identity provider then decides which tokens it issues.
	Secret []byte
	Keys   *Keys
	// Issuer and Audience are what the admins' tokens must say. Empty: what those of
	// buyers must say.
	Issuer, Audience string
	// Service makes the tokens of services the admins' signer's too.
	Service bool
}

// ErrNotSeparate says that an AdminConfig separates nothing.
var ErrNotSeparate = errors.New("auth: admins need a key of their own, or another issuer or audience with a set of public keys")

// realm is one signer, and what its tokens must say.
type realm struct {
	key   key
	terms Terms
}

// signers decides who may sign for which role. Each role has exactly one realm, which
// the role that a token claims selects; no other realm can then verify the token.
type signers struct {
	buyers  realm
	admins  *realm // nil: the buyers' realm signs for every role
	service bool   // services belong to the admins' realm
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
		return nil, errors.New("auth: a secret and a key set are configured; the algorithm can be pinned by one only")
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

// choose returns the realm of the role that a token claims. Nothing of the token has been
// verified yet: the claim selects the key, and that key then has to verify it.
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

// claimedRole returns the role that the claims name; empty where there is none.
func claimedRole(document []byte, roles *Roles) (role Role) {
	r := strictjson.Read(document)
	for r.Next() {
		if string(r.Name()) == roles.path[0] {
			role, _ = roles.read(r.Value()) // a malformed claim is refused once the signature is verified
		}
	}
	return role
}

// verify checks the signature with the realm's key. A token that only the other realm's
// key verifies claims a role that its signer may not grant.
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
