// Package subscription receives messages of Redis channels. It detects broken connections that
// were never closed, and subscribes again after each failure.
package subscription

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
)

// signOfLife is the default of Listener.SignOfLife.
const signOfLife = 500 * time.Millisecond

// ErrSilent means that a subscription did not answer a ping.
var ErrSilent = errors.New("subscription is silent")

// Listener receives the messages of channels, over a connection of its own: a subscriber that is slow does
// not delay the messages and pings of others. All callbacks are called by Run, one at a time: while
// one of them runs, no message is received. Redis, Channels, Name, OnMessage and OnError are required.
type Listener struct {
	Redis    redis.UniversalClient
	Channels []string // all different
	// Name says what the messages are about. Reported errors begin with "listen for" and the name.
	Name string
	// SignOfLife is how long a subscription may be silent before it is pinged. If there is no
	// answer within the same time, the connection is considered broken. Without the ping this would
	// take most of a minute. Default 500 ms.
	SignOfLife time.Duration
	// OnSubscribed is called once all channels of a new subscription are confirmed: messages
	// before that may have been lost. If it returns an error, that is reported, and OnSubscribed is
	// called again after a pause, at the next message or sign of life. Default: nothing.
	OnSubscribed func() error
	// OnMessage is called with each message. With several channels it may be called before
	// OnSubscribed.
	OnMessage func(payload string)
	// OnLost is called after each subscription, even if it was not confirmed, and before its error is
	// reported. Default: nothing.
	OnLost func()
	// OnError receives the error of each subscription that has failed, ErrSilent or one of Redis,
	// and those of OnSubscribed.
	// The end of ctx is no error.
	OnError func(error)
}

// Run subscribes until ctx ends. When a subscription fails, it subscribes again after a pause. The
// pauses grow until a subscription is confirmed.
func (l *Listener) Run(ctx context.Context) {
	for b := (backoff{}); ; {
		err := l.listen(ctx, &b)
		if l.OnLost != nil {
			l.OnLost()
		}
		if ctx.Err() != nil {
			return
		}
		l.report(err)
		if !pause.For(ctx, b.next()) {
			return
		}
	}
}

func (l *Listener) report(err error) { l.OnError(fmt.Errorf("listen for %s: %w", l.Name, err)) }

// listen passes on the messages of one subscription until it fails or ctx ends. It resets b when the
// subscription is confirmed.
func (l *Listener) listen(ctx context.Context, b *backoff) error {
	var (
		missed bool      // OnSubscribed has to be called
		retry  backoff   // of OnSubscribed
		due    time.Time // when it may be called
	)
	return l.receive(ctx, func(msg any) {
		switch m := msg.(type) {
		case *redis.Subscription:
			if m.Count == len(l.Channels) {
				*b, retry, due = backoff{}, backoff{}, time.Time{}
				missed = l.OnSubscribed != nil
			}
		case *redis.Message:
			l.OnMessage(m.Payload)
		}
		if !missed || time.Now().Before(due) {
			return
		}
		if err := l.OnSubscribed(); err == nil {
			missed = false
		} else if ctx.Err() == nil {
			l.report(err)
			due = time.Now().Add(retry.next())
		}
	})
}

// receive subscribes to the channels and passes on messages until the connection fails or ctx ends: a
// *redis.Subscription for each channel subscribed, whose Count is the number of subscriptions
// so far, a *redis.Message for each message, and a *redis.Pong or nil from time to time.
// Messages before each subscription may have been lost. Errors: ErrSilent, and those of Redis.
func (l *Listener) receive(ctx context.Context, fn func(msg any)) error {
	sub := l.Redis.Subscribe(ctx) // connects to nothing
	// Closing the subscription ends a blocked receive.
	closeSub := func() { _ = sub.Close() } //nolint:errcheck // the connection may already be closed
	defer closeSub()
	defer context.AfterFunc(ctx, closeSub)()
	// With channels given there, an error would be dropped, and the first receive would connect once more.
	if err := sub.Subscribe(ctx, l.Channels...); err != nil {
		return err
	}
	for asked := false; ; {
		msg, err := sub.ReceiveTimeout(ctx, cmp.Or(l.SignOfLife, signOfLife))
		var netErr net.Error
		switch {
		case errors.As(err, &netErr) && netErr.Timeout() && asked:
			return ErrSilent
		case errors.As(err, &netErr) && netErr.Timeout():
			asked = true
			if err := sub.Ping(ctx); err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			asked = false
		}
		fn(msg)
	}
}

// The bounds of the pauses between attempts. They are short, because a subscriber misses messages
// meanwhile, and waits for its pause after Redis is back.
const (
	pauseMin = 10 * time.Millisecond
	pauseMax = 250 * time.Millisecond
)

// backoff has the pauses between the attempts of one outage. The zero value is for a new outage.
type backoff struct{ bound time.Duration }

// next returns the pause before the next attempt: random, from half of a bound up to the bound. The
// bound doubles with each call from pauseMin to pauseMax.
func (b *backoff) next() time.Duration {
	b.bound = min(max(2*b.bound, pauseMin), pauseMax)
	return b.bound/2 + rand.N(b.bound/2)
}
