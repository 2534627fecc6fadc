//go:build chaos && unix

package chaos

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/process"
	"flashsale/internal/verify/history"
)

func init() {
	for _, c := range []struct {
		id, from, db string
		take         func(ctx context.Context, r *run) (restore func())
	}{
		{"F21a", "redis", "sqlite", copyFile},
		{"F21b", "database", "sqlite", copyFile},
		{"F21a", "redis", "postgres", dump},
		{"F21b", "database", "postgres", copyDatabase},
		{"F21c", "redis", "postgres", copyDatabase},
		{"F21d", "database", "postgres", dump},
	} {
		register(fault{
			ID: c.id, Name: "backup restored, recovered from " + c.from, DB: c.db, Workers: 2,
			Small: c.db == "sqlite",
			// Nothing is sold between the restore and the operator's decision, and the
			// reconciliation must not change that.
			APIArgs: []string{"--reconcile-every", "1s"},
			Shuts:   true,
			Strike:  func(ctx context.Context, r *run) { restoreBackup(ctx, r, c.take, c.from) },
			Expect:  noDeadLetters,
		})
	}
}

// restoreBackup takes a backup during the sale, sells more, kills every process, and restores
// the backup. The sales must stop until the operator has decided.
func restoreBackup(ctx context.Context, r *run, take func(ctx context.Context, r *run) (restore func()), from string) {
	r.t.Helper()
	r.answers(ctx, r.plan.Moments[0])
	restore := take(ctx, r)
	before := r.sales(ctx)
	r.eventually(ctx, "more is sold of every item after the backup", func() bool {
		for item, n := range r.sales(ctx) {
			if n <= before[item] {
				return false
			}
		}
		return true
	})
	r.answers(ctx, r.plan.Moments[1])
	for _, m := range slices.Concat(r.shop.apis, r.shop.workers) {
		m.Kill()
	}
	r.shop.store.close(r.t)
	restore()
	r.shop.store.reopen(r.t)
	r.struck("backup restored")
	for _, m := range slices.Concat(r.shop.workers, r.shop.apis) {
		m.again("")
	}
	r.decide(ctx, from)
}

// decide waits until the sales are stopped, and has the service recover them.
func (r *run) decide(ctx context.Context, from string) {
	r.t.Helper()
	r.untilStopped(ctx)
	r.stopped.Store(r.now())
	r.lasts(ctx, stoppedFor)
	r.stopped.Store(0)
	if n := r.against.Load(); n > 0 {
		r.failf("%d purchases were accepted of stopped sales", n)
	}
	list := filepath.Join(r.shop.dir, "orders.jsonl")
	r.command("recover", "--from", from, "--list", list)
	r.concern(list, from)
	r.over()
	r.recovered(ctx)
}

// copyFile takes a backup of an SQLite database.
func copyFile(_ context.Context, r *run) (restore func()) {
	backup := filepath.Join(r.shop.dir, "backup.db")
	r.command("backup", backup)
	return func() { r.command("restore", backup) }
}

// dump takes a backup of a Postgres database with pg_dump.
func dump(ctx context.Context, r *run) (restore func()) {
	st := r.shop.store
	backup := filepath.Join(r.shop.dir, "backup.dump")
	r.tool(ctx, "pg_dump", "--format=custom", "--file="+backup, "--dbname="+st.direct)
	conn := st.maintenance(ctx, r.t)
	return func() {
		name := st.database(r.t)
		r.exec(ctx, conn, "DROP DATABASE "+name+" WITH (FORCE)")
		r.exec(ctx, conn, "CREATE DATABASE "+name+" TEMPLATE template0")
		r.tool(ctx, "pg_restore", "--exit-on-error", "--dbname="+st.direct, backup)
	}
}

// tool runs a program of Postgres that must succeed.
func (r *run) tool(ctx context.Context, name string, args ...string) {
	r.t.Helper()
	if text, err := exec.CommandContext(ctx, postgrestest.Program(r.t, name), args...).CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", name, err, text)
	}
}

// copyDatabase takes a backup of a Postgres database by copying its files, for which all sessions
// must end.
func copyDatabase(ctx context.Context, r *run) (restore func()) {
	st := r.shop.store
	name := st.database(r.t)
	conn := st.maintenance(ctx, r.t)
	r.exec(ctx, conn, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
	r.eventually(ctx, "all sessions have ended", func() bool {
		r.terminate(ctx, conn, "datname = '"+name+"'")
		return r.number(ctx, conn, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", name) == 0
	})
	r.exec(ctx, conn, "CREATE DATABASE "+name+"_backup TEMPLATE "+name)
	r.exec(ctx, conn, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS true")
	r.exec(ctx, conn, "ALTER DATABASE "+name+"_backup ALLOW_CONNECTIONS true")
	return func() {
		r.exec(ctx, conn, "DROP DATABASE "+name+" WITH (FORCE)")
		r.exec(ctx, conn, "ALTER DATABASE "+name+"_backup RENAME TO "+name)
	}
}

// stoppedFor is how long stopped sales are watched: two rounds of the reconciliation, which
// could wrongly repair them.
const stoppedFor = 3 * time.Second

// command runs a command of the service that must succeed, and returns its output.
func (r *run) command(args ...string) string {
	r.t.Helper()
	spec := process.Spec{
		Binary: binary(r.t), Command: args[0], Args: append(args[1:], r.shop.settings(r.shop.redisURL(nil))...), Dir: r.shop.dir,
		Env: []string{"FLASHSALE_JWT_SECRET=" + secret},
	}
	result := process.Run(r.t, spec)
	if result.Code != 0 {
		r.t.Fatalf("%s: exit code %d\n%s", strings.Join(args, " "), result.Code, result.Output)
	}
	return result.Output
}

// sales reads how many units of each item the database counts as sold.
func (r *run) sales(ctx context.Context) map[string]int64 {
	r.t.Helper()
	sold, err := r.shop.store.sold(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return sold
}

// untilStopped waits until the purchases of every item are refused because the sale is stopped.
func (r *run) untilStopped(ctx context.Context) {
	r.t.Helper()
	c, err := r.caller()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.close()
	for _, item := range r.plan.Items {
		var last history.Call
		r.eventually(ctx, "the sale of "+item.ID+" is stopped", func() bool {
			for api := range c.targets {
				last = history.Call{Client: 2 * buyersAtOnce, User: "visitor", Item: item.ID, Quantity: 1, Key: "visit"}
				c.buy(ctx, r.now, api, &last)
				if last.Accepted() {
					r.t.Fatalf("%s: order %s was accepted of a sale that has to be stopped", item.ID, last.Order)
				}
				if last.Status != 503 || last.Code != "sale_stopped" {
					return false
				}
			}
			return true
		})
	}
}

// concern reads the list written by the recovery.
func (r *run) concern(path, from string) {
	r.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	actions := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		var o struct {
			OrderID string `json:"order_id"`
			Action  string
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			r.t.Fatalf("%s: %v", line, err)
		}
		if actions[o.Action]++; o.Action == "discarded" {
			r.discarded = append(r.discarded, o.OrderID)
		}
	}
	r.notef("the decision concerned %v", actions)
	want := map[string]string{"redis": "recreated", "database": "discarded"}[from]
	if actions[want] == 0 {
		r.voidf("the backup had lost no order: %v", actions)
	}
	if len(actions) > 1 {
		r.failf("orders are listed as %v, want only %s", actions, want)
	}
}
