//go:build unix

// Package process runs the service as real processes for tests: it builds the
// program once, starts it on free loopback ports, waits until it is ready, and
// lets a test stop it, kill it, or freeze it and let it go on.
//
// A process is ended by its own pid when its test ends, on Linux even when the
// test binary itself is killed. When the test fails, the end of the process's
// log goes into the test's.
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
	// probeLimit bounds one look at readiness: a frozen process accepts
	// connections and never answers.
	probeLimit = 2 * time.Second
)

// What TryStart and Wait report; compare with errors.Is.
var (
	// ErrExited says that the process ended before it was ready.
	ErrExited = errors.New("process: ended before it was ready")
	// ErrNotReady says that the process was not ready in time. It was killed.
	ErrNotReady = errors.New("process: not ready in time")
	// ErrRunning says that the process was still running when the wait ended.
	ErrRunning = errors.New("process: still running")
)

// Spec says what to start. The zero value starts `flashsale serve` in a
// directory of its own.
type Spec struct {
	// Binary is the program's path; empty: Build with no flags.
	Binary string
	// Command is the subcommand; empty: "serve". A "worker" gets no --addr.
	Command string
	// Args follow the command and the addresses.
	Args []string
	// Env holds KEY=value settings on top of the environment, from which the
	// service's own settings (FLASHSALE_…) are removed first.
	Env []string
	// Dir is the working directory; empty: a temporary one of the test. The
	// log is written here too.
	Dir string
	// Addr and OpsAddr are host:port to listen on; empty: free loopback ports.
	Addr, OpsAddr string
	// ReadyPath is asked until it answers 200; empty: /readyz on Addr, or
	// /metrics on OpsAddr for a worker, which has no other address.
	ReadyPath string
	// NoWait makes Start return at once; WaitReady waits later.
	NoWait bool
	// ReadyWithin bounds the wait for readiness; zero: 30 s.
	ReadyWithin time.Duration
	// StopWithin bounds the wait of Stop after SIGTERM; zero: 20 s.
	StopWithin time.Duration
	// UID is the user, and the group, that the process runs as, which needs root; zero:
	// those of the test binary. Its folder has to be readable to that user.
	UID uint32
	// Files is how many files the process may have open at once, sockets
	// included; zero: as many as the test binary.
	Files int
}

// fill sets what the caller left open.
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

// command is the process to be.
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

// limited is the process with its limit of open files. A shell sets it and then becomes
// the process: it keeps the pid, and there is no moment without the limit.
func (s *Spec) limited() *exec.Cmd {
	script := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, s.Files)
	return exec.Command("sh", append([]string{"-c", script, s.Binary}, s.args()...)...)
}

// environ is the environment without the service's own settings, which a
// developer may have set, plus extra.
func environ(extra []string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FLASHSALE_") })
	return append(env, extra...)
}

// P is one running process. Its methods may be called from any goroutine while
// the test runs, and on a process that has ended.
type P struct {
	t    testing.TB
	spec Spec
	cmd  *exec.Cmd
	log  string // path

	done chan struct{} // closed when the process has ended and was reaped
	code int           // valid once done is closed
}

// Start starts a process and returns when it is ready; the test fails at once
// when it does not get there. It must be called from the test's goroutine.
func Start(t testing.TB, spec Spec) *P {
	t.Helper()
	p, err := TryStart(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TryStart is Start for a process that may refuse to start, and for goroutines
// other than the test's. It returns ErrExited or ErrNotReady, with the end of
// the log; the process has ended then, and is returned for its log and exit code.
// When the process could not be created at all, P is nil.
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

// logs numbers the log files, so that a restart in the same directory does not
// overwrite what the process before it wrote.
var logs atomic.Int64

// start creates the process. The output goes straight to a file: a pipe would
// keep the wait open for as long as a grandchild holds it.
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
	// A process that runs has a descriptor of its own; this one is not written to.
	if cerr := out.Close(); cerr != nil {
		p.t.Errorf("process: close log: %v", cerr)
	}
	return err
}

// exited records the end of the process; err is what Cmd.Wait returned.
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

// probe returns what is wrong, or nothing when the answer is 200.
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

// Pid is the process id. After the end of the process it names nothing.
func (p *P) Pid() int { return p.cmd.Process.Pid }

// Spec is what the process was started with, everything open filled in.
// Start(t, p.Spec()) starts its successor in the same place.
func (p *P) Spec() Spec { return p.spec }

// Done is closed when the process has ended.
func (p *P) Done() <-chan struct{} { return p.done }

// Wait waits until the process ends by itself and returns its exit code, -1
// when a signal ended it, or ErrRunning when ctx ends first.
func (p *P) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.code, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %s: %w", ErrRunning, p.spec.Command, context.Cause(ctx))
	}
}

// Stop asks the process to end (SIGTERM) and returns its exit code. One that is
// still there after StopWithin is killed, and the test fails. A frozen process
// is let go on, or it would never hear the request. On a process that has ended
// it only returns the code.
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

// Kill ends the process with SIGKILL, frozen or not, and returns when it is
// gone. On a process that has ended it does nothing.
func (p *P) Kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	if !p.endsWithin(reapWithin) {
		p.t.Errorf("process: %s (pid %d) is still there %v after SIGKILL", p.spec.Command, p.Pid(), reapWithin)
	}
}

// Continue lets a frozen process go on (SIGCONT).
func (p *P) Continue() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
}

// Pause freezes the process (SIGSTOP) until Continue. On Linux it returns when
// the process has come to rest; elsewhere the signal may still be on its way.
func (p *P) Pause() {
	p.t.Helper()
	if err := child.Pause(p.cmd.Process, p.done); err != nil {
		p.t.Errorf("process: %s: %v", p.spec.Command, err)
	}
}

// signal sends sig unless the process has ended. The pid cannot name a stranger:
// os.Process refuses once the process was reaped.
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
