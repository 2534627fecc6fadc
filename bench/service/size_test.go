package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	service "flashsale/internal/testing/process"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "empty" { // the empty handler of a measurement
		if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	service.Shutdown()
	os.Exit(code)
}

func TestSizeOptions(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-rounds 1 -size":               "-rounds 0",
		"-rounds 0 -size -scale 0":      "-scale",
		"-rounds 0 -size -scale 1.5":    "-scale",
		"-rounds 0 -size -only typo":    "unknown measurement",
		"-rounds 0 -size -groups rows,": "unknown group",
		"-rounds 0 -size -turns 0":      "-turns",
		"-rounds 0 -size -rows 9999":    "-rows",
		"-rounds 0 -size -idle 1ms":     "-idle",
	} {
		err := run(t.Context(), strings.Fields(args), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that names %q", args, err, want)
		}
	}
	chosen, err := chosenSizes("shop, payers")
	if err != nil || len(chosen) != 2 || chosen[0].name != "payers" || chosen[1].name != "shop" {
		t.Errorf("-only shop, payers chooses %v, %v; want payers, then shop", chosen, err)
	}
}

const shortPhase = 300 * time.Millisecond

func needRedis(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("redis-server is not installed; make deps installs it")
		}
		t.Skip("redis-server is not installed; make deps installs it")
	}
}

// tiny returns the environment of measurements at a scale for tests.
func tiny(t *testing.T, out *bytes.Buffer) *sizes {
	t.Helper()
	needRedis(t)
	o := options{connections: 4, phase: shortPhase, fsync: "no", size: sizeOptions{on: true, scale: 0.0001, turns: 1, idle: shortPhase}}
	s, err := newSizes(o, out, 50)
	if err != nil {
		t.Fatal(err)
	}
	s.binary = service.Build(t)
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestRig(t *testing.T) {
	t.Parallel()
	s := tiny(t, new(bytes.Buffer))
	h := history.History{Ended: 3, EndedOrders: 40, Live: 2, LiveOrders: 25, Buyers: 17}
	r, err := s.newRig(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := r.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.warm(t.Context(), history.LiveIDs(h.Live), 2); err != nil {
		t.Fatal(err)
	}
	b, err := s.crowd.Buy(t.Context(), load.Purchases{Addr: r.world.API.Addr, Items: history.LiveIDs(h.Live), Connections: 4}, shortPhase)
	if err != nil {
		t.Fatal(err)
	}
	if b.Codes[201] == 0 || b.Next < int64(b.Codes[201]) || b.Latency.TotalCount() < int64(b.Codes[201]) {
		t.Errorf("bought %v, next %d, %d latencies; want orders, all of them counted", b.Codes, b.Next, b.Latency.TotalCount())
	}
	db, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for query, want := range map[string]int{
		"SELECT COUNT(*) FROM orders WHERE item_id = '" + history.EndedID(h.Ended-1) + "'":                                            h.EndedOrders,
		"SELECT COUNT(*) FROM items WHERE closes_at > 0 AND closes_at < unixepoch() * 1000":                                           h.Ended,
		"SELECT COUNT(*) FROM orders WHERE item_id LIKE 'ended-%'":                                                                    h.Ended * h.EndedOrders,
		"SELECT COUNT(*) FROM orders WHERE item_id LIKE 'live-%' AND idempotency_key LIKE 'past-%'":                                   h.Live * h.LiveOrders,
		"SELECT COUNT(*) FROM sqlite_schema WHERE name = 'orders_item'":                                                               1,
		"SELECT COUNT(*) FROM items WHERE sold <> (SELECT SUM(quantity) FROM buyers WHERE item_id = items.id)":                        0,
		"SELECT COUNT(*) FROM items WHERE sold <> (SELECT SUM(quantity) FROM orders WHERE item_id = items.id)":                        0,
		"SELECT COUNT(*) FROM orders WHERE item_id LIKE 'live-%' AND id <= (SELECT MAX(id) FROM orders WHERE item_id LIKE 'ended-%')": 0,
		"SELECT COUNT(*) FROM orders WHERE idempotency_key LIKE 'key-%' AND status = 'confirmed'":                                     b.Codes[201],
	} {
		var got int
		if err := db.QueryRowContext(t.Context(), query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", query, got, err, want)
		}
	}
}

// figure returns the value of a BAR line.
func figure(t *testing.T, out, name string) float64 {
	t.Helper()
	for line := range strings.Lines(out) {
		var got string
		var value, target float64
		var verdict string
		if _, err := fmt.Sscanf(line, "BAR %s %g %g %s", &got, &value, &target, &verdict); err == nil && got == name {
			return value
		}
	}
	t.Errorf("no line BAR %s in\n%s", name, out)
	return 0
}

func TestMeasureShop(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := tiny(t, &out)
	if err := measureShop(t.Context(), s); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, name := range []string{"shop_committed_rate", "shop_committed_p99", "shop_accepted_rate", "shop_accepted_p99", "shop_drained_rate"} {
		if v := figure(t, out.String(), name); !(v > 0) || math.IsInf(v, 0) {
			t.Errorf("%s is %v, want a positive number", name, v)
		}
	}
	if left, err := filepath.Glob(filepath.Join(s.dir, "rig-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
