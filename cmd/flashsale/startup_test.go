//go:build unix

package main_test

import (
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/process"
)

// TestServe_FirstStart: the first start prints its banner and has nothing to inform of in
// its log, in both formats. The second start has a sale to load, and logs that.
func TestServe_FirstStart(t *testing.T) {
	needProcesses(t)
	for _, format := range []string{"console", "json"} {
		t.Run(format, func(t *testing.T) {
			p := process.Start(t, process.Spec{Dir: t.TempDir(), Args: []string{"--log-format", format}})
			term(t, p)
			wantBanner(t, p.Log(), "shop dashboard api docs metrics payments database engine mode admin")
			for line := range strings.Lines(p.Log()) {
				informs := strings.Contains(line, " INF ") || strings.Contains(line, `"level":"info"`)
				if informs && !strings.Contains(line, "stopped") {
					t.Errorf("the first start logs: %s", line)
				}
			}
			p = process.Start(t, p.Spec())
			eventually(t, "the second start loads the sale", soon, func() (bool, any) {
				return strings.Contains(p.Log(), "loading sales from the database") && strings.Contains(p.Log(), "sales loaded"), p.Log()
			})
			wantBanner(t, p.Log(), "shop dashboard api docs metrics payments database engine mode admin")
		})
	}
}

// TestServe_Banner: what a role does not have is missing from its banner, and the rest
// keeps its order.
func TestServe_Banner(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	wantBanner(t, s.api().Log(), "shop dashboard api docs metrics database engine")
	wantBanner(t, s.worker().Log(), "metrics database engine")
}

// TestServe_OneAddressTwice: the error names the other setting that has the address.
func TestServe_OneAddressTwice(t *testing.T) {
	needProcesses(t)
	addr := process.FreeAddr(t)
	r := process.Run(t, process.Spec{Args: []string{"--addr", addr, "--ops-addr", addr}})
	wantCode(t, 1, r, "setting addr (FLASHSALE_ADDR)", addr, "choose another address than that of ops-addr")
}

// isLog reports whether a line of a process's output belongs to its log: it begins with a
// date or is JSON.
func isLog(line string) bool {
	return strings.HasPrefix(line, "20") || strings.HasPrefix(line, "{")
}

// wantBanner checks the names of the lines that a start prints.
func wantBanner(t *testing.T, output, want string) {
	t.Helper()
	var names []string
	for line := range strings.Lines(output) {
		if !isLog(line) {
			names = append(names, strings.Fields(line)[0])
		}
	}
	if !slices.Equal(names, strings.Fields(want)) {
		t.Errorf("the banner has the lines %v, want %s:\n%s", names, want, output)
	}
}
