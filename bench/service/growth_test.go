package main

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/bench/internal/load"
)

func TestChosenGroups(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"": growthNames(), "rows": {"rows"}, "connections,items": {"items", "connections"},
	} {
		groups, err := chosenGroups(text)
		var got []string
		for _, g := range groups {
			got = append(got, g.name)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("-groups %q chooses %v, %v; want %v", text, got, err, want)
		}
	}
}

// sold is a row of one turn, with so many answers in a second, each after so many milliseconds,
// and one refusal.
func sold(group string, async bool, answer, n, ms int) *growthRow {
	b := load.NewBought()
	for range n {
		b.Add(answer, time.Duration(ms)*time.Millisecond)
	}
	b.Add(503, time.Duration(ms)*time.Millisecond)
	b.Took = time.Second
	r := &growthRow{group: group, setting: "1", load: load.Purchases{Async: async}}
	r.add(b)
	return r
}

func TestCompareGrowth(t *testing.T) {
	t.Parallel()
	rows := []*growthRow{
		sold("items", true, 202, 1000, 10), sold("items", true, 202, 900, 10), sold("items", true, 202, 500, 20),
		sold("rows", false, 201, 400, 4), sold("rows", false, 201, 420, 2),
		sold("processes", true, 202, 7, 1),
	}
	// Other turns of the same row, on a machine that was slower and faster meanwhile.
	rows[2].rate, rows[2].p99 = append(rows[2].rate, 1, 9999), append(rows[2].p99, 1, 9999)
	want := []struct {
		rate, p99 float64
		last      bool
	}{{1, 1, false}, {0.9, 1, false}, {0.5, 2, true}, {1, 1, false}, {1.05, 0.5, true}, {1, 1, false}}
	got := compareGrowth(rows)
	if len(got) != len(want) {
		t.Fatalf("%d ratios for %d rows", len(got), len(rows))
	}
	for i, w := range want {
		g := got[i]
		// The histogram rounds latencies to two digits.
		if g.row != rows[i] || g.last != w.last || math.Abs(g.rate-w.rate) > 1e-9 || math.Abs(g.p99-w.p99) > 0.05*w.p99 {
			t.Errorf("row %d: rate %.3f, p99 %.3f, last %v; want %+v", i, g.rate, g.p99, g.last, w)
		}
	}
	if len(compareGrowth(nil)) != 0 {
		t.Error("ratios without rows")
	}
}

func TestPrintGrowth(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	row := sold("items", true, 202, 1000, 10)
	row.sent, row.took = 3000, 2*time.Second
	printGrowth(&sizes{out: &out}, []*growthRow{row})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{"items", "1", "202", "1000", "1.00", "10.0", "10.0", "1.00", "1500", "3000", "1"}
	if len(lines) != 2 || !slices.Equal(strings.Fields(lines[1]), want) {
		t.Errorf("got\n%s\nwant a heading and the fields %v", out.String(), want)
	}
}

func TestFillStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		missing     int
		phase, want time.Duration
	}{{30, 4 * time.Second, time.Millisecond}, {1_000_000, 4 * time.Second, time.Second}, {1_000_000, shortPhase, shortPhase}} {
		if got := fillStep(c.missing, c.phase); got != c.want {
			t.Errorf("%d orders missing, phases of %v: %v, want %v", c.missing, c.phase, got, c.want)
		}
	}
}

func TestGrow(t *testing.T) {
	t.Parallel()
	settings := growthSettings{
		items: []int{1, 3}, queued: []int{5, 50}, rows: []int{10, 20}, connections: []int{1, 4, 900}, processes: []int{1, 2},
		embeddedItems: []int{1, 3}, embeddedOrders: []int{0, 50},
		files: 1000,
	}
	for _, group := range growthNames() {
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			s := tiny(t, &out)
			s.o.size.groups = group
			if err := s.grow(t.Context(), settings); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if rows := strings.Count(out.String(), "\n  "+group); rows < 2 {
				t.Errorf("no table of two or more rows in\n%s", out.String())
			}
			bars := strings.Count(out.String(), "BAR ")
			switch group {
			case "processes":
				if bars != 0 || !strings.Contains(out.String(), "processes have no target") {
					t.Errorf("want no BAR line, but a reason, in\n%s", out.String())
				}
				return
			case "rows":
				figure(t, out.String(), "growth_rows_committed_rate")
			case "connections":
				if !strings.Contains(out.String(), "900 connections are left out") {
					t.Errorf("connections above the limit of open files are not mentioned in\n%s", out.String())
				}
			}
			if v := figure(t, out.String(), "growth_"+group+"_rate"); !(v > 0) || math.IsInf(v, 0) {
				t.Errorf("the ratio is %v, want a positive number", v)
			}
		})
	}
}
