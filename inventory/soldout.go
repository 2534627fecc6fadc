package inventory

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"

	"flashsale/internal/fnv1a"
	"flashsale/internal/subscription"
)

// soldOutMark lets the process answer "sold out" from memory. A repeat of an accepted
// request must still get its order, so the mark has the set of the accepted keys: a request
// whose key is certainly not in it is not a repeat. A false positive costs a call to Redis.
//
// A mark comes from one reply of the script; each reply replaces or removes it. It is not
// used while the subscription to returned stock is down.
type soldOutMark struct {
	drops    int64 // the seller's count of drops; the mark is invalid under another count
	limit    int64 // units that one buyer may hold
	until    int64 // Unix nanoseconds
	accepted *keySet
}

// refuse returns the refusal of a request that the mark can answer now; nil if Redis has to
// decide.
func (s *seller) refuse(r *Request, now time.Time) error {
	m := s.mark.Load()
	switch {
	case m == nil || m.drops != s.drops.Load() || !s.v.subscribed.Load() || now.UnixNano() >= m.until,
		m.accepted.has(keyHash(r)):
		return nil
	case r.Quantity > m.limit:
		return &QuantityError{Limit: m.limit}
	}
	return ErrSoldOut
}

// soldOut reports whether the mark says that nothing is left.
func (s *seller) soldOut(now time.Time) bool {
	m := s.mark.Load()
	return m != nil && m.drops == s.drops.Load() && s.v.subscribed.Load() && now.UnixNano() < m.until
}

// SoldOut reports whether all of these items are known to be sold out, without a call to Redis.
// An item that this process has not sold in the last second is not known.
func (v *Inventory) SoldOut(items []string) bool {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, item := range items {
		if s := v.sellers[item]; s == nil || !s.soldOut(now) {
			return false
		}
	}
	return true
}

// dropMark removes the sold-out mark. The reply of a script that is under way sets no mark
// either, because the script may have run before the stock returned.
func (s *seller) dropMark() {
	s.drops.Add(1)
	s.mark.Store(nil)
}

// noteSoldOut sets or removes the mark by a reply of the script. There is a mark while an
// open sale has nothing left and all its accepted keys are known. drops is the count of
// drops before the script was sent.
func (s *seller) noteSoldOut(r *purchaseReply, drops int64) {
	if r.accepted < 0 || !s.learn(r) || drops != s.drops.Load() {
		s.mark.Store(nil)
		return
	}
	life := s.v.cfg.MarkLife
	if r.closesMS > 0 {
		// After its end the sale is closed and no longer answers "sold out".
		life = min(life, time.Duration(r.closesMS-r.nowMS)*time.Millisecond)
	}
	s.mark.Store(&soldOutMark{drops: drops, limit: r.limit, until: time.Now().Add(life).UnixNano(), accepted: s.accepted})
}

// learn adds the accepted keys of a reply to the known ones, and reports whether all are
// known now. Otherwise the next replies have more.
func (s *seller) learn(r *purchaseReply) bool {
	build := buildOf(r.version)
	from := int64(0) // which key is the reply's first, see purchase.lua
	if build == s.askedBuild {
		from = s.askedFrom
	}
	k := s.accepted
	if k == nil || k.build != build || k.known > r.accepted || k.full(r.accepted) {
		k = newKeySet(build, r.accepted)
		s.accepted = k
	}
	if k.known == from {
		k.add(r.more)
	}
	return k.known == r.accepted
}

// buildOf is the part of a sale's version that identifies the load that built it.
func buildOf(version string) string {
	_, build, _ := strings.Cut(version, ".")
	build, _, _ = strings.Cut(build, ".")
	return build
}

// keyHashSize is how many bytes a key takes among the accepted keys of a sale.
const keyHashSize = 4

// keyHash is the hash of a request's buyer and key that Redis stores among the sale's
// accepted keys. All processes must compute the same hash.
func keyHash(r *Request) uint32 { return keyHashOf(r.Buyer, r.IdempotencyKey) }

func keyHashOf(buyer, key string) uint32 {
	h := fnv1a.Add(fnv1a.Add(fnv1a.Add(fnv1a.Start, buyer), " "), key)
	return uint32(h ^ h>>32) //nolint:gosec // folded on purpose
}

