package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/internal/testing/child"
)

const (
	childVar = "REDISTEST_CHILD"
	// sayPrefix marks what a child says among what the testing package prints.
	sayPrefix = "\x01say "
	// linesAhead is how many lines a child may say before anyone listens.
	linesAhead = 4096
	// outputKept is how many lines of other output are kept for a failed test.
	outputKept = 60
	// outputWithin bounds the wait for a child's last output after its end.
	outputWithin = 5 * time.Second
)

// IsChild reports whether this process was started by Reexec.
func IsChild() bool { return os.Getenv(childVar) == "1" }

// Say prints one line that the parent receives from Lines. A line break within
// it is replaced by a space.
func Say(format string, args ...any) {
	line := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	// One write, so that goroutines do not cut each other's lines. When it
	// fails, the parent is gone, and with it whoever listened.
	fmt.Fprint(os.Stdout, sayPrefix+line+"\n")
}

// Child is a further process of the test binary. Its methods may be called from
// any goroutine while the test runs.
type Child struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string

	done   chan struct{} // closed when the process has ended and was reaped
	exit   error         // how it ended; valid once done is closed
	heard  chan struct{} // closed when its output was read to the end
	ending chan struct{} // closed when the test has ended and nobody listens
	// expected is set once the test knows of the end, or has caused it.
	expected atomic.Bool

	mu      sync.Mutex
	output  []string // the last lines that were not said
	raced   bool
	without bool // no test has the name
}

// Reexec starts the test binary once more, to run one test: the one that
// calls it, which first asks IsChild, or one that skips itself unless IsChild.
// env holds KEY=value settings on top of the environment.
//
//	func TestLock_TwoProcesses(t *testing.T) {
//		if redistest.IsChild() {
//			redistest.Say("ready")
//			…
//			return
//		}
//		c := redistest.Reexec(t, "TestLock_TwoProcesses", "ADDR="+addr)
//		…
//	}
//
// The process ends with the test, by its pid, and on Linux also with the test
// binary. The test fails when the child ended badly without the test having
// caused it or asked by Wait, and when the race detector spoke up in it.
func Reexec(t testing.TB, test string, env ...string) *Child {
	t.Helper()
	if IsChild() {
		t.Fatal("redistest: a child starts no children; does the test ask IsChild?")
	}
	c, err := startChild(t, test, env)
	if err != nil {
		t.Fatalf("redistest: start child: %v", err)
	}
	return c
}

func startChild(t testing.TB, test string, env []string) (*Child, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// A subtest is named by its path; each part has to match as a whole.
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	c := &Child{
		t: t, lines: make(chan string, linesAhead),
		done: make(chan struct{}), heard: make(chan struct{}), ending: make(chan struct{}),
		cmd: exec.Command(path, "-test.run="+strings.Join(parts, "/"), "-test.v=false", "-test.count=1"),
	}
	c.cmd.Env = append(append(os.Environ(), env...), childVar+"=1")
	// Pipes of our own, because those of exec.Cmd are closed when the process
	// ends, with what it said last.
	pipes, err := openPipes(3)
	if err != nil {
		return nil, err
	}
	in, out, errs := pipes[0], pipes[1], pipes[2]
	c.stdin = in.w
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = in.r, out.w, errs.w
	if err := child.Start(c.cmd, c.exited); err != nil {
		return nil, errors.Join(err, in.r.Close(), in.w.Close(), out.r.Close(), out.w.Close(), errs.r.Close(), errs.w.Close())
	}
	go func() {
		var both sync.WaitGroup
		both.Go(func() { c.hear(out.r); close(c.lines) })
		both.Go(func() { c.hear(errs.r) })
		both.Wait()
		close(c.heard)
	}()
	t.Cleanup(func() { c.end(out.r, errs.r) })
	// The child's ends: it has descriptors of its own.
	return c, errors.Join(in.r.Close(), out.w.Close(), errs.w.Close())
}

type pipe struct{ r, w *os.File }

