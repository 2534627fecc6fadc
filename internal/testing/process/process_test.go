//go:build unix

package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// orphan is the variable that makes this test binary die without clean-up; see
// TestStart_DiesWithTheTestBinary.
const orphan = "PROCESS_TEST_ORPHAN"

func TestMain(m *testing.M) { Main(m) }

// fake is a Spec of the program in testdata/fake.
func fake(t *testing.T, args ...string) Spec {
	t.Helper()
	return Spec{Binary: BuildPackage(t, "./testdata/fake"), Args: args, ReadyWithin: 20 * time.Second}
}

// witness is a testing.TB that records its calls, so that failures can be checked without
// failing.
type witness struct {
	testing.TB
	mu       sync.Mutex
	errors   []string
	logs     []string
	cleanups []func()
}

func (w *witness) Helper() {}

func (w *witness) Errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errors = append(w.errors, fmt.Sprintf(format, args...))
}

func (w *witness) Logf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logs = append(w.logs, fmt.Sprintf(format, args...))
}

func (w *witness) Failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.errors) > 0
}

func (w *witness) Cleanup(f func()) { w.cleanups = append(w.cleanups, f) }

// end does what the testing package does at the end of a test.
func (w *witness) end() {
	for i := len(w.cleanups) - 1; i >= 0; i-- {
		w.cleanups[i]()
	}
}

// get returns the body of url, which must answer within d.
func get(t *testing.T, url string, d time.Duration) (string, error) {
	t.Helper()
	client := &http.Client{Timeout: d, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), errors.Join(err, resp.Body.Close())
}

