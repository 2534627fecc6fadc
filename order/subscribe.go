package order

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// pingEvery is how long a subscription may be silent before it is asked for a
// sign of life; one that gives none within as long again is made anew. A link
// that is cut without a word would otherwise be noticed after most of a minute.
const pingEvery = 700 * time.Millisecond

// errSilent says that a subscription gave no sign of life.
var errSilent = errors.New("order: subscription is silent")

// hear subscribes to a channel and passes on what it receives until the
// connection fails or ctx ends: a *redis.Subscription when it is subscribed, a
// *redis.Message for each message, and nil or a *redis.Pong from time to time.
func hear(ctx context.Context, rdb redis.UniversalClient, channel string, fn func(msg any)) error {
	sub := rdb.Subscribe(ctx, channel)
	// Closing is what ends a blocked receive.
	closeSub := func() { _ = sub.Close() } //nolint:errcheck // the connection may be gone already; nobody is left to tell
	defer closeSub()
	defer context.AfterFunc(ctx, closeSub)()
	silent := 0
	for {
		msg, err := sub.ReceiveTimeout(ctx, pingEvery)
		var netErr net.Error
		switch {
		case errors.As(err, &netErr) && netErr.Timeout() && silent < 2:
			silent++
			if err := sub.Ping(ctx); err != nil {
				return err
			}
		case errors.As(err, &netErr) && netErr.Timeout():
			return errSilent
		case err != nil:
			return err
		default:
			silent = 0
		}
		fn(msg)
	}
}
