//go:build chaos && unix

package chaos

import (
	"context"
	"time"
)

func init() {
	register(fault{
		ID: "F2b", Name: "worker killed while Postgres commits", DB: "postgres", Small: true, Redelivers: true,
		Lasts: 14 * time.Second, Postgres: durable(),
		// The orders of the killed worker wait for their leases to end.
		RecoversIn: 10 * time.Second,
		Strike:     killInCommit, Expect: noDeadLetters,
	})
}

// killInCommit kills the worker while Postgres executes its COMMIT. Its successor gets the same
// orders while that transaction is still open, after it was committed, and after its session was
// terminated.
func killInCommit(ctx context.Context, r *run) {
	conn := r.shop.store.maintenance(ctx, r.t)
	m := r.shop.workers[0]
	lease, err := time.ParseDuration(leaseTime)
	if err != nil {
		r.t.Fatal(err)
	}
	for n, how := range []string{"open", "committed", "terminated"} {
		r.answers(ctx, r.plan.Moments[n])
		release := r.hangCommit(ctx, conn)
		m.Kill()
		r.struck("worker killed in COMMIT, its transaction is then " + how)
		switch how {
		case "open":
			r.lasts(ctx, 2*lease) // the successor gets the same orders first
			m.again("")
			// A process that knows of a commit without an answer first waits for the standbys itself.
			r.eventually(ctx, "the successor waits for the open transaction, for the standby or in COMMIT", func() bool {
				return r.number(ctx, conn, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid' AND query LIKE '%INTO buyers%'"+
					" OR wait_event = 'SyncRep' AND query LIKE '%write_probe%' OR "+inOrders) > 1
			})
			release()
		case "committed":
			release()
			m.again("")
		case "terminated":
			if ended := r.terminate(ctx, conn, inOrders); ended == 0 {
				r.voidf("no session was left to terminate")
			}
			release()
			m.again("")
		}
		r.over()
		r.recovered(ctx)
		if err := m.WaitReady(); err != nil {
			r.t.Fatal(err)
		}
	}
	rows := r.rows(ctx)
	r.eventually(ctx, "orders are committed again", func() bool { return r.rows(ctx) > rows })
}
