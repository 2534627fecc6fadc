//go:build unix

package main_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// An operator lists dead letters, and requeues or discards them.
func TestCommand_Queue(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	p := s.api()
	c := dial(t, p)
	item := s.newItem(c, 2, 1)
	run := func(args ...string) process.Result {
		return s.run(append(append([]string{"queue"}, args...), "--server", p.URL())...)
	}
	wantCode(t, 0, run("dead"), "TASK")
	first := c.buy(item, "alice", "k", "Prefer", "respond-async")
	second := c.buy(item, "bob", "k", "Prefer", "respond-async")
	only(t, []purchase{first, second}, "202")
	wantCode(t, 0, run("stats"), "orders-0")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f, err := s.tasks.Dequeue(ctx, 2)
	if err != nil || len(f.Tasks) != 2 {
		t.Fatalf("%d tasks, %v", len(f.Tasks), err)
	}
	for i := range f.Tasks {
		if _, err := s.tasks.Reject(ctx, queue.Rejection{Task: f.Tasks[i], Dead: true, Reason: "no ink"}); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, 0, run("dead"), f.Tasks[0].ID, f.Tasks[1].ID, "orders-0", item, "no ink")
	type letter struct {
		Task    string
		OrderID string `json:"order_id"`
		Type    string
		Payload struct {
			Orders []struct{ Quantity int64 }
		}
	}
	var list struct{ Dead []letter }
	decodeOutput(t, run("dead", "--json"), &list)
	for _, o := range []purchase{first, second} {
		if !slices.ContainsFunc(list.Dead, func(l letter) bool { return l.OrderID == o.Order.ID && l.Type == "purchase" }) {
			t.Errorf("the list as JSON lacks order %s: %+v", o.Order.ID, list)
		}
	}
	if r := run("dead", "--limit", "1"); strings.Count(r.Output, "no ink") != 1 {
		t.Errorf("one letter was asked for:\n%s", r.Output)
	}
	wantCode(t, 0, run("discard", first.Order.ID), first.Order.ID, "orders-0", "orders: 1", "discarded")
	wantCode(t, 1, run("discard", first.Order.ID, second.Order.ID), "task_not_found", second.Order.ID)
	// Bob's was discarded too: a failure for one does not affect the others.
	for _, o := range []purchase{first, second} {
		if a := c.get("/v1/orders/"+o.Order.ID, o.user); !strings.Contains(a.Body, `"rejected"`) {
			t.Errorf("order %s: %s", o.Order.ID, a.Body)
		}
	}
	third := c.buy(item, "carol", "k", "Prefer", "respond-async")
	only(t, []purchase{third}, "202")
	if f, err = s.tasks.Dequeue(ctx, 2); err != nil || len(f.Tasks) != 1 {
		t.Fatalf("%d tasks, %v", len(f.Tasks), err)
	}
	if _, err := s.tasks.Reject(ctx, queue.Rejection{Task: f.Tasks[0], Dead: true, Reason: "no ink"}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, 0, run("dead", "--groups"), "LETTERS", "no ink")
	var groups struct {
		Groups []struct {
			ID      string
			Example string `json:"example_task"`
		}
	}
	decodeOutput(t, run("dead", "--groups", "--json"), &groups)
	if len(groups.Groups) != 1 || groups.Groups[0].Example != f.Tasks[0].ID {
		t.Fatalf("groups %+v, want one of task %s", groups, f.Tasks[0].ID)
	}
	group := groups.Groups[0].ID
	wantCode(t, 0, run("dead", "--group", group), f.Tasks[0].ID, "no ink")
	wantCode(t, 0, run("dead", third.Order.ID), f.Tasks[0].ID, third.Order.ID, "carol")
	var one letter
	if decodeOutput(t, run("dead", third.Order.ID, "--json"), &one); one.Task != f.Tasks[0].ID || len(one.Payload.Orders) != 1 {
		t.Errorf("the letter as JSON: %+v", one)
	}
	var stats struct{ Queues []struct{ Name string } }
	if decodeOutput(t, run("stats", "--json"), &stats); len(stats.Queues) != 2 {
		t.Errorf("the queues as JSON: %+v", stats)
	}
	wantCode(t, 1, run("discard", "--all"), "Discard all dead letters permanently (1 in total)?", "not confirmed")
	wantCode(t, 0, run("discard", "--all", "--yes", "--before", "2020-01-01T00:00:00Z"), "nothing to discard: there are no dead letters that died before 2020-01-01T00:00:00Z")
	wantCode(t, 0, run("retry", "--group", "0000000000000000"), "nothing to retry: there are no dead letters in group 0000000000000000")
	wantCode(t, 0, run("retry", "--group", group), "1 dead letter done with 1 order, ")
	wantCode(t, 0, run("discard", "--all"), "nothing to discard")
	s.worker()
	if got := c.settle(item, c.buy(item, "carol", "k", untilCommitted...)); got.Status != 201 || got.Order.ID != third.Order.ID {
		t.Errorf("retried: %s %s, want order %s", got.verdict(), got.Order.ID, third.Order.ID)
	}
	wantCode(t, 0, run("verify"), "orders-0")
	for _, args := range [][]string{{"retry"}, {"discard", "x", "--all"}, {"retry", "--all", "--group", "x"}, {"dead", "x", "--groups"}, {"stats", "now"}, {"dead", "--limit", "-1"}, {"dead", "x", "y"}, {"verify", "it"}, {"burn"}} {
		wantCode(t, 2, run(args...))
	}
	wantCode(t, 1, run("stats", "--token", "nonsense"), "token_malformed")
	if l := s.ledger(c, item); !l.Balanced || l.Sold != 1 || l.Left != 1 {
		t.Errorf("ledger %+v", l)
	}
}

