package auth

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// tokenCache caches verified tokens. It is a table in which each token has one slot, and a new
// token replaces the previous one. So it is bounded and needs neither a lock nor clean-up, and
// a token that is used once costs little more than a look-up. Two tokens with the same slot are
// only verified more often.
type tokenCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedToken]
}

type cachedToken struct {
	hash  uint64 // compared first: another token's bytes are then not read from memory
	token string
	id    Identity
	until int64 // Unix nanoseconds; exclusive
}

// maxCachedToken bounds the memory of a slot, in bytes of token.
const maxCachedToken = 2 << 10

func newTokenCache(slots int) *tokenCache {
	return &tokenCache{seed: maphash.MakeSeed(), slots: make([]atomic.Pointer[cachedToken], slots)}
}

// hash has a random key, so that clients cannot choose tokens that share a slot.
func (c *tokenCache) hash(token string) uint64 { return maphash.String(c.seed, token) }

func (c *tokenCache) get(hash uint64, token string, now time.Time) (Identity, bool) {
	known := c.slots[hash%uint64(len(c.slots))].Load()
	if known == nil || known.hash != hash || known.token != token || now.UnixNano() >= known.until {
		return Identity{}, false
	}
	return known.id, true
}

func (c *tokenCache) put(hash uint64, token string, id Identity, until time.Time) {
	if len(token) > maxCachedToken {
		return
	}
	c.slots[hash%uint64(len(c.slots))].Store(&cachedToken{hash: hash, token: token, id: id, until: until.UnixNano()})
}
