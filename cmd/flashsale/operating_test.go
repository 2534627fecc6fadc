//go:build unix

package main_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// pasteWithin bounds the run of the documented commands.
const pasteWithin = 2 * time.Minute

// TestOperating_CommandsRunAsWritten pastes the commands of docs/operating.md into a shell at
// once, with other addresses for Redis, the database and the ports: the last command reaches an
// API.
func TestOperating_CommandsRunAsWritten(t *testing.T) {
	needProcesses(t)
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n## Running in production\n")
	_, rest, _ = strings.Cut(rest, "\n```sh\n")
	script, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/operating.md has no such section")
	}
	server := redistest.Real(t, "--appendfsync", "everysec")
	dir := t.TempDir()
	if err := os.Symlink(process.Build(t), filepath.Join(dir, "flashsale")); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(process.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"mkdir -p /var/lib/flashsale\n":            "mkdir -p " + dir + "/new\n",
		"make build && export PATH=$PWD/bin:$PATH": "export PATH=" + dir + ":$PATH",
		"127.0.0.1:6379":                           server.Addr(),
		"/var/lib/flashsale/":                      dir + "/new/",
		"0.0.0.0:8080":                             "127.0.0.1:" + port,
		"127.0.0.1:9091":                           process.FreeAddr(t),
	} {
		if strings.Count(script, from) != 1 {
			t.Fatalf("the documented commands do not have %q once:\n%s", from, script)
		}
		script = strings.Replace(script, from, to, 1)
	}
	// The shell's background processes end with it.
	script += "\nstatus=$?\nkill $(jobs -p)\nwait\nexit $status\n"

	ctx, cancel := context.WithTimeout(t.Context(), pasteWithin)
	defer cancel()
	sh := exec.CommandContext(ctx, "bash", "-c", script)
	sh.Dir = dir
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "FLASHSALE_") {
			sh.Env = append(sh.Env, variable)
		}
	}
	// The two ports for which the commands use the default.
	sh.Env = append(sh.Env, "FLASHSALE_ADDR=127.0.0.1:"+port, "FLASHSALE_OPS_ADDR="+process.FreeAddr(t))
	sh.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	sh.Cancel = func() error { return syscall.Kill(-sh.Process.Pid, syscall.SIGKILL) }
	sh.WaitDelay = soon
	out, err := sh.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "drop-1") || !strings.Contains(string(out), "4900 EUR") {
		t.Errorf("the documented commands: %v\n%s", err, out)
	}
}
