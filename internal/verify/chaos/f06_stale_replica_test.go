//go:build chaos && unix

package chaos

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

func init() {
	register(fault{
		ID: "F6", Name: "stale replica promoted", Cluster: true, Shuts: true, MayLoseAccepted: true,
		Lasts: 15 * time.Second, RecoversIn: 5 * time.Second,
		Strike: promoteStale, Expect: expectCluster,
	})
}

const (
	// stalePromotions is how often a stale replica is promoted.
	stalePromotions = 2
	// fillers is the number of large writes after which the buffers of the connection to a
	// stopped replica are full: it gets nothing that is written later, even though it reads
	// what the kernel has kept for it.
	fillers    = 48
	fillerSize = 1 << 20
)

// promoteStale promotes replicas that have missed writes, each of another master, which has died.
func promoteStale(ctx context.Context, r *run) {
	r.t.Helper()
	c := r.shop.cluster
	for blow := range stalePromotions {
		r.answers(ctx, r.plan.Moments[blow])
		key := r.shop.saleKey(r.plan.Items[(r.plan.Numbers[0]+blow)%itemsOnSale].ID)
		probe := key[:strings.Index(key, "}")+1] + ":probe"
		master := c.owner(ctx, key)
		replica := c.replica(ctx, master)
		if err := replica.Pause(); err != nil {
			r.t.Fatalf("stop the replica: %v", err)
		}
		r.struck("replica of " + key + " stopped")
		large := strings.Repeat("x", fillerSize)
		for range fillers {
			c.do(ctx, master, "set", probe+":filler", large)
		}
		c.do(ctx, master, "set", probe, "written")
		r.answers(ctx, r.plan.Moments[blows/2+blow])
		if blow%2 == 0 {
			r.pileUp(ctx)
		}
		if err := master.Kill(); err != nil {
			r.t.Fatalf("kill the master: %v", err)
		}
		r.struck("master of " + key + " killed")
		r.goOn()
		r.rewound.Add(1)
		if err := replica.Continue(); err != nil {
			r.t.Fatalf("continue the replica: %v", err)
		}
		elected := c.promoted(ctx, replica)
		var err error
		// Until the nodes agree on the new master it refuses to read.
		r.eventually(ctx, "the probe is read", func() bool {
			err = replica.rdb.Get(ctx, probe).Err()
			return err == nil || errors.Is(err, redis.Nil)
		})
		if err == nil {
			r.voidf("the promoted replica was not stale")
		}
		r.notef("stale replica %s", how[elected])
		r.over()
		r.recovered(ctx)
		if err := master.Start(); err != nil {
			r.t.Fatalf("start the old master: %v", err)
		}
		c.replica(ctx, replica)
	}
}
