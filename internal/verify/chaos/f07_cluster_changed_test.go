//go:build chaos && unix

package chaos

import (
	"context"
	"errors"
	"slices"
	"time"

	"flashsale/internal/testing/redistest"
)

func init() {
	register(fault{
		ID: "F7", Name: "cluster failover and moved slots", Cluster: true, Lasts: 10 * time.Second,
		Strike: changeCluster, Expect: expectShortErrors,
	})
}

// errorsWithin is how long purchases of one buyer or of one partition may be answered with
// errors.
const errorsWithin = 5 * time.Second

// halfMovedFor is how long a slot stays half moved. It is longer than the service waits for Redis,
// so that some purchases get 503.
const halfMovedFor = 2 * time.Second

// changeCluster replaces each master by its replica, lets a fourth master join, and moves the
// partitions of the items to it.
func changeCluster(ctx context.Context, r *run) {
	r.t.Helper()
	s := r.measure("cluster changed") // until the end of the run
	r.mu.Lock()
	s.outages = newOutages()
	r.mu.Unlock()
	c := r.shop.cluster
	blow := 0
	wait := func() {
		r.answers(ctx, r.plan.Moments[blow])
		blow++
	}
	for _, master := range c.masters(ctx) {
		wait()
		next := c.replica(ctx, master)
		r.struck("failover of " + master.Addr())
		c.failOver(ctx, next)
	}
	joined := c.join(ctx)
	for _, item := range r.plan.Items {
		wait()
		key := r.shop.saleKey(item.ID)
		from := c.owner(ctx, key)
		r.struck("slot of " + key + " moves")
		before := c.halfMoved(ctx)
		c.moveSlot(ctx, key, from, joined, func() {
			r.eventually(ctx, "a process calls for the moving slot", func() bool { return c.halfMoved(ctx) > before })
			r.lasts(ctx, halfMovedFor)
		})
		if now := c.owner(ctx, key); now != joined {
			r.t.Fatalf("the slot of %s is on %s, not on %s", key, now.Addr(), joined.Addr())
		}
	}
	wait()
	r.over()
	r.recovered(ctx)
	moved := c.errorsOf(ctx, "MOVED")
	r.notef("the nodes answered MOVED %d times, and ASK or TRYAGAIN %d times", moved, c.halfMoved(ctx))
	if moved == 0 {
		r.voidf("no process called a node that did not have the slot")
	}
}

// halfMoved counts the commands for slots of which a node did not have all keys.
func (c *cluster) halfMoved(ctx context.Context) int {
	c.t.Helper()
	return c.errorsOf(ctx, "ASK") + c.errorsOf(ctx, "TRYAGAIN")
}

// failOver lets a replica take over from its running master without losing data, and waits until
// the master follows it.
func (c *cluster) failOver(ctx context.Context, n *node) {
	c.t.Helper()
	old := slices.IndexFunc(c.running(), func(m *node) bool { return c.follows(ctx, n, m) })
	if old < 0 {
		c.t.Fatalf("%s has no master", n.Addr())
	}
	for !c.isMaster(ctx, n) {
		// The replica gives up after five seconds.
		c.do(ctx, n, "cluster", "failover")
		err := new(run).await(ctx, electsWithin, func() bool { return c.isMaster(ctx, n) })
		if err != nil && !errors.Is(err, errNever) {
			c.t.Fatalf("failover to %s: %v", n.Addr(), err)
		}
	}
	c.eventually(ctx, "the old master follows", func() bool { return c.follows(ctx, c.running()[old], n) })
}

// join adds a master without slots.
func (c *cluster) join(ctx context.Context) *node {
	c.t.Helper()
	n := c.start()
	c.do(ctx, n, "cluster", "meet", "127.0.0.1", c.nodes[0].Port(), c.nodes[0].Bus())
	c.agree(ctx)
	return n
}

// moveSlot moves the slot of a key from one master to another. between is called when both know of
// the move and no key has moved.
func (c *cluster) moveSlot(ctx context.Context, key string, from, to *node, between func()) {
	c.t.Helper()
	slot, err := from.rdb.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		c.t.Fatalf("slot of %s: %v", key, err)
	}
	var others []*redistest.Server
	for _, n := range c.masters(ctx) {
		if n != from && n != to {
			others = append(others, n.Server)
		}
	}
	if err := redistest.MoveSlot(ctx, int(slot), from.Server, to.Server, others, between); err != nil {
		c.t.Fatal(err)
	}
}

// expectShortErrors expects that errors were short, and that the nodes refused no command for its
// keys.
func expectShortErrors(ctx context.Context, r *run) {
	expectCluster(ctx, r)
	for _, s := range r.spans {
		r.report(s)
		r.politely(s)
		o := s.outages
		r.notef("%d answers were errors, for at most %d ms of a buyer and %d ms of a partition", o.refused, o.buyer().Milliseconds(), o.item().Milliseconds())
		if longest := max(o.buyer(), o.item()); longest > errorsWithin {
			r.failf("errors lasted %v", longest)
		}
	}
}
