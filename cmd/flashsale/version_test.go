//go:build unix

package main_test

import (
	"runtime"
	"strings"
	"testing"

	"flashsale/internal/testing/process"
)

// The program and its metrics show the build.
func TestVersion(t *testing.T) {
	needProcesses(t)
	r := command(t, "--version")
	wantCode(t, 0, r, "flashsale ", "revision ", runtime.Version())
	if strings.Count(strings.TrimSpace(r.Output), "\n") != 0 {
		t.Errorf("--version prints more than a line:\n%s", r.Output)
	}
	linked := process.Build(t, "-ldflags=-X main.version=v9.8.7")
	wantCode(t, 0, process.Run(t, process.Spec{Binary: linked, Args: []string{"--version"}}), "flashsale v9.8.7 (revision ", runtime.Version())
	s := newShop(t)
	spec := s.spec("serve", []string{"--demo=false"})
	spec.Binary = linked
	p := process.Start(t, spec)
	a, err := dialAddr(t, p.OpsURL()).do("GET", "/metrics", "", "")
	line := strings.TrimSpace(grep(a.Body, "flashsale_build_info{"))
	for _, word := range []string{`version="v9.8.7"`, `revision="`, `go_version="` + runtime.Version() + `"`, "} 1"} {
		if err != nil || !strings.Contains(line, word) {
			t.Errorf("the metric lacks %s: %q, error %v", word, line, err)
		}
	}
}
