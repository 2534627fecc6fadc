package catalog

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"flashsale/internal/bucket"
	"flashsale/internal/pause"
	"flashsale/internal/subscription"
)

// Created announces to every process that an item may have been created, so that they
// search for it although an earlier search found none. Call it after the commit, also if
// the outcome of the commit is unknown. While Redis is away the announcement waits in this
// process. If it is lost with the process, the others find the item when their negative
// entries expire.
func (c *Catalog) Created(ctx context.Context, id string) {
	c.forget(id, 1)
	c.filter.add(creation{id: id})
	c.announce(ctx, announcement{id: id, version: 1, created: true})
}

// Changed invalidates older versions of an item in every process. Call it after the
// commit; if its outcome is unknown, with the version that the change would make. While
// Redis is away the announcement waits, as with Created.
func (c *Catalog) Changed(ctx context.Context, id string, version int64) {
	c.forget(id, version)
	c.announce(ctx, announcement{id: id, version: version})
}

// Outdated makes this process reload an item before its next use, if the cached item is
// older than the version.
func (c *Catalog) Outdated(id string, version int64) { c.forget(id, version) }

// announcement is an announcement to the other processes.
type announcement struct {
	id      string
	version int64
	created bool
}

const (
	// announceTimeout bounds one attempt to announce.
	announceTimeout = 700 * time.Millisecond
	// maxUnannounced bounds the announcements that wait for Redis.
	maxUnannounced = 10_000
)

// announce notifies the other processes. If that fails, Run repeats it. The end of ctx
// does not interrupt it.
func (c *Catalog) announce(ctx context.Context, n announcement) {
	if c.remote == nil {
		return
	}
	err := c.tryAnnounce(context.WithoutCancel(ctx), n)
	if err == nil {
		return
	}
	c.cfg.OnError(err)
	select {
	case c.unannounced <- n:
	default:
		c.cfg.OnError(fmt.Errorf("catalog: item %s: change not announced, too many announcements wait for Redis; other processes reload it when their copy expires", n.id))
	}
}

func (c *Catalog) tryAnnounce(ctx context.Context, n announcement) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.announceLimit)
	defer cancel()
	// First the negative entry, then the count: a process that receives the id reads
	// Redis next.
	if err := c.remote.invalidate(ctx, n.id, n.version); err != nil || !n.created {
		return err
	}
	_, err := c.remote.announce(ctx, n.id)
	return err
}

// keepAnnouncing repeats announcements that have failed, until ctx ends.
func (c *Catalog) keepAnnouncing(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-c.unannounced:
			for c.tryAnnounce(ctx, n) != nil {
				if !pause.For(ctx, retryPause) {
					return
				}
			}
		}
	}
}

// forget makes this process reload an item before its next use if it is older than the
// version, and the list of items too. It removes the negative entry of the id. The results
// of loads under way are not cached, because they may have read before the change.
func (c *Catalog) forget(id string, version int64) {
	c.forgetList() // before the item, which a list that is being loaded could restore
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown.Invalidate(id)
	r, ok := c.known.GetIfPresent(id)
	if ok && r.view.Load().Item.Version >= version {
		return // this process has made the change, or has loaded it already
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

// listen receives messages of created and changed items until ctx ends.
func (c *Catalog) listen(ctx context.Context) {
	l := subscription.Listener{
		Redis: c.remote.rdb, Channels: []string{itemsChannel}, Name: "changed items",
		OnSubscribed: func() error {
			c.resubscribed()
			return nil
		},
		OnMessage: c.handle,
		OnError:   c.cfg.OnError,
	}
	l.Run(ctx)
}

// resubscribed is called for a new subscription, because earlier messages were missed.
// Items are shown while they are reloaded. Negative entries are removed, and all ids are
// read again, in case a process died before it could announce a new item.
func (c *Catalog) resubscribed() {
	c.mu.Lock() // a load that began before adds no negative entry after this
	before := c.subscriptions.Add(1) - 1
	c.unknown.InvalidateAll()
	c.mu.Unlock()
	if before > 0 {
		// The last subscription may have ended with a restart or a failover of Redis,
		// which may have lost the latest creations and reuse their counts.
		c.filter.invalidate()
	}
	c.rebuildFilter()
}

// handle processes a message: "created <generation> <id>", "changed <version> <id>" or
// "warm - <id>". It ignores others, which a later version of the program may send.
func (c *Catalog) handle(message string) {
	what, rest, _ := strings.Cut(message, " ")
	detail, id, _ := strings.Cut(rest, " ")
	if !ValidID(bucket.Item(id)) {
		return
	}
	switch what {
	case "created": // the message "changed" before it has removed a negative entry
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
				if _, err := c.fetchBuckets(c.life, id); err != nil {
					c.cfg.OnError(fmt.Errorf("warm item %s: %w", id, err))
				}
			}()
		}
	}
}
