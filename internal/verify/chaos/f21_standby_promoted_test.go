//go:build chaos && unix

package chaos

import (
	"context"
	"net/url"
	"slices"
	"testing"

	"flashsale/internal/testing/postgrestest"
)

func init() {
	for id, from := range map[string]string{"F21e": "redis", "F21f": "database"} {
		var standby *postgrestest.Instance
		register(fault{
			ID: id, Name: "lagging standby promoted, recovered from " + from, DB: "postgres", Workers: 2,
			Small: from == "redis",
			// See restoreBackup.
			APIArgs: []string{"--reconcile-every", "1s"},
			Shuts:   true, Postgres: durable(),
			Front: func(t *testing.T, s *store) string {
				t.Helper()
				standby = postgrestest.Start(t, postgrestest.Options{Sync: true, Primary: s.server.Server})
				return bothHosts(t, s, standby)
			},
			Strike: func(ctx context.Context, r *run) { promoteStandby(ctx, r, standby, from) },
			Expect: noDeadLetters,
		})
	}
}

// bothHosts is the URL with which the service finds the server that accepts writes.
func bothHosts(t *testing.T, s *store, standby *postgrestest.Instance) string {
	t.Helper()
	u, err := url.Parse(s.direct)
	if err != nil {
		t.Fatal(err)
	}
	other, err := url.Parse(standby.URL(s.database(t)))
	if err != nil {
		t.Fatal(err)
	}
	u.Host += "," + other.Host
	return u.String() + "&target_session_attrs=read-write"
}

// promoteStandby cuts an asynchronous standby off its primary during the sale, sells more, kills
// the primary and promotes the standby. No process of the service is restarted. The sales must
// stop until the operator has decided.
func promoteStandby(ctx context.Context, r *run, standby *postgrestest.Instance, from string) {
	r.t.Helper()
	st := r.shop.store
	r.answers(ctx, r.plan.Moments[0])
	before := r.cutOff(ctx, standby)
	r.eventually(ctx, "more is sold of every item than the standby has", func() bool {
		for item, n := range r.sales(ctx) {
			if n <= before[item] {
				return false
			}
		}
		return true
	})
	r.answers(ctx, r.plan.Moments[1])
	name := st.database(r.t)
	st.close(r.t)
	st.server.Kill(r.t)
	r.struck("primary killed")
	standby.Promote(r.t)
	r.struck("lagging standby promoted")
	st.server, st.direct, st.deadlocks, st.logged = standby, standby.URL(name), 0, 0
	st.reopen(r.t)
	// Redis sells on until a process has compared the two; these purchases wait in the queue.
	r.eventually(ctx, "the sales are stopped", func() bool {
		return !slices.ContainsFunc(r.plan.Items, func(item saleItem) bool {
			return r.shop.rdb.HGet(ctx, r.shop.saleKey(item.ID), "changing").Val() != "stopped"
		})
	})
	r.decide(ctx, from)
}

// cutOff disconnects a standby, which is lagging from then on, and returns what it counts as sold.
func (r *run) cutOff(ctx context.Context, standby *postgrestest.Instance) map[string]int64 {
	r.t.Helper()
	st := r.shop.store
	url := standby.URL(st.database(r.t))
	conn := st.connect(ctx, r.t, "pgx", url)
	r.set(ctx, conn, "SET primary_conninfo = ''")
	r.eventually(ctx, "the standby has replayed all that it has received", func() bool {
		return r.number(ctx, conn, `SELECT (NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)
			AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn())::int`) == 1
	})
	lagging := &store{direct: url, server: standby}
	lagging.reopen(r.t)
	defer lagging.close(r.t)
	sold, err := lagging.sold(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return sold
}