// A task that was manually removed from its state is found, and repaired with --repair.
func TestCommand_Queue_VerifyRepairsTasks(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	p := s.api()
	c := dial(t, p)
	item := s.newItem(c, 2, 1)
	bought := c.buy(item, "alice", "k", "Prefer", "respond-async")
	only(t, []purchase{bought}, "202")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if n, err := s.rdb.Del(ctx, "fs:{p0}:q:orders:ready").Result(); err != nil || n != 1 {
		t.Fatalf("%d keys, %v", n, err)
	}
	wantCode(t, 1, s.run("queue", "verify", "--server", p.URL()), "--repair")
	wantCode(t, 0, s.run("queue", "verify", "--repair", "--server", p.URL()), "repaired")
	wantCode(t, 0, s.run("queue", "verify", "--server", p.URL()))
	s.worker()
	if got := c.settle(item, c.buy(item, "alice", "k", untilCommitted...)); got.Status != 201 || got.Order.ID != bought.Order.ID {
		t.Errorf("repaired: %s %s, want order %s", got.verdict(), got.Order.ID, bought.Order.ID)
	}
}

// squeezed is a command's result with the columns of its table separated by one space.
func squeezed(r process.Result) process.Result {
	var b strings.Builder
	for line := range strings.Lines(r.Output) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	r.Output = b.String()
	return r
}

// TestCommand_DoctorRefusedWrites: the doctor names the reason for which a Redis that answers
// refuses writes, and leaves out the consequence, that no worker is seen.
func TestCommand_DoctorRefusedWrites(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	c := dial(t, s.api())
	only(t, []purchase{c.buy(s.newItem(c, 1, 1), "alice", "k", "Prefer", "respond-async")}, "202")
	for _, q := range []struct{ setting, value, usual, cause, fix string }{
		{"min-replicas-to-write", "1", "0", "it refuses writes because it has fewer replicas", "-> start the replicas"},
		{"maxmemory", "1", "0", "its memory is full", "-> raise maxmemory"},
	} {
		if err := s.rdb.ConfigSet(t.Context(), q.setting, q.value).Err(); err != nil {
			t.Fatal(err)
		}
		r := squeezed(s.run("doctor"))
		wantCode(t, 1, r, "fix redis", q.cause, q.fix)
		if strings.Contains(r.Output, "start flashsale worker") {
			t.Errorf("with %s %s the doctor blames the workers:\n%s", q.setting, q.value, r.Output)
		}
		if err := s.rdb.ConfigSet(t.Context(), q.setting, q.usual).Err(); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, 1, squeezed(s.run("doctor")), "fix workers accepted orders wait (1)", "-> start flashsale worker")
	if keys, err := s.rdb.Keys(t.Context(), "fs:{probe*").Result(); err != nil || len(keys) != 0 {
		t.Errorf("the doctor has written %q, %v", keys, err)
	}
}

func TestCommand_Doctor(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	empty := newShop(t)
	wantCode(t, 0, squeezed(empty.run("doctor")), "ok keys", "warn database", "migrate up", "embedded")
	if left, err := filepath.Glob(filepath.Join(empty.dir, "*")); err != nil || len(left) != 0 {
		t.Errorf("the doctor left %v, %v", left, err)
	}
	development := filepath.Join(t.TempDir(), "data")
	wantCode(t, 0, squeezed(command(t, "doctor", "--data-dir", development)), "warn keys", "FLASHSALE_JWT_SECRET")

	// The tests' durable Redis has no memory limit and syncs once a second.
	s := newRedisShop(t)
	wantCode(t, 0, squeezed(s.run("doctor")), "ok database", "warn redis", "appendfsync", "maxmemory", "ok clock")
	wantCode(t, 1, squeezed(command(t, "doctor", "--db", "sqlite:"+s.dbPath, "--redis", "redis://"+process.FreeAddr(t)+"/0")), "fix redis", "does not answer")
	wantCode(t, 1, squeezed(process.Run(t, process.Spec{Dir: s.dir, Args: append(append([]string{"doctor"}, s.settings()...), "--db", "sqlite:typo.db")})),
		"fix database", "typo.db", "migrate up", "correct the path")
	p := s.api()
	c := dial(t, p)
	item := s.newItem(c, 1, 1)
	only(t, []purchase{c.buy(item, "alice", "k", "Prefer", "respond-async")}, "202")
	wantCode(t, 1, squeezed(s.run("doctor")), "orders-0: 1 ready", "fix workers")
	wantCode(t, 1, squeezed(s.run("doctor", "--partitions", "3")), "fix partitions", "--partitions 1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.rdb.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, 1, squeezed(s.run("doctor")), "fix redis", "noeviction")

	volatile := newShop(t)
	volatile.server = redistest.Real(t, "--appendonly", "no")
	wantCode(t, 1, squeezed(volatile.run("doctor")), "fix redis", "appendonly")

	damaged := newShop(t)
	if err := os.WriteFile(damaged.dbPath, []byte("this is no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, 1, squeezed(damaged.run("doctor")), "fix database")
}
