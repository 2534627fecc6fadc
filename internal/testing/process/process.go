//go:build unix

// Package process runs the service as real processes for tests. It builds the program once,
// starts it on free loopback ports and waits until it is ready. Tests can stop it, kill it,
// pause it and continue it.
//
// A process is killed by its own pid when its test ends; on Linux also when the test binary
// itself is killed. A failed test shows the end of the process's log.
package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
)

const (
	readyWithin = 30 * time.Second
	stopWithin  = 20 * time.Second
	// reapWithin bounds the wait for the kernel after SIGKILL.
	reapWithin = 10 * time.Second
	pollEvery  = 20 * time.Millisecond
	// probeLimit bounds one readiness check: a paused process accepts connections but never
	// answers.
	probeLimit = 2 * time.Second
)

// Errors of TryStart and Wait; compare with errors.Is.
var (
	// ErrExited means that the process ended before it was ready.
	ErrExited = errors.New("process: ended before it was ready")
	// ErrNotReady means that the process was not ready in time. It was killed.
	ErrNotReady = errors.New("process: not ready in time")
	// ErrRunning means that the process was still running when the wait ended.
	ErrRunning = errors.New("process: still running")
)

// Spec is the configuration of a process. The zero value starts `flashsale serve` in a
// directory of its own.
type Spec struct {
	// Binary is the program's path; empty: Build with no flags.
	Binary string
	// Command is the subcommand; empty: "serve". A "worker" gets no --addr.
	Command string
	// Args follow the command and the addresses.
	Args []string
	// Env holds KEY=value settings added to the environment. The service's own settings
	// (FLASHSALE_…) are removed from the environment first.
	Env []string
	// Dir is the working directory; empty: a temporary one of the test. The log is also written
	// there.
	Dir string
	// Addr and OpsAddr are host:port to listen on; empty: free loopback ports.
	Addr, OpsAddr string
	// ReadyPath is polled until it answers 200; empty: /readyz on Addr, or /metrics on OpsAddr
	// for a worker, which has no other address.
	ReadyPath string
	// NoWait makes Start return immediately; WaitReady waits later.
	NoWait bool
	// ReadyWithin bounds the wait for readiness; zero: 30 s.
	ReadyWithin time.Duration
	// StopWithin bounds the wait of Stop after SIGTERM; zero: 20 s.
	StopWithin time.Duration
	// UID is the user and group of the process, which requires root; zero: those of the test
	// binary. The user must be able to read the process's folder.
	UID uint32
	// Files limits the open files of the process, sockets included; zero: the test binary's
	// limit.
	Files int
}

// fill sets the fields that the caller left empty.
func (s Spec) fill(t testing.TB) (Spec, error) {
	if s.Command == "" {
		s.Command = "serve"
	}
	if s.Dir == "" {
		s.Dir = t.TempDir()
	}
	if s.ReadyWithin == 0 {
		s.ReadyWithin = readyWithin
	}
	if s.StopWithin == 0 {
		s.StopWithin = stopWithin
	}
	if s.Binary == "" {
		path, err := build(t.Context(), Service, nil)
		if err != nil {
			return s, err
		}
		s.Binary = path
	}
	for _, addr := range []*string{&s.Addr, &s.OpsAddr} {
		if *addr != "" || addr == &s.Addr && s.isWorker() {
			continue
		}
		free, err := freeport.Addr()
		if err != nil {
			return s, err
		}
		*addr = free
	}
	if s.ReadyPath == "" {
		s.ReadyPath = "/readyz"
		if s.isWorker() {
			s.ReadyPath = "/metrics"
		}
	}
	return s, nil
}

func (s *Spec) isWorker() bool { return s.Command == "worker" }

func (s *Spec) args() []string {
	args := []string{s.Command, "--ops-addr", s.OpsAddr}
	if !s.isWorker() {
		args = append(args, "--addr", s.Addr)
	}
	return append(args, s.Args...)
}

// command returns the command of the process.
func (s *Spec) command() *exec.Cmd {
	cmd := exec.Command(s.Binary, s.args()...)
	if s.Files != 0 {
		cmd = s.limited()
	}
	if s.UID != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.UID, Gid: s.UID}}
	}
	return cmd
}

// limited returns the command with its limit of open files. A shell sets the limit and then
// execs the program, which keeps the pid and never runs without the limit.
func (s *Spec) limited() *exec.Cmd {
	script := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, s.Files)
	return exec.Command("sh", append([]string{"-c", script, s.Binary}, s.args()...)...)
}

// environ returns the environment plus extra, without the service's own settings, which a
// developer may have set.
func environ(extra []string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FLASHSALE_") })
	return append(env, extra...)
}

// P is a process. Its methods are safe for concurrent use while the test runs, and may be
// called after the process has ended.
type P struct {
	t    testing.TB
	spec Spec
	cmd  *exec.Cmd
	log  string // path

	done chan struct{} // closed when the process has ended and was reaped
	code int           // valid once done is closed
}

