//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"time"
)

func init() {
	register(fault{
		ID: "F6b", Name: "random masters killed", Cluster: true, MayLoseAccepted: true,
		Lasts: 40 * time.Second, RecoversIn: 5 * time.Second,
		Strike: func(ctx context.Context, r *run) { killMasters(ctx, r, false) }, Expect: expectCluster,
	})
	// Each master has one replica, so the one that takes over has confirmed every purchase that was
	// answered, and no 202 may be lost.
	register(fault{
		ID: "F6c", Name: "random masters killed, purchases confirmed", Cluster: true,
		APIArgs: []string{"--confirm-replicas", "1"},
		Lasts:   40 * time.Second, RecoversIn: 5 * time.Second,
		Strike: func(ctx context.Context, r *run) { killMasters(ctx, r, true) }, Expect: expectCluster,
	})
	// The buckets of each item are on all masters.
	register(fault{
		ID: "F6d", Name: "random masters killed, stock in buckets", Cluster: true, Buckets: 7,
		APIArgs: []string{"--confirm-replicas", "1"},
		Lasts:   40 * time.Second, RecoversIn: 5 * time.Second,
		Strike: func(ctx context.Context, r *run) { killMasters(ctx, r, true) }, Expect: expectCluster,
	})
}

// masterKills is how often a master is killed.
const masterKills = 10

// killMasters kills random masters. The replica of each takes over, and the killed one becomes its
// replica. Without a replica no purchase is answered if replicas must confirm.
func killMasters(ctx context.Context, r *run, confirmed bool) {
	r.t.Helper()
	c := r.shop.cluster
	elections := 0
	for blow := range masterKills {
		r.answers(ctx, r.plan.Moments[blow])
		masters := c.masters(ctx)
		master := masters[r.plan.Numbers[blow]%len(masters)]
		replica := c.replica(ctx, master)
		if err := master.Kill(); err != nil {
			r.t.Fatalf("kill a master: %v", err)
		}
		r.rewound.Add(1)
		r.struck(fmt.Sprintf("master %s killed", master.Addr()))
		if c.promoted(ctx, replica) {
			elections++
		}
		if !confirmed {
			r.over()
			r.recovered(ctx)
		}
		if err := master.Start(); err != nil {
			r.t.Fatalf("start the old master: %v", err)
		}
		c.replica(ctx, replica)
		if confirmed {
			r.over()
			r.recovered(ctx)
		}
	}
	r.notef("%d of %d replicas were elected, the others promoted by TAKEOVER", elections, masterKills)
}
