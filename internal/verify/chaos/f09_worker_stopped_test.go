//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"time"
)

func init() {
	register(fault{
		ID: "F9", Name: "worker stopped for three leases", Workers: 2, Redelivers: true, Lasts: 8 * time.Second,
		Points: []string{"order.leased", "order.committing", "order.committed"},
		Draw:   behindCommit,
		Strike: stopWorkers,
		Expect: noDeadLetters,
	})
}

// stopWorkers stops one of two workers at a named place for three lease times, while it has
// leased orders. The other worker gets the orders. The first then continues with leases that
// have expired.
func stopWorkers(ctx context.Context, r *run) {
	lease, err := time.ParseDuration(leaseTime)
	if err != nil {
		r.t.Fatal(err)
	}
	m := r.shop.workers[0]
	r.answers(ctx, r.plan.Moments[0])
	for i, point := range r.plan.Points {
		if code := m.Stop(); code != 0 {
			r.failf("a worker ended with code %d on SIGTERM", code)
		}
		m.again(fmt.Sprintf("%s:%d:stop", point, 1+r.plan.Numbers[i]%5))
		r.eventually(ctx, "the worker stops at "+point, m.Stopped)
		r.struck("worker stopped at " + point)
		r.lasts(ctx, 3*lease)
		m.Continue()
		r.over()
		if err := m.WaitReady(); err != nil {
			r.t.Fatal(err)
		}
		r.recovered(ctx)
	}
}
