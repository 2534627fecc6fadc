package inventory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// signOfLife is how long the subscription may be silent before it is asked for a
// sign of life; when none comes within as long again, it is made anew. A link
// that is cut without a word would otherwise be noticed after minutes. Until it
// is, a message that was lost costs what a mark may live.
const signOfLife = 500 * time.Millisecond

// listenPauseMax bounds the pause between tries to subscribe.
const listenPauseMax = time.Second

// errSilent says that the subscription gave no sign of life.
var errSilent = errors.New("inventory: subscription is silent")

// listen hears of returned stock and changed terms until the Inventory ends.
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
		if !pause(v.life, wait/2+rand.N(wait/2)) {
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
	sub := v.rdb.Subscribe(ctx, channels...)
	// Closing is what ends a blocked receive.
	closeSub := func() { _ = sub.Close() } //nolint:errcheck // the connection may be gone already; nobody is left to tell
	defer closeSub()
	defer context.AfterFunc(ctx, closeSub)()
	for asked := false; ; {
		msg, err := sub.ReceiveTimeout(ctx, signOfLife)
		var netErr net.Error
		switch {
		case errors.As(err, &netErr) && netErr.Timeout() && asked:
			return confirmed, errSilent
		case errors.As(err, &netErr) && netErr.Timeout():
			asked = true
			if err := sub.Ping(ctx); err != nil {
				return confirmed, err
			}
		case err != nil:
			return confirmed, err
		default:
			asked = false
		}
		switch m := msg.(type) {
		case *redis.Subscription:
			if m.Count == len(channels) {
				confirmed = true
				v.dropMarks() // what was said before, nobody here has heard
			}
		case *redis.Message:
			v.dropMark(m.Payload)
			v.cfg.OnChange(m.Payload)
		}
	}
}

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
