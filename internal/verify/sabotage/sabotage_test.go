//go:build chaos && unix

package sabotage

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
	"flashsale/internal/verify/history"
)

var database = flag.String("db", "sqlite", "the database: sqlite or postgres")

func TestMain(m *testing.M) {
	flag.Parse()
	if *database != "sqlite" && *database != "postgres" {
		fmt.Fprintf(os.Stderr, "sabotage: -db %q: there are sqlite and postgres\n", *database)
		os.Exit(2)
	}
	code := m.Run()
	redistest.Shutdown()
	process.Shutdown()
	os.Exit(code)
}

const postgresSchema = "migrations/postgres/00012_init.sql"

// sabotages are the builds that break a promise.
var sabotages = []struct {
	name   string
	change []alteration
	// postgres is the change on Postgres; nil: the same.
	postgres []alteration
	// sell runs the sale with the fault that reveals the change.
	sell func(s *stage)
	// found are the expected findings; at least one must be made.
	found []string
}{
	{
		name: "acknowledges before the commit",
		change: []alteration{{
			file: "order/worker/fulfil.go",
			from: "\tf.fulfil(ctx, p.orders, p.results)\n",
			to: `	early := make([]order.Outcome, len(p.orders))
	for i := range early {
		early[i] = order.Outcome{Status: order.StatusConfirmed, ConfirmedAt: time.Now().UnixMilli()}
	}
	if len(early) > 0 {
		f.notify(ctx, p.orders, early, time.Now())
		go f.fulfil(context.WithoutCancel(ctx), p.orders, slices.Clone(p.results))
	}
`,
		}},
		sell: killWorkerBeforeCommit, found: []string{history.LostConfirmed},
	},
	{
		name: "drops half of the orders of a task",
		change: []alteration{{
			file: "order/worker/fulfil.go",
			from: "\tfor _, a := range accepted.OrdersOf(l.ID, l.Payload) {\n\t\to, err",
			to: `	orders := accepted.OrdersOf(l.ID, l.Payload)
	for _, a := range orders[len(orders)/2:] {
		o, err`,
		}},
		sell: killWorkerBeforeCommit, found: []string{history.LostAccepted, history.Vanished, history.Unsold},
	},
	{
		name: "commits a task twice when it is delivered again",
		change: []alteration{{
			file: "order/worker/fulfil.go",
			from: "\tf.fulfil(ctx, p.orders, p.results)\n",
			to: `	f.fulfil(ctx, p.orders, p.results)
	for i := range p.tasks {
		t := &p.tasks[i]
		if t.leased.Attempt == 1 {
			continue
		}
		again := slices.Clone(p.orders[t.from:t.to])
		for k := range again {
			again[k].ID = again[k].ID[:32] + "f" + again[k].ID[33:]
			again[k].IdempotencyKey += "2"
		}
		f.fulfil(ctx, again, slices.Clone(p.results[t.from:t.to]))
	}
`,
		}},
		sell: killWorkerBeforeCommit, found: []string{history.Invented, history.Unasked, history.Duplicated, history.Oversold},
	},
	{
		name: "drops the database's condition",
		change: []alteration{
			{file: "order/store/statements.go", from: " AND sold + ?1 <= total", to: ""},
			{file: "migrations/sqlite/00001_init.sql", from: "CHECK (sold BETWEEN 0 AND total)", to: "CHECK (sold >= 0)"},
		},
		postgres: []alteration{
			{file: "order/store/statements.go", from: " AND sold + ?1 <= total", to: ""},
			{file: postgresSchema, from: "CHECK (sold BETWEEN 0 AND total)", to: "CHECK (sold >= 0)"},
		},
		sell: raiseStock, found: []string{history.Oversold},
	},
	{
		name: "drops the unique key",
		change: []alteration{{
			file: "migrations/sqlite/00007_storage.sql",
			from: "CREATE UNIQUE INDEX orders_idempotency ON orders (item_id", to: "CREATE INDEX orders_idempotency ON orders (item_id",
		}},
		postgres: []alteration{{
			file: postgresSchema,
			from: "CREATE UNIQUE INDEX orders_idempotency ON orders (item_id", to: "CREATE INDEX orders_idempotency ON orders (item_id",
		}},
		sell: forgetKeys, found: []string{history.Duplicated},
	},
	{
		name: "takes the stock again when a batch is repeated",
		change: []alteration{{
			file: "inventory/lua/purchase.lua",
			from: "local repeated = queue_known(8, 1, {ARGV[12]})[1]\n",
			to: `local repeated = false
for i = 1, n do
  if stored[i] and orders[fields[i]] == own[i] then
    orders[fields[i]] = nil
  end
end
`,
		}},
		sell: dropReplies, found: []string{history.Unsold, history.LedgerWrong, history.RedisLeft},
	},
	{
		name: "resets the fence",
		change: []alteration{
			{
				file: "lock/lua/acquire.lua",
				from: "local fence = clock[1] .. string.sub('000000', #clock[2] + 1) .. clock[2]\n",
				to:   "local fence = string.format('%016d', tonumber(string.match(redis.call('GET', KEYS[4]) or '0', '^%d+')) + 1)\n",
			},
			{file: "lock/lua/handover.lua", from: "  return now_us\nend", to: "  return last + 1\nend"},
		},
		sell: deleteLock, found: []string{history.FenceFell},
	},
	{
		name: "repairs a sale from a database that is older than Redis",
		change: []alteration{{
			file: "order/store/behind.go",
			from: "return r.Behind > 0 || r.Revision < mark", to: "return false && mark > 0",
		}},
		sell: restoreBackup, found: []string{history.LostConfirmed},
	},
}

// The checker finds each sabotage, and finds nothing in the unaltered build under the same
// fault.
func TestSabotage(t *testing.T) {
	for _, s := range sabotages {
		t.Run(s.name, func(t *testing.T) {
			t.Run("unaltered", func(t *testing.T) {
				v, gaveUp := sold(t, unaltered(t), s.sell, patience)
				if gaveUp > 0 {
					t.Errorf("%d buyers never learned what became of their purchase", gaveUp)
				}
				if !v.Passed {
					t.Errorf("found in the unaltered build: %s\n%+v", v.Line(), v.Findings)
				}
			})
			t.Run("altered", func(t *testing.T) {
				// Purchases that were lost are never answered.
				change := s.change
				if *database == "postgres" && s.postgres != nil {
					change = s.postgres
				}
				v, _ := sold(t, altered(t, change), s.sell, 3*time.Second)
				if !slices.ContainsFunc(s.found, v.Has) {
					t.Errorf("none of %q is found: %s\n%+v", s.found, v.Line(), v.Findings)
				}
			})
		})
	}
}

// sold runs one sale, in which a buyer repeats a purchase for up to askFor, and judges it.
func sold(t *testing.T, binary string, sell func(*stage), askFor time.Duration) (v history.Verdict, gaveUp int64) {
	t.Helper()
	began := time.Now()
	s := newStage(t, binary)
	s.askFor = askFor
	sell(s)
	if s.strikes == 0 {
		t.Fatal("the fault never struck")
	}
	v = s.judge()
	t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), v.Line())
	for _, f := range v.Findings {
		t.Logf("%s %d: %q", f.Name, f.Count, f.Examples)
	}
	if v.Counts.Accepted == 0 || v.Counts.SoldOut == 0 {
		t.Fatalf("no sale: %s", v.Line())
	}
	return v, s.gaveUp.Load()
}
