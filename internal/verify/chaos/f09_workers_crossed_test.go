//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"time"
)

func init() {
	register(fault{
		ID: "F9b", Name: "four workers, killed and stopped", DB: "postgres", Workers: 4, Redelivers: true,
		Lasts: 24 * time.Second, RecoversIn: 10 * time.Second,
		Strike: crossWorkers, Expect: noDeadLetters,
	})
	register(fault{
		ID: "F9c", Name: "worker stopped in its transaction", DB: "postgres", Workers: 2,
		Lasts: 20 * time.Second, RecoversIn: 10 * time.Second,
		Strike: freezeWriter,
		Expect: func(ctx context.Context, r *run) {
			noDeadLetters(ctx, r)
			r.complained("idle-in-transaction timeout")
		},
	})
}

// crossings is how many blows hit the workers.
const crossings = 6

// crossWorkers kills and stops four workers of one database. A worker that was stopped for three
// lease times after it has written, or before, commits the same orders as the one that got them
// in the meantime.
func crossWorkers(ctx context.Context, r *run) {
	lease, err := time.ParseDuration(leaseTime)
	if err != nil {
		r.t.Fatal(err)
	}
	points := []string{"order.leased", "order.committing"}
	for n := range crossings {
		r.answers(ctx, r.plan.Moments[n]/2)
		m := r.shop.workers[r.plan.Numbers[n]%len(r.shop.workers)]
		if n%2 == 0 {
			m.Kill()
			r.struck("worker killed")
			m.again("")
			if err := m.WaitReady(); err != nil {
				r.t.Fatal(err)
			}
			continue
		}
		if code := m.Stop(); code != 0 {
			r.failf("a worker ended with code %d on SIGTERM", code)
		}
		point := points[n/2%len(points)]
		m.again(fmt.Sprintf("%s:%d:stop", point, 1+r.plan.Numbers[n]%3))
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

// freezeWriter stops one of two workers while its transaction has written, and continues it only
// when the other one has committed again: Postgres must take the locks from the stopped one.
func freezeWriter(ctx context.Context, r *run) {
	m := r.shop.workers[0]
	r.answers(ctx, r.plan.Moments[0])
	if code := m.Stop(); code != 0 {
		r.failf("a worker ended with code %d on SIGTERM", code)
	}
	m.again(fmt.Sprintf("order.committing:%d:stop", 1+r.plan.Numbers[0]%5))
	r.eventually(ctx, "the worker stops in its transaction", m.Stopped)
	r.struck("worker stopped in its transaction")
	began, rows := time.Now(), r.rows(ctx)
	r.eventually(ctx, "the other worker commits", func() bool { return r.rows(ctx) > rows })
	r.notef("the other worker committed after %.2f s", time.Since(began).Seconds())
	m.Continue()
	r.over()
	r.recovered(ctx)
	if err := m.WaitReady(); err != nil {
		r.t.Fatal(err)
	}
}
