package inventory

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
)

// soldOutMark lets the process answer "sold out" from memory. A request that
// repeats an accepted one must still get its order, so the mark carries the
// set of the accepted (buyer, key) pairs, frozen since nothing was left: who is
// surely not in it has nothing to repeat. A wrong "maybe" costs a look at Redis.
type soldOutMark struct {
	version  string // of the stock; another version voids the mark
	drops    int64  // the seller's count of drops; another count voids the mark
	accepted *bloom.BloomFilter
	until    atomic.Int64 // Unix nanoseconds; renewed by each script that finds nothing left
}

// falsePositives is the share of strangers that a mark sends to Redis.
const falsePositives = 0.001

// markTimeout bounds the reading of the accepted set.
const markTimeout = 30 * time.Second

// soldOut reports whether a request can be refused from memory.
func (s *seller) soldOut(r *Request) bool {
	m := s.mark.Load()
	if m == nil || m.drops != s.drops.Load() || r.since.UnixNano() >= m.until.Load() {
		return false
	}
	var buf [384]byte // a buyer and a key at their longest
	return !m.accepted.Test(appendField(buf[:0], r))
}

// appendField writes the request's field in the idempotency hash.
func appendField(b []byte, r *Request) []byte {
	b = append(b, r.Buyer...)
	b = append(b, ' ')
	return append(b, r.IdempotencyKey...)
}

// dropMark forgets that the item is sold out. What a script that is under way
// says of it is forgotten too, because it may have run before the stock returned.
func (s *seller) dropMark() {
	s.drops.Add(1)
	s.mark.Store(nil)
}

// noteSoldOut keeps the mark true to what the script has just said: renewed
// while an open sale has nothing left, gone when the sale is shut or has units.
// drops is the count of drops before the script was sent.
func (s *seller) noteSoldOut(r *purchaseReply, drops int64) {
	switch {
	case r.left > 0 || strings.ContainsAny(r.verdicts, "OCP"):
		s.mark.Store(nil)
	case drops != s.drops.Load():
		// Stock may have returned since; the next script tells.
	case strings.ContainsRune(r.verdicts, 'S'):
		life := s.v.cfg.MarkLife
		if r.closesMS > 0 {
			// After its end the sale is closed, and no longer sold out.
			life = min(life, time.Duration(r.closesMS-r.nowMS)*time.Millisecond)
		}
		s.markSoldOut(r.version, life, drops)
	}
}

// markSoldOut renews the mark, or makes one beside the selling. While one is
// made, requests go to Redis as before.
func (s *seller) markSoldOut(version string, life time.Duration, drops int64) {
	if m := s.mark.Load(); m != nil && m.version == version && m.drops == drops {
		m.until.Store(time.Now().Add(life).UnixNano())
		return
	}
	if !s.marking.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer s.marking.Store(false)
		ctx, cancel := context.WithTimeout(s.v.life, markTimeout)
		defer cancel()
		m, err := s.newMark(ctx, version)
		if err != nil {
			s.v.cfg.OnError(fmt.Errorf("mark %s sold out: %w", s.item, err))
			return
		}
		m.drops = drops
		// The set was read after the version was; the mark counts only from
		// the next script that finds the same version and still nothing left.
		s.mark.Store(m)
	}()
}

func (s *seller) newMark(ctx context.Context, version string) (*soldOutMark, error) {
	key := s.v.keys.idempotency(s.item)
	n, err := s.v.rdb.HLen(ctx, key).Result()
	if err != nil {
		return nil, err
	}
	m := &soldOutMark{version: version, accepted: bloom.NewWithEstimates(uint(max(n, 100)), falsePositives)}
	var cursor uint64
	for {
		fields, next, err := s.v.rdb.HScan(ctx, key, cursor, "", 1000).Result()
		if err != nil {
			return nil, err
		}
		for i := 0; i+1 < len(fields); i += 2 {
			m.accepted.AddString(fields[i])
		}
		if cursor = next; cursor == 0 {
			return m, nil
		}
	}
}
