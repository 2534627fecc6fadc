package auth

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// tokenCache remembers tokens that were found good. It is a table in which
// each token has one place, and a newcomer takes the place over: that bounds
// it, needs no lock and no housekeeping, and costs a buyer who comes once
// hardly more than the look. Two tokens in one place only mean that they are
// verified more often.
type tokenCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedToken]
}

type cachedToken struct {
	token string
	id    Identity
	until int64 // Unix nanoseconds; exclusive
}

// maxCachedToken bounds the memory of a slot, in bytes of token.
const maxCachedToken = 2 << 10

func newTokenCache(slots int) *tokenCache {
	return &tokenCache{seed: maphash.MakeSeed(), slots: make([]atomic.Pointer[cachedToken], slots)}
}

// hash is keyed at random, so nobody can choose tokens that share a place.
func (c *tokenCache) hash(token string) uint64 { return maphash.String(c.seed, token) }

func (c *tokenCache) get(hash uint64, token string, now time.Time) (Identity, bool) {
	known := c.slots[hash%uint64(len(c.slots))].Load()
	if known == nil || known.token != token || now.UnixNano() >= known.until {
		return Identity{}, false
	}
	return known.id, true
}

func (c *tokenCache) put(hash uint64, token string, id Identity, until time.Time) {
	if len(token) > maxCachedToken {
		return
	}
	c.slots[hash%uint64(len(c.slots))].Store(&cachedToken{token: token, id: id, until: until.UnixNano()})
}
