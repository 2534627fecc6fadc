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
		Expect: noDeadLetters,
	})
}

// behindCommit makes a run always strike after the commit, because only there is an order that
// already has a row delivered again.
func behindCommit(p *plan) {
	if !slices.Contains(p.Points, "order.committed") {
		p.Points = append(p.Points, "order.committed")
	}
}

// acknowledging is the moment at which Redis has executed an acknowledgement but the worker has
// not received the reply.
const acknowledging = "acknowledging"

// killWorkers kills the worker at a random moment, and its successors at named places. The next
// worker gets the leased orders when their leases expire.
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

// replyDelay is the delay of Redis's replies to a worker that is to be killed before it
// receives one. It is below the worker's own timeout for Redis.
const replyDelay = 700 * time.Millisecond

// killInAcknowledge stops a worker after its commit, delays the replies of Redis, lets the
// worker acknowledge, and kills it before it receives the reply.
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
