package catalog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
	"flashsale/internal/subscription"
)

// The pauses between tries to subscribe.
const (
	listenPauseMin = 10 * time.Millisecond
	listenPauseMax = time.Second
)

// listen learns of created and changed items until ctx ends.
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
		if !pause.For(ctx, wait/2+rand.N(wait/2)) {
			return
		}
	}
}

func (c *Catalog) listenOnce(ctx context.Context) (confirmed bool, err error) {
	err = subscription.Hear(ctx, c.far.rdb, func(msg any) {
		switch m := msg.(type) {
		case *redis.Subscription:
			confirmed = true
			c.heardNothing()
		case *redis.Message:
			c.hear(m.Payload)
		}
	}, itemsChannel)
	return confirmed, err
}

// heardNothing follows a new subscription: what was said before it, nobody here
// has heard. Items are shown and renewed; ids that were none are searched for again,
// and all ids are read again, should a creator have died with what he could not tell.
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
