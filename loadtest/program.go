package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"flashsale/internal/testing/child"
	"flashsale/internal/wire"
)

var (
	errEarly = errors.New("ended before it was ready")
	errReady = errors.New("did not become ready")
	errGone  = errors.New("ended before the planned kill")
)

// stopTimeout is how long a program may take to finish its work after SIGTERM.
const stopTimeout = 20 * time.Second

// program is one process that the load test starts and ends, by its own process id.
type program struct {
	name string // for people
	log  string // file that takes its output

	process *os.Process   // nil: not started
	exited  chan struct{} // closed when the process has ended
	exit    error         // what Wait returned; valid once exited is closed
	killed  bool          // by kill, so that its end is no failure
}

// newProgram names a program, whose log is written into dir.
func newProgram(name, dir string) *program {
	return &program{name: name, log: filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".log"), exited: make(chan struct{})}
}

// start starts the command. If this process dies without ending it, the kernel ends it,
// where the system supports that.
func (p *program) start(cmd *exec.Cmd) error {
	log, err := os.Create(p.log)
	if err != nil {
		return fmt.Errorf("create the log of %s: %w", p.name, err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = programAttr()
	err = child.Start(cmd, func(err error) {
		p.exit = err
		close(p.exited)
	})
	if err == nil {
		p.process = cmd.Process
	}
	// The process has its own descriptor of the log by now.
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	return nil
}

// awaitReady returns once a GET of the route at base, such as
// http://127.0.0.1:8080, answers 200.
func (p *program) awaitReady(ctx context.Context, base, route string, timeout time.Duration) error {
	target, err := wire.ParseTarget(base)
	if err != nil {
		return err
	}
	a := newAPI(target, "")
	defer a.close()
	return p.await(ctx, timeout, func() string {
		res, err := a.call(ctx, "GET", route, nil)
		switch {
		case err != nil:
			return err.Error() // it does not listen yet
		case res.status != 200:
			return fmt.Sprintf("%d %.300s", res.status, res.body)
		default:
			return ""
		}
	})
}

// await polls until wrong returns an empty text. It fails when the process ends first.
func (p *program) await(ctx context.Context, timeout time.Duration, wrong func() string) error {
	var last string
	err := poll(ctx, timeout, 25*time.Millisecond, func() (bool, error) {
		select {
		case <-p.exited:
			return false, fmt.Errorf("%s %w: %s; the end of its log:\n%s", p.name, errEarly, exitText(p.exit), p.logTail())
		default:
		}
		last = wrong()
		return last == "", nil
	})
	if errors.Is(err, errPollTimeout) {
		return fmt.Errorf("%s %w in %s: %s; the end of its log:\n%s", p.name, errReady, timeout, last, p.logTail())
	}
	return err
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// logTail is the end of the program's log.
func (p *program) logTail() string {
	const tail = 4 << 10
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer closeQuietly(f)
	if info, err := f.Stat(); err == nil && info.Size() > tail {
		if _, err := f.Seek(-tail, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// kill sends SIGKILL, after which the process executes nothing. It fails if the process
// has ended already. It is called at most once, before end.
func (p *program) kill() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s %w: %s; the end of its log:\n%s", p.name, errGone, exitText(p.exit), p.logTail())
	default:
	}
	if err := p.process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	p.killed = true
	return nil
}

// end ends the process, first by SIGTERM and then by SIGKILL, and returns once it
// has ended. A process that does not exit with status 0 is an error, unless kill
// ended it.
func (p *program) end() error {
	if p == nil || p.process == nil {
		return nil
	}
	if p.killed {
		<-p.exited
		return nil
	}
	if err := p.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	bound := time.NewTimer(stopTimeout)
	defer bound.Stop()
	select {
	case <-p.exited:
		if p.exit != nil {
			return fmt.Errorf("%s did not end well: %w; the end of its log:\n%s", p.name, p.exit, p.logTail())
		}
		return nil
	case <-bound.C:
	}
	err := p.process.Kill()
	<-p.exited
	return errors.Join(fmt.Errorf("%s did not stop within %s of SIGTERM and was killed", p.name, stopTimeout), err)
}
