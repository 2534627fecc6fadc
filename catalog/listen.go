package catalog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// signOfLife is how long the subscription may be silent before it is asked for a
// sign of life; when none comes within as long again, it is made anew.
const signOfLife = 500 * time.Millisecond

// The pauses between tries to subscribe.
const (
	listenPauseMin = 10 * time.Millisecond
	listenPauseMax = time.Second
)

// errSilent says that the subscription gave no sign of life.
var errSilent = errors.New("subscription is silent")

// listen hears of created and changed items until ctx ends.
func (c *Catalog) listen(ctx context.Context) {
	for wait := listenPauseMin; ; wait = min(2*wait, listenPauseMax) {
		confirmed, err := c.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		c.cfg.OnError(fmt.Errorf("listen for changed items: %w", err))
		if confirmed {
			wait = listenPauseMin
		}
		if !pause(ctx, wait/2+rand.N(wait/2)) {
			return
		}
	}
}

func (c *Catalog) listenOnce(ctx context.Context) (confirmed bool, err error) {
	sub := c.far.rdb.Subscribe(ctx, itemsChannel)
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
			confirmed = true
			c.heardNothing()
		case *redis.Message:
			c.hear(m.Payload)
		}
	}
}

// heardNothing follows a new subscription: what was said before it, nobody here
// has heard. Items are shown and renewed; ids that were none are looked for again,
// and all ids are read anew, should a creator have died with what he could not tell.
func (c *Catalog) heardNothing() {
	c.mu.Lock() // a look that began before remembers no id as none after this
	before := c.heard.Add(1) - 1
	c.unknown.InvalidateAll()
	c.mu.Unlock()
	if before > 0 {
		// What ended the one before may be a restart or a failover of Redis, which
		// may have forgotten the latest creations and counts the next ones like them.
		c.filter.doubt()
	}
	c.rebuildFilter()
}

// hear does what a message says: "created <generation> <id>", "changed <version>
// <id>" or "warm - <id>". One that cannot be read is of a version to come.
func (c *Catalog) hear(message string) {
	what, rest, _ := strings.Cut(message, " ")
	detail, id, _ := strings.Cut(rest, " ")
	if !ValidID(id) {
		return
	}
	switch what {
	case "created": // that it may be remembered as none, a message before has said
		c.filter.add(creation{detail, id})
	case "changed":
		version, err := strconv.ParseInt(detail, 10, 64)
		if err != nil {
			return
		}
		c.forget(id, version)
	case "warm":
		if c.begin() {
			go func() {
				defer c.work.Done()
				if _, err := c.fetch(c.life, id, toRenew); err != nil {
					c.cfg.OnError(fmt.Errorf("warm item %s: %w", id, err))
				}
			}()
		}
	}
}

// pause waits, and returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