// Start starts a process and returns when it is ready; otherwise the test fails immediately. It
// must be called from the test's goroutine.
func Start(t testing.TB, spec Spec) *P {
	t.Helper()
	p, err := TryStart(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TryStart is like Start, for a process that may refuse to start and for goroutines other than
// the test's. It returns ErrExited or ErrNotReady with the end of the log. The process has then
// ended, and is returned for its log and exit code. P is nil if the process could not be
// created.
func TryStart(t testing.TB, spec Spec) (*P, error) {
	t.Helper()
	spec, err := spec.fill(t)
	if err != nil {
		return nil, err
	}
	p := &P{t: t, spec: spec, done: make(chan struct{})}
	if err := p.start(); err != nil {
		return nil, fmt.Errorf("process: start %s: %w", spec.Command, err)
	}
	t.Cleanup(p.cleanup)
	if spec.NoWait {
		return p, nil
	}
	if err := p.WaitReady(); err != nil {
		p.Kill()
		return p, err
	}
	return p, nil
}

// logs numbers the log files, so that a restart in the same directory does not overwrite the
// previous log.
var logs atomic.Int64

// start creates the process. The output goes directly to a file: with a pipe, the wait would
// not end while a grandchild holds it open.
func (p *P) start() error {
	p.log = filepath.Join(p.spec.Dir, fmt.Sprintf("%s-%d.log", p.spec.Command, logs.Add(1)))
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	p.cmd = p.spec.command()
	p.cmd.Dir = p.spec.Dir
	p.cmd.Env = environ(p.spec.Env)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	err = child.Start(p.cmd, p.exited)
	// The running process has its own descriptor; this one is not written to.
	if cerr := out.Close(); cerr != nil {
		p.t.Errorf("process: close log: %v", cerr)
	}
	return err
}

// exited records the end of the process; err is the result of Cmd.Wait.
func (p *P) exited(err error) {
	p.code = p.cmd.ProcessState.ExitCode()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.t.Errorf("process: wait for %s (pid %d): %v", p.spec.Command, p.Pid(), err)
	}
	close(p.done)
}

// WaitReady waits until the process answers 200 on its ready path. It returns
// ErrExited or ErrNotReady, with the end of the log.
func (p *P) WaitReady() error {
	base := p.URL()
	if p.spec.isWorker() {
		base = p.OpsURL()
	}
	limit := time.NewTimer(p.spec.ReadyWithin)
	defer limit.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	client := &http.Client{Timeout: probeLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		wrong := probe(client, base+p.spec.ReadyPath)
		if wrong == "" {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%w: %s, exit code %d%s", ErrExited, p.spec.Command, p.code, p.tail())
		case <-limit.C:
			return fmt.Errorf("%w: %s, after %v: %s%s", ErrNotReady, p.spec.Command, p.spec.ReadyWithin, wrong, p.tail())
		case <-tick.C:
		}
	}
}

// probe returns the problem, or "" if the answer is 200.
func probe(client *http.Client, url string) string {
	resp, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	if err := resp.Body.Close(); err != nil {
		return err.Error()
	}
	if resp.StatusCode != http.StatusOK {
		return resp.Status
	}
	return ""
}

// URL is the address of the API, "http://127.0.0.1:port"; empty for a worker.
func (p *P) URL() string {
	if p.spec.Addr == "" {
		return ""
	}
	return "http://" + p.spec.Addr
}

// OpsURL is the address for metrics and profiles, "http://127.0.0.1:port".
func (p *P) OpsURL() string { return "http://" + p.spec.OpsAddr }

// Pid is the process id. It is no longer valid after the end of the process.
func (p *P) Pid() int { return p.cmd.Process.Pid }

// Spec returns the configuration with all defaults filled in. Start(t, p.Spec()) restarts the
// process in the same place.
func (p *P) Spec() Spec { return p.spec }

// Done is closed when the process has ended.
func (p *P) Done() <-chan struct{} { return p.done }

// Wait waits until the process ends and returns its exit code, -1 if a signal ended it, or
// ErrRunning if ctx ends first.
func (p *P) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.code, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %s: %w", ErrRunning, p.spec.Command, context.Cause(ctx))
	}
}

// Stop sends SIGTERM and returns the exit code. If the process is still running after
// StopWithin, it is killed and the test fails. A paused process is continued first, because it
// could not handle the signal. If the process has already ended, Stop only returns the code.
func (p *P) Stop() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	if !p.endsWithin(p.spec.StopWithin) {
		p.t.Errorf("process: %s (pid %d) did not end within %v of SIGTERM", p.spec.Command, p.Pid(), p.spec.StopWithin)
		p.Kill()
	}
	return p.code
}

// Kill ends the process with SIGKILL, even while it is paused, and returns when it is gone. If
// the process has already ended, it does nothing.
func (p *P) Kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	if !p.endsWithin(reapWithin) {
		p.t.Errorf("process: %s (pid %d) is still there %v after SIGKILL", p.spec.Command, p.Pid(), reapWithin)
	}
}

// Continue resumes a paused process (SIGCONT).
func (p *P) Continue() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
}

// Pause stops the process (SIGSTOP) until Continue. On Linux it returns when the process has
// stopped; elsewhere the signal may still be pending.
func (p *P) Pause() {
	p.t.Helper()
	if err := child.Pause(p.cmd.Process, p.done); err != nil {
		p.t.Errorf("process: %s: %v", p.spec.Command, err)
	}
}

// signal sends sig unless the process has ended. It cannot reach another process with the same
// pid, because os.Process refuses signals after the process was reaped.
func (p *P) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("process: send %v to %s (pid %d): %v", sig, p.spec.Command, p.Pid(), err)
	}
}

func (p *P) endsWithin(d time.Duration) bool {
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-p.done:
		return true
	case <-limit.C:
		return false
	}
}

func (p *P) cleanup() {
	p.Kill()
	if p.t.Failed() {
		p.t.Logf("%s (pid %d, exit code %d)%s", p.spec.Command, p.Pid(), p.code, p.tail())
	}
}
