//go:build unix

package process

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Result is the outcome of a command.
type Result struct {
	// Code is the exit code, -1 if a signal ended the process.
	Code int
	// Output is its output on both streams.
	Output string
}

// runWithin bounds a command that should end without a signal, such as `migrate up`.
const runWithin = 60 * time.Second

// Run runs a command that ends without a signal, for example Spec{Command: "migrate", Args:
// []string{"up", "--db", db}}, and returns its exit code and output. It passes no addresses,
// and uses only Binary, Command, Args, Env, Dir and UID. The test fails if the command cannot
// be started or does not end within a minute, but not because of its exit code.
func Run(t testing.TB, spec Spec) Result {
	t.Helper()
	if spec.Binary == "" {
		spec.Binary = Build(t)
	}
	if spec.Dir == "" {
		spec.Dir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(t.Context(), runWithin)
	defer cancel()
	var args []string
	if spec.Command != "" {
		args = append(args, spec.Command)
	}
	cmd := exec.CommandContext(ctx, spec.Binary, append(args, spec.Args...)...)
	cmd.Dir, cmd.Env = spec.Dir, environ(spec.Env)
	if spec.UID != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: spec.UID, Gid: spec.UID}}
	}
	// A grandchild that keeps the output open must not block the test.
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		t.Fatalf("process: run %s %v: %v\n%s", spec.Command, spec.Args, err, lastLines(string(out), tailLines))
	}
	return Result{Code: cmd.ProcessState.ExitCode(), Output: string(out)}
}
