package auth

import (
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"time"
)

// key checks the signature of a token whose header has been read.
type key interface {
	// verify returns ErrAlgorithm, ErrKey or ErrSignature.
	verify(h header, signed string, signature []byte) error
}

// Config sets up a Verifier.
type Config struct {
	// Secret is the HS256 secret, at least MinSecret bytes. Either Secret or
	// Keys is set, never both.
	Secret []byte
	// Keys is the set of public keys; see OpenKeys.
	Keys *Keys
	// Terms are the required claims of the tokens.
	Terms Terms
	// Admin gives admins their own signer. Nil: the key above signs for all roles.
	Admin *AdminConfig
	// CacheSlots is the number of verified tokens that are cached. Default 65,536; negative:
	// none.
	CacheSlots int
	// CacheFor is how long a verified token is cached, at most until its expiry. It bounds how
	// long a withdrawn key stays valid. Default one minute.
	CacheFor time.Duration
	// Leeway is the allowed clock difference of issuers: a token is valid this long after its
	// exp, and before its nbf and iat. Default 30 s, at most MaxLeeway; negative: none.
	Leeway time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	signers  signers
	headers  headerCache
	verified *tokenCache // nil: none
	cacheFor time.Duration
	leeway   time.Duration
	now      func() time.Time
}

// defaultLeeway is the leeway of a zero Config.
const defaultLeeway = 30 * time.Second

// NewVerifier returns a Verifier for one secret or one set of public keys, and for those of
// admins if they have their own.
func NewVerifier(c Config) (*Verifier, error) {
	own, err := newSigners(c)
	if err != nil {
		return nil, err
	}
	v := &Verifier{cacheFor: c.CacheFor, now: c.Now, signers: own}
	if c.CacheFor < 0 {
		return nil, fmt.Errorf("auth: CacheFor %s is negative", c.CacheFor)
	}
	if v.cacheFor == 0 {
		v.cacheFor = time.Minute
	}
	switch {
	case c.Leeway > MaxLeeway:
		return nil, fmt.Errorf("auth: Leeway %s is above %s", c.Leeway, MaxLeeway)
	case c.Leeway == 0:
		v.leeway = defaultLeeway
	case c.Leeway > 0:
		v.leeway = c.Leeway
	}
	if v.now == nil {
		v.now = time.Now
	}
	if c.CacheSlots == 0 {
		c.CacheSlots = 1 << 16
	}
	if c.CacheSlots > 0 {
		v.verified = newTokenCache(c.CacheSlots)
	}
	return v, nil
}

// Verify returns the identity that the token proves. Its errors are ErrMalformed, ErrAlgorithm,
// ErrKey, ErrSignature, ErrExpired, ErrNotYetValid, ErrClaims, ErrIssuer, ErrAudience and
// ErrRole.
func (v *Verifier) Verify(token string) (Identity, error) {
	now := v.now()
	var slot uint64
	if v.verified != nil {
		slot = v.verified.hash(token)
		if id, ok := v.verified.get(slot, token, now); ok {
			return id, nil
		}
	}
	c, err := v.check(token, now)
	if err != nil {
		return Identity{}, err
	}
	if v.verified != nil {
		until := now.Add(v.cacheFor)
		if c.Expires.Before(until) {
			until = c.Expires
		}
		v.verified.put(slot, token, c, until)
	}
	return c, nil
}

// scratch holds the decoded segments of one token.
var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// check verifies a token completely, without the cache.
func (v *Verifier) check(token string, now time.Time) (Identity, error) {
	if len(token) > MaxToken {
		return Identity{}, ErrMalformed
	}
	rawHeader, rest, ok := strings.Cut(token, ".")
	if !ok {
		return Identity{}, ErrMalformed
	}
	rawClaims, rawSignature, ok := strings.Cut(rest, ".")
	if !ok || strings.IndexByte(rawSignature, '.') >= 0 {
		return Identity{}, ErrMalformed
	}
	h, err := v.headers.read(rawHeader)
	if err != nil {
		return Identity{}, err
	}
	if rawSignature == "" || rawClaims == "" {
		return Identity{}, ErrMalformed
	}

	pooled := scratch.Get().(*[]byte)
	defer scratch.Put(pooled)
	buf, signature, err := decodeSegment((*pooled)[:0], rawSignature)
	if err != nil {
		return Identity{}, err
	}
	own := v.signers.choose(rawClaims)
	if err := v.signers.verify(own, h, token[:len(rawHeader)+1+len(rawClaims)], signature); err != nil {
		return Identity{}, err
	}
	buf, document, err := decodeSegment(buf[:0], rawClaims)
	*pooled = buf
	if err != nil {
		return Identity{}, err
	}
	id, err := readClaims(document, own.terms, now, v.leeway)
	if err == nil && v.signers.of(id.Role) != own {
		return Identity{}, ErrRole
	}
	return id, err
}

// segments decodes base64url strictly: bits beyond the last byte must be zero, so that each
// token has exactly one encoding.
var segments = base64.RawURLEncoding.Strict()

// decodeSegment decodes into buf, grown as needed, and returns both.
func decodeSegment(buf []byte, segment string) (grown, decoded []byte, err error) {
	// The decoder skips line breaks, which a token may not contain.
	if strings.ContainsAny(segment, "\r\n") {
		return buf, nil, ErrMalformed
	}
	n := segments.DecodedLen(len(segment))
	if cap(buf) < n {
		buf = make([]byte, 0, n)
	}
	// Decoding from a string would allocate a copy; appending it to the buffer and decoding in
	// place does not.
	buf = append(buf[:0], segment...)
	m, err := segments.Decode(buf, buf)
	if err != nil {
		return buf, nil, ErrMalformed
	}
	return buf, buf[:m], nil
}
