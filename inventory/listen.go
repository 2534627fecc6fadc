package inventory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
	"flashsale/internal/subscription"
)

// listenPauseMax bounds the pause between tries to subscribe.
const listenPauseMax = time.Second

// listen learns of returned stock and changed terms until the Inventory ends.
func (v *Inventory) listen() {
	for wait := resendMin; ; wait = min(2*wait, listenPauseMax) {
		confirmed, err := v.listenOnce(v.life)
		if v.life.Err() != nil {
			return
		}
		v.cfg.OnError(fmt.Errorf("listen for returned stock: %w", err))
		if confirmed {
			wait = resendMin
		}
		if !pause.For(v.life, wait/2+rand.N(wait/2)) {
			return
		}
	}
}

// listenOnce subscribes to every partition's channel and passes on what it
// hears until the connection fails. It says whether the subscription was
// confirmed.
func (v *Inventory) listenOnce(ctx context.Context) (confirmed bool, err error) {
	channels := make([]string, v.cfg.Partitions)
	for p := range channels {
		channels[p] = stockChannel(p)
	}
	// While nothing is heard, marks are not used.
	defer v.hears.Store(false)
	err = subscription.Hear(ctx, v.rdb, func(msg any) {
		switch m := msg.(type) {
		case *redis.Subscription:
			if m.Count == len(channels) {
				confirmed = true
				v.dropMarks() // messages before this one were missed
				v.hears.Store(true)
			}
		case *redis.Message:
			v.dropMark(m.Payload)
			v.observers.OnChange(m.Payload)
		}
	}, channels...)
	return confirmed, err
}

// Returned forgets that the item is sold out, in this process. Call it after [Release]:
// the message that tells all processes may not have come back yet.
func (v *Inventory) Returned(item string) { v.dropMark(item) }

// dropMark forgets what is known of an item, if this process sells it.
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
