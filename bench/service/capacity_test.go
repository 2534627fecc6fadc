package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
)

func TestCapacityOptions(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-rounds 0 -capacity -1": "-capacity of 0 or more",
		"-rounds 1 -capacity 1":  "-rounds 0",
		"-rounds 0 -postgres":    "-capacity of 1 or more",
	} {
		err := run(t.Context(), strings.Fields(args), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that names %q", args, err, want)
		}
	}
}

func TestCosts_Each(t *testing.T) {
	t.Parallel()
	got := costs{costAPI: 500, costLog: 3000}.each(costs{costAPI: 100, costLog: 1000}, 10)
	if want := (costs{costAPI: 40, costLog: 200}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	rounds := []costs{{costAPI: 40}, {costAPI: 38.04}, {costAPI: 47}}
	if got, want := spread(rounds, costAPI), "40.0 (38.0–47.0)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := spread(rounds, costDatabase); got != "–" {
		t.Errorf("%q for a part that was not used, want a dash", got)
	}
}

func TestNeed(t *testing.T) {
	t.Parallel()
	mid := costs{
		costAPI: 60, costWorker: 30, costRedis: 12, costDatabase: 45, costScripts: 0.05, costCommits: 0.01, costLog: 250, costRedisBytes: 500, costAPIBytes: 1250,
	}
	for _, c := range []struct {
		rate   int
		sqlite bool
		want   needs
	}{
		// 100,000 x 60 us = 6 busy cores, which are 10 at 60 %.
		{100_000, false, needs{"10", "2", "5", "8", "1,000 (195)", "5,000", "25.0", "0.4", "1"}},
		{1_000, false, needs{"1", "1", "1", "1", "10 (2)", "50", "0.2", "0.004", "0.01"}},
		{10_000, true, needs{"1", "1", "1", "–", "100 (20)", "500", "2.5", "0.04", "0.1"}},
		// One writer has 33,333 a second.
		{30_000, true, needs{"3", "1", "1", "–", "300 (59)", "1,500", "7.5", "0.12", "0.3"}},
		{100_000, true, needs{"10", "2", "more than the one writer", "–", "1,000 (195)", "5,000", "25.0", "0.4", "1"}},
	} {
		if got := need(mid, c.rate, c.sqlite); got != c.want {
			t.Errorf("%d/s, SQLite %v:\n%+v, want\n%+v", c.rate, c.sqlite, got, c.want)
		}
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 999.6: "1,000", 100: "100", 1000: "1,000", 123456: "123,456", 1e6: "1,000,000"} {
		if got := thousands(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

// cells returns the cells after the first one of the table's row in the part of the output that
// begins with a title.
func cells(t *testing.T, out, title, table, row string) []string {
	t.Helper()
	_, out, ok1 := strings.Cut(out, "### "+title)
	_, out, ok2 := strings.Cut(out, "\n| "+table)
	_, out, ok3 := strings.Cut(out, "\n| "+row+" |")
	if line, _, _ := strings.Cut(out, "\n"); ok1 && ok2 && ok3 {
		return strings.Split(strings.Trim(line, " |"), " | ")
	}
	t.Errorf("no row %q of the table %q in %q", row, table, title)
	return make([]string, 10)
}

// The tables have every kind of request on both databases. Processor times are not checked: so
// short a phase may use less than the system counts.
func TestMeasureCapacity(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	m := databasesMeter(t, &out)
	m.o.capacity = capacityOptions{rounds: 1, postgres: true}
	if err := measureCapacity(t.Context(), m); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	text := out.String()
	number := func(cell string) float64 {
		v, err := strconv.ParseFloat(cell, 64)
		if err != nil {
			t.Errorf("%q is no number", cell)
		}
		return v
	}
	for _, database := range []string{"SQLite", "Postgres"} {
		measured, arithmetic := "Measured: "+database, "Arithmetic: "+database
		for _, k := range capacityKinds {
			cells(t, text, measured, "CPU per purchase", k.title)
			cells(t, text, arithmetic, "purchases/s", "1,000,000 "+k.title)
			if got := number(cells(t, text, measured, "| purchases per", k.title)[5]); got < 100 {
				t.Errorf("%s, %s: %v bytes to and from the API, want those of a request", database, k.title, got)
			}
		}
		for _, title := range []string{"accepted (`202`)", "committed (`201`)", "accepted, one per script"} {
			c := cells(t, text, measured, "| purchases per", title)
			script, commit, scripts, log := number(c[0]), number(c[1]), number(c[2]), number(c[3])
			if script < 1 || commit < 1 || scripts < 1/script || log < 50 {
				t.Errorf("%s, %s: %v", database, title, c)
			}
		}
		if got := cells(t, text, measured, "| purchases per", "accepted, one per script")[0]; got != "1.0" {
			t.Errorf("%s: %s purchases per script of many items, want 1.0", database, got)
		}
		if got := cells(t, text, arithmetic, "purchases/s", "10,000 sold out (`409`)")[1]; got != "–" {
			t.Errorf("%s: %s Redis masters for sold-out answers, want none", database, got)
		}
	}
	for _, line := range []string{"one SQLite file: one writer", "one worker on Postgres", " to Redis, ", " to Postgres."} {
		if !strings.Contains(text, line) {
			t.Errorf("no %q", line)
		}
	}
	if strings.Contains(text, "worker: 0 to Redis") {
		t.Error("no connections of the service to Redis")
	}
	if t.Failed() {
		t.Log(text)
	}
}
