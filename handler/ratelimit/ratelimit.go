// Package ratelimit bounds how often one client may send requests, by a token bucket per buyer or
// address.
package ratelimit

import (
	"hash/maphash"
	"math"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"flashsale/handler/problem"
)

var errRateLimited = problem.New(429, "rate_limited", "Too many requests",
	"You send more requests than allowed; retry after the seconds in Retry-After.")

// Limiter has one token bucket per key. A bucket that was unused long enough to be full again
// need not be kept, so buckets are kept in two generations and the older one is dropped as a
// whole. There is no background work, and a new key costs one insertion.
type Limiter struct {
	rate   rate.Limit
	burst  int
	full   time.Duration // the time in which an empty bucket fills up
	most   int           // keys in one generation of one shard
	seed   maphash.Seed
	shards [64]shard
}

type shard struct {
	mu         sync.Mutex
	young, old map[string]*rate.Limiter
	turned     time.Time // the start of the generation young
}

// maxShardKeys bounds one generation of one shard. If more than 64 times as many keys arrive
// within the time to fill up, the least recently used ones restart with a full bucket.
const maxShardKeys = 4096

// New returns a limiter with buckets of burst tokens, which fill at the given rate.
func New(perSecond float64, burst int) *Limiter {
	l := &Limiter{rate: rate.Limit(perSecond), burst: burst, most: maxShardKeys, seed: maphash.MakeSeed()}
	// Far above any sensible setting, and well within a Duration.
	l.full = time.Duration(min(float64(burst)/perSecond, 86400) * float64(time.Second))
	for i := range l.shards {
		l.shards[i].young = make(map[string]*rate.Limiter)
	}
	return l
}

// Allow takes one token from the key's bucket, or returns a problem with the time of the next
// token.
func (l *Limiter) Allow(key string, now time.Time) error {
	bucket := l.bucket(key, now)
	if bucket.AllowN(now, 1) {
		return nil
	}
	missing := 1 - bucket.TokensAt(now)
	wait := int64(math.Ceil(missing / float64(l.rate)))
	reset := strconv.FormatInt(max(1, wait), 10)
	return errRateLimited.Retry(wait).
		WithHeader("Ratelimit-Limit", strconv.Itoa(l.burst)).
		WithHeader("Ratelimit-Remaining", "0").
		WithHeader("Ratelimit-Reset", reset)
}

func (l *Limiter) bucket(key string, now time.Time) *rate.Limiter {
	s := &l.shards[maphash.String(l.seed, key)%uint64(len(l.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.young) >= l.most || now.Sub(s.turned) > l.full {
		s.old, s.young, s.turned = s.young, make(map[string]*rate.Limiter), now
	}
	bucket, known := s.young[key]
	if known {
		return bucket
	}
	if bucket, known = s.old[key]; !known {
		bucket = rate.NewLimiter(l.rate, l.burst)
	}
	s.young[key] = bucket
	return bucket
}

// AddressKey returns the key of the bucket of a client address. An IPv6 customer has a whole /64 network,
// so each network has one bucket.
func AddressKey(address string) string {
	addr, err := netip.ParseAddr(address)
	if err != nil || addr.Unmap().Is4() {
		return address
	}
	network, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return address
	}
	return network.String()
}
