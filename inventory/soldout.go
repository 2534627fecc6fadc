package inventory

import (
	"strings"
	"time"

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

// Refusal returns the refusal of a purchase that the sold-out mark can answer now: ErrSoldOut or a
// QuantityError; nil if Redis has to decide. [Inventory.Submit] returns the same refusal, but its caller
// has to build a Request first.
func (v *Inventory) Refusal(item, buyer, idempotencyKey string, quantity int64) error {
	v.mu.RLock()
	s := v.sellers[item]
	v.mu.RUnlock()
	if s == nil {
		return nil
	}
	return s.refusal(buyer, idempotencyKey, quantity, time.Now())
}

// refusal is [Inventory.Refusal] for the seller's item.
func (s *seller) refusal(buyer, idempotencyKey string, quantity int64, now time.Time) error {
	m := s.mark.Load()
	switch {
	case m == nil || m.drops != s.drops.Load() || !s.v.subscribed.Load() || now.UnixNano() >= m.until,
		m.accepted.has(keyHashOf(buyer, idempotencyKey)):
		return nil
	case quantity > m.limit:
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

// dropMark removes the sold-out mark. The reply of a script that is in progress sets no mark
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
			v.DropSoldOutMark(item)
			v.observers.OnChange(item)
		},
		OnLost:  func() { v.subscribed.Store(false) }, // marks are not used without the subscription
		OnError: v.cfg.OnError,
	}
	l.Run(v.life)
}

// DropSoldOutMark drops this process's sold-out mark of the item. Call it after [Release]: the
// message that notifies all processes may not have come back yet.
func (v *Inventory) DropSoldOutMark(item string) {
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
