// Package subscription receives messages of Redis channels and detects broken connections that
// were never closed.
package subscription

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// SignOfLife is how long a subscription may be silent before it is pinged. If there is no
// answer within the same time, the connection is considered broken. Without the ping this would
// take most of a minute.
const SignOfLife = 500 * time.Millisecond

// ErrSilent means that a subscription did not answer a ping.
var ErrSilent = errors.New("subscription is silent")

// Receive subscribes to channels and passes on messages until the connection fails or ctx ends: a
// *redis.Subscription for each channel subscribed, whose Count is the number of subscriptions
// so far, a *redis.Message for each message, and a *redis.Pong or nil from time to time.
// Messages before each subscription may have been lost. Errors: ErrSilent, and those of Redis.
func Receive(ctx context.Context, rdb redis.UniversalClient, fn func(msg any), channels ...string) error {
	sub := rdb.Subscribe(ctx, channels...)
	// Closing the subscription ends a blocked receive.
	closeSub := func() { _ = sub.Close() } //nolint:errcheck // the connection may already be closed
	defer closeSub()
	defer context.AfterFunc(ctx, closeSub)()
	for asked := false; ; {
		msg, err := sub.ReceiveTimeout(ctx, SignOfLife)
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
