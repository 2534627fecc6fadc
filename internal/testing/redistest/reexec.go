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
	// sayPrefix marks the lines of Say in the output of the testing package.
	sayPrefix = "\x01say "
	// linesAhead is the number of lines that a child may write before the test reads them.
	linesAhead = 4096
	// outputKept is the number of lines of other output kept for a failed test.
	outputKept = 60
	// outputWithin bounds the wait for a child's last output after its end.
	outputWithin = 5 * time.Second
)

// IsChild reports whether this process was started by Reexec.
func IsChild() bool { return os.Getenv(childVar) == "1" }

// Say prints one line that the parent receives from Lines. It replaces line breaks by spaces.
func Say(format string, args ...any) {
	line := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	// A single write keeps lines of concurrent goroutines apart. If it fails, the parent is
	// gone, and with it the reader.
	fmt.Fprint(os.Stdout, sayPrefix+line+"\n")
}

// Child is a further process of the test binary. Its methods are safe for concurrent use while
// the test runs.
type Child struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string

	done       chan struct{} // closed when the process has ended and was reaped
	exit       error         // how it ended; valid once done is closed
	outputRead chan struct{} // closed when its output was read to the end
	ending     chan struct{} // closed when the test has ended and no longer reads
	// expected is set once the test knows of the end or has caused it.
	expected atomic.Bool

	mu      sync.Mutex
	output  []string // the last lines that were not written by Say
	raced   bool
	without bool // no test has the name
}

// Reexec starts the test binary again to run one test: the calling test, which checks IsChild
// first, or one that skips itself unless IsChild. env holds KEY=value settings added to the
// environment.
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
// The process is killed by its pid at the end of the test, and on Linux also when the test
// binary dies. The test fails if the child failed without the test having caused it or called
// Wait, and if the race detector reported a race in the child.
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
	// A subtest is named by its path; each part must match completely.
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	c := &Child{
		t: t, lines: make(chan string, linesAhead),
		done: make(chan struct{}), outputRead: make(chan struct{}), ending: make(chan struct{}),
		cmd: exec.Command(path, "-test.run="+strings.Join(parts, "/"), "-test.v=false", "-test.count=1"),
	}
	c.cmd.Env = append(append(os.Environ(), env...), childVar+"=1")
	// The pipes of exec.Cmd are closed when the process ends, which would lose its last output.
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
		both.Go(func() { c.readOutput(out.r); close(c.lines) })
		both.Go(func() { c.readOutput(errs.r) })
		both.Wait()
		close(c.outputRead)
	}()
	t.Cleanup(func() { c.end(out.r, errs.r) })
	// Close the child's ends: it has its own descriptors.
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

// readOutput reads the output of the child until it ends.
func (c *Child) readOutput(r io.Reader) {
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

// Lines delivers the lines of Say, and is closed when the child has ended. The child blocks
// after thousands of unread lines.
func (c *Child) Lines() <-chan string { return c.lines }

// Stdin is the child's standard input. A test may close it to let the child end; it also closes
// when the test binary dies.
func (c *Child) Stdin() io.WriteCloser { return c.stdin }

// Pid is the process id. It is no longer valid after the end of the process.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Signal sends a signal. If the process has ended, it returns os.ErrProcessDone.
func (c *Child) Signal(sig os.Signal) error {
	c.expected.Store(true)
	return c.cmd.Process.Signal(sig)
}

// Kill ends the child with SIGKILL, even while it is paused, and returns when it is gone. If
// the process has ended, it does nothing.
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

// Wait waits until the child has ended. It returns nil if its test passed, and otherwise an
// error that wraps *exec.ExitError and shows the output. It has no time limit; a caller that
// needs one uses Done first.
func (c *Child) Wait() error {
	<-c.done
	c.expected.Store(true)
	c.awaitOutput()
	return c.verdict()
}

// awaitOutput waits for the last output of a child that has ended. The wait is limited because a
// grandchild may hold the pipes open for longer.
func (c *Child) awaitOutput() {
	limit := time.NewTimer(outputWithin)
	defer limit.Stop()
	select {
	case <-c.outputRead:
	case <-limit.C:
	}
}

// verdict returns the result of a child that has ended.
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

// end is the clean-up: it ends the process and the readers of its output.
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
	c.awaitOutput()
	for _, f := range append(outputs, c.stdin) {
		// The test may have closed the input.
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			c.t.Errorf("redistest: close a child's pipe: %v", err)
		}
	}
	<-c.outputRead
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
