// Package subscription listens to channels of Redis and notices a link that was
// cut without a word, for the rooms that are told of changes.
package subscription

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// SignOfLife is how long a subscription may be silent before it is asked for a
// sign of life; when none comes within as long again, it is at its end. A link that
// is cut without a word would otherwise be noticed after most of a minute.
const SignOfLife = 500 * time.Millisecond

// ErrSilent says that a subscription gave no sign of life.
var ErrSilent = errors.New("subscription is silent")

// Hear subscribes to channels and passes on what it receives until the connection
// fails or ctx ends: a *redis.Subscription for each channel that is subscribed to,
// whose Count tells how many are, a *redis.Message for each message, and a
// *redis.Pong or nil from time to time. Messages may have been lost before each
// subscription. Errors: ErrSilent, and those of Redis.
func Hear(ctx context.Context, rdb redis.UniversalClient, fn func(msg any), channels ...string) error {
	sub := rdb.Subscribe(ctx, channels...)
	// Closing is what ends a blocked receive.
	closeSub := func() { _ = sub.Close() } //nolint:errcheck // the connection may be gone already; nobody is left to tell
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
