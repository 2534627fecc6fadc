//go:build unix

package main_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
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

// A version or a help that cannot be written is an error, which is printed once.
func TestOutput_Full(t *testing.T) {
	needProcesses(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("skipped: this system has no /dev/full")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := full.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, args := range [][]string{{"--version"}, {"--help"}, {"help", "item"}, {"item", "list", "--help"}, {"config"}} {
		cmd := exec.CommandContext(t.Context(), process.Build(t), args...)
		var said bytes.Buffer
		cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), full, &said
		var failed *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &failed) || failed.ExitCode() != 1 {
			t.Errorf("%v: %v, want exit code 1", args, err)
		}
		if strings.Count(said.String(), "no space left") != 1 || strings.Count(said.String(), "\n") != 1 {
			t.Errorf("%v: %q on standard error, want the error once", args, said.String())
		}
	}
}
