package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/world"
	"flashsale/internal/testing/postgresserver"
	service "flashsale/internal/testing/process"
)

func TestDatabaseOptions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]int{"": nil, "1": {1}, "4,2": {1, 2, 4}, "1,2,4,2": {1, 2, 4}} {
		o := databaseOptions{rounds: 1, text: text}
		if err := o.parse(); err != nil || !slices.Equal(o.workers, want) {
			t.Errorf("-workers %q: %v, %v; want %v", text, o.workers, err, want)
		}
	}
	for _, o := range []databaseOptions{
		{rounds: -1},
		{text: "2"},
		{rounds: 1, text: "0"},
		{rounds: 1, text: "17"},
		{rounds: 1, text: "two"},
		{orders: 1000},
		{rounds: 1, orders: 1500},
		{rounds: 1, orders: -1000},
	} {
		if err := o.parse(); err == nil {
			t.Errorf("%d rounds, -workers %q, -orders %d: no error", o.rounds, o.text, o.orders)
		}
	}
}

// databasesMeter returns a meter on SQLite with the empty handler, for short phases.
func databasesMeter(t *testing.T, out *bytes.Buffer) *meter {
	t.Helper()
	needRedis(t)
	if err := postgresserver.Missing(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("skipped: %v", err)
	}
	dir, err := os.MkdirTemp("", "databases-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // the user of Postgres passes through it
		t.Fatal(err)
	}
	base := &world.World{Dir: dir, Binary: service.Build(t)}
	closed := func(fn func() error) {
		t.Cleanup(func() {
			if err := fn(); err != nil {
				t.Error(err)
			}
		})
	}
	closed(base.Close)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr := process.FreeAddr()
	if base.Empty, err = base.Launch(t.Context(), "empty", self, addr, "", "empty", addr); err != nil {
		t.Fatal(err)
	}
	w, err := world.Start(t.Context(), world.Config{Fsync: "no", Beside: base})
	if err != nil {
		t.Fatal(err)
	}
	closed(w.Close)
	if err := base.Empty.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	crowd, err := load.NewCrowd(2000)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: w.Redis.Addr})
	closed(rdb.Close)
	o := options{connections: 4, phase: shortPhase, fsync: "no", databases: databaseOptions{rounds: 1, workers: []int{1, 2}, orders: 2 * pastSaleOrders}}
	return &meter{world: w, crowd: crowd, rdb: rdb, o: o, out: out}
}

// Every figure is printed, and every accepted order is committed.
func TestMeasureDatabases(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := measureDatabases(t.Context(), databasesMeter(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, name := range []string{"postgres_committed/sqlite_committed", "postgres_accepted/sqlite_accepted", "postgres_sold_out/sqlite_sold_out",
		"postgres_2000_committed/postgres_committed", "sqlite_p99_half_peak_202_ms", "postgres_p99_half_peak_201_ms"} {
		if figure(t, out.String(), name) <= 0 {
			t.Errorf("%s is not positive\n%s", name, out.String())
		}
	}
	for _, line := range []string{"fsync on, synchronous_commit on", "RATIO postgres_accepted/empty ", "RATIO postgres_workers_2/1 "} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in\n%s", line, out.String())
		}
	}
}
