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

// Created tells every process that an item may have been created: that it is to
// be searched for although it was searched for in vain before. It is to be called
// after the commit, also when its outcome is not known. While Redis is away the
// message waits in this process; should it die with it, the others find out
// themselves, when what they remember is over.
func (c *Catalog) Created(ctx context.Context, id string) {
	c.forget(id, 1)
	c.filter.add(creation{id: id})
	c.tell(ctx, news{id: id, version: 1, created: true})
}

// Changed makes every process forget an item as it was before the version. It is
// to be called after the commit; when its outcome is not known, with the version
// that the change was to make. While Redis is away it is as with Created.
func (c *Catalog) Changed(ctx context.Context, id string, version int64) {
	c.forget(id, version)
	c.tell(ctx, news{id: id, version: version})
}

// Outdated makes this process read an item again before it is shown or bought by, if what it
// remembers is older than the version.
func (c *Catalog) Outdated(id string, version int64) { c.forget(id, version) }

// news is what the other processes are to be told.
type news struct {
	id      string
	version int64
	created bool
}

const (
	// tellTimeout bounds one try to tell them.
	tellTimeout = time.Second
	// maxUntold bounds what waits to be told.
	maxUntold = 10_000
)

// tell tells the other processes, or leaves that to Run. It is done also for a
// caller that has left.
func (c *Catalog) tell(ctx context.Context, n news) {
	if c.far == nil {
		return
	}
	err := c.tryTell(context.WithoutCancel(ctx), n)
	if err == nil {
		return
	}
	c.cfg.OnError(err)
	select {
	case c.untold <- n:
	default:
		c.cfg.OnError(fmt.Errorf("catalog: item %s: change not announced, too many announcements wait for Redis; other processes reload it when their copy expires", n.id))
	}
}

func (c *Catalog) tryTell(ctx context.Context, n news) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.tellLimit)
	defer cancel()
	// First the entry that says it is none, then the count: who learns of the id
	// asks Redis next.
	if err := c.far.invalidate(ctx, n.id, n.version); err != nil || !n.created {
		return err
	}
	_, err := c.far.announce(ctx, n.id)
	return err
}

// keepTelling tells what could not be told at once, until ctx ends.
func (c *Catalog) keepTelling(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-c.untold:
			for c.tryTell(ctx, n) != nil {
				if !pause.For(ctx, retryPause) {
					return
				}
			}
		}
	}
}

// forget makes this process load an item again before it is shown or bought again,
// if it is older than the version, and the list of items too. What is remembered
// as no item is searched for again. Looks under way are not remembered, for they may
// have read before the change.
func (c *Catalog) forget(id string, version int64) {
	c.forgetList() // before the item, which a list that is being taken over might bring back
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown.Invalidate(id)
	r, ok := c.known.GetIfPresent(id)
	if ok && r.view.Load().Item.Version >= version {
		return // this process has made the change, or has seen it already
	}
	for k := toShow; k <= toBuy; k++ {
		if f := c.flights[flightKey{id, k}]; f != nil {
			f.void = true
			delete(c.flights, f.key)
		}
	}
	if !ok {
		return
	}
	c.counts.invalid.Add(1)
	r.stock.voids.Add(1)
	r.stock.asOf.Store(0)
	r.swap(func(v *View) bool {
		v.changed, v.least = true, max(v.least, version)
		return true
	})
}

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
