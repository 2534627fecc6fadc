package inventory

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"flashsale/internal/fnv1a"
)

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