// appendKeyHashes appends the hashes of a batch, in its order.
func appendKeyHashes(b []byte, batch []*Request) []byte {
	for _, r := range batch {
		b = binary.BigEndian.AppendUint32(b, keyHash(r))
	}
	return b
}

const (
	// keySetShare is how many bits a new set has for each key. A set is replaced by a larger
	// one at keySetFull bits per key; its rate of false positives is then 0.1 to 0.4 %.
	keySetShare, keySetFull = 16, 11
	// keySetProbes is how many bits a key sets.
	keySetProbes = 8
	// keySetMin and keySetMax bound the bits of a set: 2 KiB and 32 MiB. Beyond the capacity
	// of the largest set, the rate of false positives rises.
	keySetMin, keySetMax = 1 << 14, 1 << 28
)

// keySet is a set of keys, as a Bloom filter. One goroutine adds keys; any number may call
// has concurrently.
type keySet struct {
	build string // of the sale
	known int64  // how many of the sale's accepted keys were added
	bits  []atomic.Uint64
	mask  uint32
}

func newKeySet(build string, n int64) *keySet {
	size := uint64(keySetMin)
	if n > keySetMin/keySetShare {
		size = 1 << bits.Len64(uint64(min(n*keySetShare, keySetMax)-1)) //nolint:gosec // more than 0
	}
	return &keySet{build: build, bits: make([]atomic.Uint64, size/64), mask: uint32(size - 1)} //nolint:gosec // 2^28 at the most
}

// full reports whether n keys need a larger set.
func (k *keySet) full(n int64) bool {
	size := int64(k.mask) + 1
	return size < keySetMax && n*keySetFull > size
}

// add adds keys in the form in which Redis stores them: hashes without separators.
func (k *keySet) add(hashes string) {
	for ; len(hashes) >= keyHashSize; hashes = hashes[keyHashSize:] {
		at, step := probes(uint32(hashes[0])<<24 | uint32(hashes[1])<<16 | uint32(hashes[2])<<8 | uint32(hashes[3]))
		for range keySetProbes {
			k.bits[at&k.mask/64].Or(1 << (at & k.mask % 64))
			at += step
		}
		k.known++
	}
}

// has reports whether a key may be in the set.
func (k *keySet) has(hash uint32) bool {
	at, step := probes(hash)
	for range keySetProbes {
		if k.bits[at&k.mask/64].Load()&(1<<(at&k.mask%64)) == 0 {
			return false
		}
		at += step
	}
	return true
}

// probes spreads a hash over 64 bits (the finaliser of SplitMix64): the first bit of a key,
// and the distance between its bits, which is odd, so that all are different.
func probes(hash uint32) (at, step uint32) {
	z := uint64(hash) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return uint32(z), uint32(z>>32) | 1 //nolint:gosec // both halves
}

// listen receives messages of returned stock and changed terms, from every partition's channel,
// until the Inventory ends.
func (v *Inventory) listen() {
	channels := make([]string, v.cfg.Partitions)
	for p := range channels {
		channels[p] = v.keys.stockChannel(p)
	}
	l := subscription.Listener{
		Redis: v.rdb, Channels: channels, Name: "returned stock", SignOfLife: v.cfg.signOfLife,
		OnSubscribed: func() error {
			v.dropMarks() // messages before this subscription were missed
			v.subscribed.Store(true)
			return nil
		},
		OnMessage: func(item string) {
			v.dropMark(item)
			v.observers.OnChange(item)
		},
		OnLost:  func() { v.subscribed.Store(false) }, // marks are not used without the subscription
		OnError: v.cfg.OnError,
	}
	l.Run(v.life)
}

// Returned drops this process's sold-out mark of the item. Call it after [Release]: the
// message that notifies all processes may not have come back yet.
func (v *Inventory) Returned(item string) { v.dropMark(item) }

// dropMark drops the sold-out mark of an item, if this process sells it.
func (v *Inventory) dropMark(item string) {
	v.mu.RLock()
	s := v.sellers[item]
	v.mu.RUnlock()
	if s != nil {
		s.dropMark()
	}
}

func (v *Inventory) dropMarks() {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, s := range v.sellers {
		s.dropMark()
	}
}