// mustBeGone checks that the process was reaped and its pid no longer exists.
func mustBeGone(t *testing.T, p *P) {
	t.Helper()
	select {
	case <-p.Done():
	default:
		t.Error("the process is still running")
	}
	if err := syscall.Kill(p.Pid(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("pid %d is still there: %v", p.Pid(), err)
	}
}

func TestBuild_OncePerFlags(t *testing.T) {
	t.Parallel()
	paths := make([]string, 4)
	var wg sync.WaitGroup
	for i := range paths {
		wg.Go(func() {
			path, err := build(t.Context(), "./testdata/fake", nil)
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	wg.Wait()
	for _, path := range paths {
		if path != paths[0] {
			t.Errorf("built again: %s and %s", paths[0], path)
		}
	}
	if other := BuildPackage(t, "./testdata/fake", "-tags=other"); other == paths[0] {
		t.Errorf("another set of flags shares %s", other)
	}
}

func TestBuild_ErrCompiler(t *testing.T) {
	t.Parallel()
	for range 2 { // a failure is kept like a success
		path, err := build(t.Context(), "./testdata/missing", nil)
		if err == nil || path != "" || !strings.Contains(err.Error(), "missing") {
			t.Errorf("got %q, %v; want an error that names the package", path, err)
		}
	}
}

func TestStart_WaitsUntilReady(t *testing.T) {
	t.Parallel()
	p := Start(t, fake(t, "--ready-after", "4"))
	body, err := get(t, p.URL()+"/readyz", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintln("ok", p.Pid()); body != want {
		t.Errorf("body %q, want %q", body, want)
	}
	if !strings.Contains(p.Log(), "command serve") {
		t.Errorf("log %q lacks the default command", p.Log())
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d at the second stop", code)
	}
	if !strings.Contains(p.Log(), "stopped by request") {
		t.Errorf("log %q lacks the last line", p.Log())
	}
	mustBeGone(t, p)
}

func TestStart_WorkerHasNoAPI(t *testing.T) {
	t.Parallel()
	spec := fake(t)
	spec.Command = "worker"
	p := Start(t, spec)
	if p.URL() != "" {
		t.Errorf("URL %q of a worker", p.URL())
	}
	if _, err := get(t, p.OpsURL()+"/metrics", 10*time.Second); err != nil {
		t.Error(err)
	}
}

func TestStart_CleansUp(t *testing.T) {
	t.Parallel()
	var p *P
	t.Run("inner", func(t *testing.T) { p = Start(t, fake(t)) })
	mustBeGone(t, p)
}

func TestStart_SameAddressAgain(t *testing.T) {
	t.Parallel()
	first := Start(t, fake(t))
	first.Kill()
	if code, err := first.Wait(t.Context()); code != -1 || err != nil {
		t.Errorf("Wait = %d, %v after SIGKILL; want -1", code, err)
	}
	second := Start(t, first.Spec())
	if second.URL() != first.URL() || second.Spec().Dir != first.Spec().Dir {
		t.Errorf("started at %s in %s, want %s in %s", second.URL(), second.Spec().Dir, first.URL(), first.Spec().Dir)
	}
	if second.LogPath() == first.LogPath() {
		t.Error("the second log overwrites the first")
	}
}

// Not parallel: it sets the environment.
func TestStart_Environment(t *testing.T) {
	t.Setenv("FLASHSALE_SEEN", "a developer's own")
	spec := fake(t)
	spec.Env = []string{"FLASHSALE_SET=given"}
	if log := Start(t, spec).Log(); !strings.Contains(log, "FLASHSALE_SEEN= FLASHSALE_SET=given") {
		t.Errorf("log %q: the outer setting must be gone and the given one there", log)
	}
}

func TestTryStart_ErrExited(t *testing.T) {
	t.Parallel()
	p, err := TryStart(t, fake(t, "--exit", "3"))
	if !errors.Is(err, ErrExited) {
		t.Fatalf("error %v, want ErrExited", err)
	}
	for _, want := range []string{"exit code 3", "cannot start: the reason"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if code, err := p.Wait(t.Context()); code != 3 || err != nil {
		t.Errorf("Wait = %d, %v; want 3", code, err)
	}
}

func TestTryStart_ErrNotReady(t *testing.T) {
	t.Parallel()
	spec := fake(t, "--ready-after", "1000000")
	spec.ReadyWithin = 200 * time.Millisecond
	p, err := TryStart(t, spec)
	if !errors.Is(err, ErrNotReady) {
		t.Fatalf("error %v, want ErrNotReady", err)
	}
	mustBeGone(t, p)
}

func TestTryStart_ErrNoProgram(t *testing.T) {
	t.Parallel()
	p, err := TryStart(t, Spec{Binary: filepath.Join(t.TempDir(), "none")})
	if !errors.Is(err, os.ErrNotExist) || p != nil {
		t.Errorf("got %v, %v; want no process and ErrNotExist", p, err)
	}
}

// The limit applies from the start, to the process itself and not to a parent of it.
func TestStart_Files(t *testing.T) {
	t.Parallel()
	spec := fake(t, "--ready-after", "2")
	spec.Files = 64
	p := Start(t, spec)
	body, err := get(t, p.URL()+"/readyz", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintln("ok", p.Pid()); body != want {
		t.Errorf("body %q, want %q", body, want)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.Pid()))
	if err != nil {
		t.Skip("the limits of a process cannot be read here: ", err)
	}
	for line := range strings.Lines(string(limits)) {
		if f := strings.Fields(line); strings.HasPrefix(line, "Max open files") && (f[3] != "64" || f[4] != "64") {
			t.Errorf("%s", line)
		}
	}
	// The process has fewer files than connections: the rest wait, and the process survives.
	for range 80 {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.URL(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func TestP_WaitReady(t *testing.T) {
	t.Parallel()
	spec := fake(t, "--ready-after", "3")
	spec.NoWait = true
	p := Start(t, spec)
	if err := p.WaitReady(); err != nil {
		t.Error(err)
	}
}

func TestP_Wait_ErrRunning(t *testing.T) {
	t.Parallel()
	p := Start(t, fake(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, ErrRunning) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want ErrRunning and the context's", err)
	}
}

func TestP_Pause(t *testing.T) {
	t.Parallel()
	p := Start(t, fake(t))
	p.Pause()
	if _, err := get(t, p.URL()+"/readyz", 300*time.Millisecond); err == nil {
		t.Error("a paused process answered")
	}
	if runtime.GOOS == "linux" && !p.Stopped() {
		t.Error("Pause returned before the process was at rest")
	}
	p.Continue()
	if _, err := get(t, p.URL()+"/readyz", 10*time.Second); err != nil {
		t.Errorf("after Continue: %v", err)
	}
	p.Pause()
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d when stopped while paused", code)
	}
}

func TestP_Kill_Paused(t *testing.T) {
	t.Parallel()
	p := Start(t, fake(t))
	p.Pause()
	p.Kill()
	mustBeGone(t, p)
}

func TestP_Stop_KillsAStubbornProcess(t *testing.T) {
	t.Parallel()
	w := &witness{TB: t}
	spec := fake(t, "--stubborn", "--lines", "100")
	spec.StopWithin = 200 * time.Millisecond
	p := Start(w, spec)
	if code := p.Stop(); code != -1 {
		t.Errorf("exit code %d, want -1: killed", code)
	}
	w.end()
	if len(w.errors) != 1 || !strings.Contains(w.errors[0], "did not end within 200ms of SIGTERM") {
		t.Errorf("errors %q, want one that says what happened", w.errors)
	}
	mustBeGone(t, p)
	// The failed test shows only the end of the log.
	if len(w.logs) != 1 {
		t.Fatalf("logs %q, want one", w.logs)
	}
	if !strings.Contains(w.logs[0], "line 99\n") || strings.Contains(w.logs[0], "line 9\n") {
		t.Errorf("log %q, want the last %d lines", w.logs[0], tailLines)
	}
}

func TestStart_QuietWhenTheTestPasses(t *testing.T) {
	t.Parallel()
	w := &witness{TB: t}
	Start(w, fake(t))
	w.end()
	if len(w.logs)+len(w.errors) != 0 {
		t.Errorf("logs %q, errors %q; want none", w.logs, w.errors)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	spec := fake(t, "--exit", "2")
	spec.Command = "migrate"
	got := Run(t, spec)
	if got.Code != 2 || !strings.Contains(got.Output, "command migrate") || !strings.Contains(got.Output, "the reason") {
		t.Errorf("got %+v", got)
	}
}

func TestFreeAddr_NeverTwice(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 200 {
		addr := FreeAddr(t)
		if seen[addr] {
			t.Fatalf("%s was given twice", addr)
		}
		seen[addr] = true
	}
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"a\nb\n", "a\nb"},
		{"a\nb\nc\nd\n", "(2 lines before)\nc\nd"},
	} {
		if got := lastLines(c.in, 2); got != c.want {
			t.Errorf("lastLines(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

// TestOrphan is the child process of the test below; without its variable it does nothing.
func TestOrphan(t *testing.T) {
	addr := os.Getenv(orphan)
	if addr == "" {
		t.Skip("only runs inside TestStart_DiesWithTheTestBinary")
	}
	Start(t, Spec{Binary: os.Getenv(orphan + "_BINARY"), Dir: os.Getenv(orphan + "_DIR"), Addr: addr})
	os.Exit(7) // no clean-up runs, as after a panic
}

func TestStart_DiesWithTheTestBinary(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux does this")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr, dir := FreeAddr(t), t.TempDir()
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestOrphan$")
	cmd.Env = append(os.Environ(), orphan+"="+addr, orphan+"_DIR="+dir, orphan+"_BINARY="+BuildPackage(t, "./testdata/fake"))
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 7 {
		t.Fatalf("the inner test did not get that far: %v\n%s", err, out)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "serve-*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs %v, %v: the process never started", logs, err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(2 * time.Minute)
	for {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("the process outlived the test binary that started it")
		}
	}
}
