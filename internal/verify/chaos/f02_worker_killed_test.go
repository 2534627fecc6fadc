//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"slices"
	"time"
)

func init() {
	register(fault{
		ID: "F2", Name: "worker killed", Small: true, ProxyWorker: true, Redelivers: true,
		Points: []string{"order.leased", "order.committing", "order.committed", acknowledging},
		Draw:   behindCommit,
		Strike: killWorkers,
		Expect: nothingBuried,
	})
}

// behindCommit has a run strike behind the commit in any case: only there is an
// order that has a row delivered again.
func behindCommit(p *plan) {
	if !slices.Contains(p.Points, "order.committed") {
		p.Points = append(p.Points, "order.committed")
	}
}

// acknowledging stands for the moment at which Redis has carried out an
// acknowledgement whose reply the worker has not received.
const acknowledging = "acknowledging"

// killWorkers kills the worker anywhere, and its successors at named places.
// The next one finds what was leased to it once the lease has run out.
func killWorkers(ctx context.Context, r *run) {
	m := r.shop.workers[0]
	r.answers(ctx, r.plan.Moments[0])
	m.Kill()
	r.struck("worker killed")
	r.over()
	for i, point := range r.plan.Points {
		nth := 1 + r.plan.Numbers[i]%5
		if point == acknowledging {
			r.killInAcknowledge(ctx, m, nth)
		} else {
			m.again(fmt.Sprintf("%s:%d", point, nth))
			if err := m.ended(ctx); err != nil {
				r.t.Fatalf("the worker at %s: %v", point, err)
			}
		}
		r.struck("worker killed at " + point)
		r.over()
	}
	m.again("")
	r.eventually(ctx, "the orders of the dead worker are delivered again", func() bool {
		_, failed := r.shop.counts(ctx)
		return failed > 0
	})
}

// replyDelay is how long the replies of Redis travel to a worker that is to be
// killed before it has one. It is below the worker's own patience with Redis.
const replyDelay = 700 * time.Millisecond

// killInAcknowledge stops a worker behind its commit, delays the replies of
// Redis, lets it acknowledge, and kills it before it has heard of that.
func (r *run) killInAcknowledge(ctx context.Context, m *member, nth int) {
	r.t.Helper()
	m.again(fmt.Sprintf("order.committed:%d:stop", nth))
	r.eventually(ctx, "the worker stops behind its commit", m.Stopped)
	before, _ := r.shop.counts(ctx)
	r.shop.toWorker.SetLatency(0, replyDelay)
	m.Continue()
	r.eventually(ctx, "the acknowledgement is carried out", func() bool {
		now, _ := r.shop.counts(ctx)
		return now > before
	})
	m.Kill()
	r.shop.toWorker.SetLatency(0, 0)
}