func openPipes(n int) ([]pipe, error) {
	pipes := make([]pipe, 0, n)
	for range n {
		r, w, err := os.Pipe()
		if err != nil {
			for _, p := range pipes {
				err = errors.Join(err, p.r.Close(), p.w.Close())
			}
			return nil, err
		}
		pipes = append(pipes, pipe{r, w})
	}
	return pipes, nil
}

func (c *Child) exited(err error) {
	c.exit = err
	close(c.done)
}

// hear reads what the child prints, up to its end.
func (c *Child) hear(r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			c.take(line)
		}
		if err != nil {
			return // the end, or the pipe was closed at clean-up
		}
	}
}

func (c *Child) take(line string) {
	if said, ok := strings.CutPrefix(line, sayPrefix); ok {
		select {
		case c.lines <- said:
		case <-c.ending:
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raced = c.raced || strings.Contains(line, "WARNING: DATA RACE")
	c.without = c.without || strings.Contains(line, "warning: no tests to run")
	if c.output = append(c.output, line); len(c.output) > outputKept {
		c.output = c.output[1:]
	}
}

// Lines delivers what the child says with Say, line by line, and is closed when
// the child has ended. A child that says thousands of lines to nobody waits.
func (c *Child) Lines() <-chan string { return c.lines }

// Stdin is the child's standard input. Closing it is a way to tell the child
// that it may end; it also ends when the test binary dies.
func (c *Child) Stdin() io.WriteCloser { return c.stdin }

// Pid is the process id. After the end of the process it names nothing.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Signal sends a signal. On a process that has ended it returns
// os.ErrProcessDone.
func (c *Child) Signal(sig os.Signal) error {
	c.expected.Store(true)
	return c.cmd.Process.Signal(sig)
}

// Kill ends the child with SIGKILL, frozen or not, and returns when it is gone.
// On a process that has ended it does nothing.
func (c *Child) Kill() error {
	c.expected.Store(true)
	return c.kill()
}

func (c *Child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("redistest: kill child %d: %w", c.Pid(), err)
	}
	<-c.done
	return nil
}

// Wait waits until the child has ended, and returns nil when its test passed,
// otherwise an error that wraps *exec.ExitError and shows what it printed. The
// wait ends with the child alone; Done is there for a wait with a limit.
func (c *Child) Wait() error {
	<-c.done
	c.expected.Store(true)
	c.hearOut()
	return c.verdict()
}

// hearOut waits for the last output of a child that has ended. A grandchild may
// hold the pipes open for longer; nobody waits for that.
func (c *Child) hearOut() {
	limit := time.NewTimer(outputWithin)
	defer limit.Stop()
	select {
	case <-c.heard:
	case <-limit.C:
	}
}

// verdict says how the child fared; it has ended.
func (c *Child) verdict() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.exit != nil:
		return fmt.Errorf("redistest: child %d: %w\n%s", c.Pid(), c.exit, strings.Join(c.output, "\n"))
	case c.without:
		return fmt.Errorf("redistest: child %d: no test has the name (%s)", c.Pid(), c.cmd.Args[1])
	default:
		return nil
	}
}

// end is the clean-up: it ends the process and what listens to it.
func (c *Child) end(outputs ...io.Closer) {
	ranToEnd := false
	select {
	case <-c.done:
		ranToEnd = true
	default:
	}
	if err := c.kill(); err != nil {
		c.t.Error(err)
	}
	close(c.ending)
	c.hearOut()
	for _, f := range append(outputs, c.stdin) {
		// The test may have closed the input.
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			c.t.Errorf("redistest: close a child's pipe: %v", err)
		}
	}
	<-c.heard
	if err := c.verdict(); err != nil && ranToEnd && !c.expected.Load() {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.raced {
		c.t.Errorf("redistest: a data race in child %d", c.Pid())
	}
	if c.t.Failed() && len(c.output) > 0 {
		c.t.Logf("child %d (%v) printed at the end:\n%s", c.Pid(), c.cmd.ProcessState, strings.Join(c.output, "\n"))
	}
}
