package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"flashsale/internal/freeport"
	"flashsale/internal/wire"
)

var (
	errModule = errors.New("loadtest: the flashsale module was not found; run this inside its tree, or use --target")
	errEarly  = errors.New("loadtest: the service ended before it was ready")
	errReady  = errors.New("loadtest: the service did not become ready")
)

// stopTimeout is how long the service may take to finish its work after SIGTERM.
const stopTimeout = 20 * time.Second

// service is a process of the service started here, with its directory.
type service struct {
	url     string
	db      string // as for --db, with an absolute path
	secret  string
	dir     string
	log     string
	process *os.Process
	exited  chan struct{} // closed when the process has ended
	exit    error         // what Wait said; to be read after exited
}

// startService builds the service and starts it in a fresh directory. The
// caller stops it; on an error nothing is left behind.
func startService(ctx context.Context, o *options, say func(string, ...any)) (s *service, err error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "flashsale-loadtest-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	s = &service{dir: dir, log: filepath.Join(dir, "flashsale.log"), secret: newSecret(), exited: make(chan struct{})}
	defer func() {
		if err != nil {
			ended := s.end()
			if errors.Is(err, errEarly) {
				ended = nil // err tells it already
			}
			err = errors.Join(err, ended, os.RemoveAll(s.dir))
			s = nil
		}
	}()
	say("building the service")
	bin := filepath.Join(dir, "flashsale")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/flashsale")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return s, fmt.Errorf("build the service: %w", context.Cause(ctx))
		}
		return s, fmt.Errorf("build the service: %w\n%s", err, out)
	}
	if err := s.start(bin, o); err != nil {
		return s, err
	}
	say("starting the service at %s", s.url)
	err = s.awaitReady(ctx, o.Timeout)
	return s, err
}

// moduleRoot walks up to the module's directory. go run keeps the caller's
// working directory, so this holds anywhere in the tree.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module flashsale\n")) {
			return dir, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find the module: %w", err)
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errModule
		}
		dir = up
	}
}

// start runs the binary. Settings in our environment that were meant for
// another service do not reach it.
func (s *service) start(bin string, o *options) error {
	addr, err := freeport.Addr()
	if err != nil {
		return err
	}
	ops, err := freeport.Addr()
	if err != nil {
		return err
	}
	s.url = "http://" + addr
	if s.db, err = absoluteDB(o.DB, s.dir); err != nil {
		return err
	}
	args := []string{
		"serve", "--addr", addr, "--ops-addr", ops, "--db", s.db, "--data-dir", s.dir,
		// The crowd comes from one process and one buyer may come often; the
		// limit that protects the shop from it is not what is measured.
		"--rate-buyer", "1000000",
	}
	if o.Redis != "" {
		args = append(args, "--redis", o.Redis)
	}
	cmd := exec.Command(bin, args...) //nolint:noctx // it must outlive an interrupt: it is ended by SIGTERM in stop
	cmd.Dir = s.dir
	cmd.SysProcAttr = childAttr()
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FLASHSALE_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, secretEnv+"="+s.secret)
	log, err := os.Create(s.log)
	if err != nil {
		return fmt.Errorf("create the service's log: %w", err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	started := make(chan error, 1)
	go func() {
		// The kernel ends the child with the thread that started it, so that
		// thread is kept for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		s.process = cmd.Process
		started <- err
		if err == nil {
			s.exit = cmd.Wait()
			close(s.exited)
		}
	}()
	err = <-started
	// The child has its own descriptor of the log by now.
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start the service: %w", err)
	}
	return nil
}

// absoluteDB is the --db of the child, which runs in another directory.
func absoluteDB(db, dir string) (string, error) {
	if db == "" {
		return "sqlite:" + filepath.Join(dir, "flashsale.db"), nil
	}
	path, ok := strings.CutPrefix(db, "sqlite:")
	if !ok {
		return db, nil
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("database path %s: %w", path, err)
	}
	return "sqlite:" + abs, nil
}

// awaitReady returns once GET /readyz answers 200.
func (s *service) awaitReady(ctx context.Context, timeout time.Duration) error {
	target, err := wire.ParseTarget(s.url)
	if err != nil {
		return err
	}
	a := newAPI(target, "")
	defer a.close()
	var last string
	err = poll(ctx, timeout, 25*time.Millisecond, func() (bool, error) {
		select {
		case <-s.exited:
			return false, fmt.Errorf("%w: %s; the end of its log:\n%s", errEarly, exitText(s.exit), s.logTail())
		default:
		}
		res, err := a.call(ctx, "GET", "/readyz", nil)
		if err != nil {
			last = err.Error()
			return false, nil //nolint:nilerr // it does not listen yet: that is what is waited for
		}
		last = fmt.Sprintf("%d %.300s", res.status, res.body)
		return res.status == 200, nil
	})
	if errors.Is(err, errPollTimeout) {
		return fmt.Errorf("%w in %s; last answer: %s; the end of its log:\n%s", errReady, timeout, last, s.logTail())
	}
	return err
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// logTail is the end of the service's log.
func (s *service) logTail() string {
	const tail = 4 << 10
	f, err := os.Open(s.log)
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

// stop ends the process, first by SIGTERM and then by SIGKILL, and removes its
// directory. It runs to its end even when the run was interrupted.
func (s *service) stop() error {
	return errors.Join(s.end(), os.RemoveAll(s.dir))
}

func (s *service) end() error {
	if s.process == nil {
		return nil
	}
	if err := s.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the service: %w", err)
	}
	bound := time.NewTimer(stopTimeout)
	defer bound.Stop()
	select {
	case <-s.exited:
		if s.exit != nil {
			return fmt.Errorf("the service did not end well: %w; the end of its log:\n%s", s.exit, s.logTail())
		}
		return nil
	case <-bound.C:
	}
	err := s.process.Kill()
	<-s.exited
	return errors.Join(fmt.Errorf("the service did not stop within %s of SIGTERM and was killed", stopTimeout), err)
}
