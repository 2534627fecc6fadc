//go:build unix

package main_test

import (
	"net/http"
	"strings"
	"testing"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/process"
)

const (
	lineageKey     = "fs:{p0}:lineage"
	anotherLineage = "this Redis belongs to another database"
)

// The queued orders of a shop are not committed to the database of another: no process starts on
// that database with this Redis, and nothing changes.
func TestLineage_AnotherDatabase(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	api := s.api(noLimit...)
	c := dial(t, api)
	item := s.newItem(c, 10, 1)
	queued := c.buy(item, "alice", "k")
	only(t, []purchase{queued}, "202")
	lineage, err := s.rdb.Get(await.Context(t), lineageKey).Result()
	if err != nil || lineage == "" {
		t.Fatalf("recorded lineage %q, %v", lineage, err)
	}

	other := newShopOn(t, s.server)
	for _, command := range []string{"api", "worker", "serve"} {
		r := process.Run(t, other.spec(command, []string{"--addr", "127.0.0.1:0", "--ops-addr", ""}))
		wantCode(t, 1, r, "setting redis (FLASHSALE_REDIS)", anotherLineage, lineage, config.RedactURL(other.database()), "docs/operating.md")
	}
	wantCode(t, 1, other.run("doctor"), anotherLineage, lineage, "docs/operating.md")
	wantCode(t, 1, other.run("recover", "--from", "database"), anotherLineage, lineage)
	if n := s.stats().Ready; n != 1 {
		t.Errorf("%d orders wait, want 1", n)
	}

	worker := s.worker()
	// While old orders are queued, purchases are answered 202 at once.
	await.True(t, "the order is committed", func() bool { return c.buy(item, "alice", "k", untilCommitted...).Status == http.StatusCreated })
	if r := s.run("doctor"); strings.Contains(r.Output, anotherLineage) {
		t.Errorf("doctor of the recorded shop:\n%s", r.Output)
	}

	// The ways to give a Redis to another shop.
	addr := "redis://" + s.server.Addr()
	term(t, process.Start(t, other.spec("worker", []string{"--redis", addr + "/1"})))
	term(t, api)
	term(t, worker)
	if err := s.rdb.FlushDB(await.Context(t)).Err(); err != nil {
		t.Fatal(err)
	}
	term(t, other.worker())
}

// A Redis that has lost its data gets the lineage again from the running processes. If its data
// is replaced by that of another shop, they end.
func TestLineage_Running(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	api, worker := s.api(noLimit...), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 10, 1)
	only(t, []purchase{c.buy(item, "alice", "k", untilCommitted...)}, "201")
	ctx := await.Context(t)
	lineage := s.rdb.Get(ctx, lineageKey).Val()
	if err := s.rdb.FlushDB(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lineage is recorded again", soon, func() (bool, any) {
		got := s.rdb.Get(ctx, lineageKey).Val()
		return got == lineage, got
	})
	if err := s.rdb.Set(ctx, lineageKey, "another", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process.P{api, worker} {
		code, err := p.Wait(ctx)
		wantCode(t, 1, process.Result{Code: code, Output: p.Log()}, anotherLineage, lineage)
		if err != nil {
			t.Error(err)
		}
	}
}
