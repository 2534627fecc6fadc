//go:build unix

// Package prometheus gives tests Prometheus's own programs: promtool (program.go), and a server
// that scrapes processes and evaluates alert rules (server.go). It also reads the files that
// refer to metrics: alert rules, dashboards (files.go) and pages of metrics (page.go).
package prometheus

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"flashsale/internal/testing/repo"
)

// folder has the programs that `.ci/deps.sh prometheus` unpacks, below the repository.
const folder = ".cache/prometheus/usr/bin"

// Program returns the path of promtool or prometheus: that in PATH, or the one that `make deps-test`
// has unpacked. If there is none, the test is skipped, or fails with CI=true.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	root, rerr := repo.Root()
	if rerr != nil {
		t.Fatal(rerr)
	}
	path, ferr := exec.LookPath(filepath.Join(root, folder, name))
	if ferr == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not installed, and with CI=true its tests may not be skipped; `make deps-test` unpacks it: %v", name, errors.Join(err, ferr))
	}
	t.Skipf("skipped: %s is not installed; `make deps-test` unpacks it", name)
	return ""
}

// Promtool runs promtool in a folder. The test fails with its output unless it succeeds.
func Promtool(t testing.TB, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Program(t, "promtool"), args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %q: %v\n%s", args, err, out)
	}
}
