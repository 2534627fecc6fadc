package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// listen returns the next line that the child writes with Say, or fails.
func listen(t *testing.T, c *Child) string {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case line, ok := <-c.Lines():
		if !ok {
			t.Fatalf("the child ended without output: %v", c.Wait())
		}
		return line
	case <-limit.C:
		t.Fatalf("the child wrote nothing within %v", patience)
	}
	return ""
}

func TestReexec(t *testing.T) {
	t.Parallel()
	if IsChild() {
		Say("pid %d, %s", os.Getpid(), os.Getenv("REDISTEST_GREETING"))
		fmt.Fprintln(os.Stdout, "noise")
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			Say("heard %s", in.Text())
		}
		Say("the end\nof it")
		return
	}
	c := Reexec(t, "TestReexec", "REDISTEST_GREETING=good day")
	if got, want := listen(t, c), fmt.Sprintf("pid %d, good day", c.Pid()); got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	for _, word := range []string{"one", "two"} {
		fmt.Fprintln(c.Stdin(), word)
		if got := listen(t, c); got != "heard "+word {
			t.Errorf("it says %q after %q", got, word)
		}
	}
	if err := c.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	var rest []string
	for line := range c.Lines() {
		rest = append(rest, line)
	}
	if !slices.Equal(rest, []string{"the end of it"}) {
		t.Errorf("at last it says %q, want one line and nothing of the test's own output", rest)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(c.Kill(), c.Kill()); err != nil {
		t.Errorf("killed when it had ended: %v", err)
	}
}

// Everything that a child writes before it dies arrives, even if it is read late.
func TestReexec_LastLinesArrive(t *testing.T) {
	t.Parallel()
	const lines = 500
	if IsChild() {
		for i := range lines {
			Say("%d", i)
		}
		return
	}
	c := Reexec(t, "TestReexec_LastLinesArrive")
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		if got := listen(t, c); got != fmt.Sprint(i) {
			t.Fatalf("line %d is %q", i, got)
		}
	}
}

func TestChild_Pause(t *testing.T) {
	t.Parallel()
	if IsChild() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			Say("%s", in.Text())
		}
		return
	}
	c := Reexec(t, "TestChild_Pause")
	fmt.Fprintln(c.Stdin(), "before")
	listen(t, c)
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(c.Stdin(), "during")
	wait := time.NewTimer(50 * time.Millisecond)
	defer wait.Stop()
	select {
	case line := <-c.Lines():
		t.Errorf("frozen, it says %q", line)
	case <-wait.C:
	}
	if err := c.Continue(); err != nil {
		t.Fatal(err)
	}
	if got := listen(t, c); got != "during" {
		t.Errorf("continued, it writes %q", got)
	}
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Pause(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("paused when it was gone: %v", err)
	}
	if err := c.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal to an ended process: %v", err)
	}
}

func TestChild_Wait_ErrFailed(t *testing.T) {
	t.Parallel()
	if IsChild() {
		t.Fatal("the child's reason")
	}
	err := Reexec(t, "TestChild_Wait_ErrFailed").Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(err.Error(), "the child's reason") {
		t.Errorf("a child that fails: %v; want its exit code and its reason", err)
	}
}

func TestChild_Wait_ErrNoTest(t *testing.T) {
	t.Parallel()
	if err := Reexec(t, "TestNoSuchTest").Wait(); err == nil {
		t.Error("a child that ran no test passes")
	}
}

// verdicts collects the failures that a helper reports.
type verdicts struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (v *verdicts) Helper()             {}
func (v *verdicts) Cleanup(f func())    { v.cleanups = append(v.cleanups, f) }
func (v *verdicts) Failed() bool        { return len(v.errors) > 0 }
func (v *verdicts) Logf(string, ...any) {}
func (v *verdicts) Error(args ...any)   { v.errors = append(v.errors, fmt.Sprint(args...)) }
func (v *verdicts) Fatal(args ...any)   { v.TB.Fatal(args...) }
func (v *verdicts) Errorf(f string, args ...any) {
	v.errors = append(v.errors, fmt.Sprintf(f, args...))
}
func (v *verdicts) end() {
	for _, f := range slices.Backward(v.cleanups) {
		f()
	}
}

// A child's failure counts even if the test never checks.
func TestReexec_UncheckedFailureCounts(t *testing.T) {
	t.Parallel()
	if IsChild() {
		switch os.Getenv("REDISTEST_DO") {
		case "fail":
			t.Error("failed")
		case "race":
			fmt.Fprintln(os.Stderr, "WARNING: DATA RACE")
			Say("raced")
			<-t.Context().Done()
		}
		return
	}
	for do, want := range map[string]int{"pass": 0, "fail": 1} {
		v := &verdicts{TB: t}
		<-Reexec(v, "TestReexec_UncheckedFailureCounts", "REDISTEST_DO="+do).Done()
		if v.end(); len(v.errors) != want {
			t.Errorf("%s: reported %q, want %d errors", do, v.errors, want)
		}
	}
	v := &verdicts{TB: t}
	c := Reexec(v, "TestReexec_UncheckedFailureCounts", "REDISTEST_DO=race")
	listen(t, c)
	if v.end(); len(v.errors) != 1 {
		t.Errorf("race: reported %q, want one error", v.errors)
	}
	select {
	case <-c.Done():
	default:
		t.Error("the child outlived its test")
	}
}
