//go:build unix

// Package pages_test tests the pages of the service in a real browser: the API reference. One service, in
// development mode and with embedded engines, serves all tests; each works with items and buyers of
// its own.
package pages_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/browser"
	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
	"flashsale/internal/testing/process"
)

func TestMain(m *testing.M) {
	code := browser.Run(m)
	shared.stop()
	process.Shutdown()
	os.Exit(code)
}

const (
	// readyEvery is the pause between two checks whether the service is ready.
	readyEvery = 20 * time.Millisecond
	// stopWithin bounds the end of the service.
	stopWithin = 20 * time.Second
	// logTail is how much of the service's log a failed start shows, in bytes.
	logTail = 4 << 10
)

// service is a running service.
type service struct {
	// URL is the address of the API and the pages, "http://127.0.0.1:port".
	URL string

	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// shared is the service of the test binary, which the first test starts.
var shared sharedService

type sharedService struct {
	once sync.Once
	s    *service
	err  error
}

// running returns the shared service.
func running(t *testing.T) *service {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: it starts the service and a browser, and -short asks for the quick tests")
	}
	browser.Program(t) // without one there is nothing to start
	program := process.Build(t)
	shared.once.Do(func() { shared.s, shared.err = start(t, program) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.s
}

// start starts a service with the demo sale. It is not bound to the test: stop ends it.
func start(t *testing.T, program string) (*service, error) {
	t.Helper()
	addr, err := freeport.Addr()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pages-")
	if err != nil {
		return nil, err
	}
	s := &service{URL: "http://" + addr, dir: dir, done: make(chan struct{})}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	s.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), program, "serve", "--addr", addr, "--ops-addr", "", "--data-dir", filepath.Join(dir, "data"))
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // without the settings of a developer
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = dir, log, log
	err = child.Start(s.cmd, func(error) { close(s.done) })
	// The running process has its own descriptor.
	if err = errors.Join(err, log.Close()); err != nil {
		return nil, fmt.Errorf("start the service: %w", err)
	}
	if err := s.ready(await.Context(t)); err != nil {
		text, rerr := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w; its log ends:\n%s", errors.Join(err, rerr, s.stop()), text[max(0, len(text)-logTail):])
	}
	return s, nil
}

// ready waits until the service is ready.
func (s *service) ready(ctx context.Context) error {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			err = res.Body.Close()
		}
		if err == nil && res.StatusCode == http.StatusOK {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.done:
			return errors.New("the service ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("the service is not ready: %w", context.Cause(ctx))
		}
	}
}

// stop kills the service by its pid and removes its data.
func (s *service) stop() error {
	err := s.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	limit := time.NewTimer(stopWithin)
	defer limit.Stop()
	select {
	case <-s.done:
	case <-limit.C:
		err = errors.Join(err, fmt.Errorf("the service (pid %d) has not ended %v after SIGKILL", s.cmd.Process.Pid, stopWithin))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// stop ends the shared service, if it was started.
func (s *sharedService) stop() {
	if s.s == nil {
		return
	}
	if err := s.s.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
	}
}

// call sends a request to the API with a token ("": none) and a body (nil: none), and decodes the response
// into the variable that into points to (nil: not at all). The test fails unless the status is want.
func (s *service) call(t *testing.T, want int, method, path, token string, body, into any, header ...string) {
	t.Helper()
	var text io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(await.Context(t), method, s.URL+path, text)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != want {
		t.Fatalf("%s %s: %s, want %d: %s", method, path, res.Status, want, answer)
	}
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			t.Fatalf("%s %s: %v: %s", method, path, err, answer)
		}
	}
}

// token returns a token of a buyer, an admin or a service.
func (s *service) token(t *testing.T, subject, role string) string {
	t.Helper()
	var answer struct{ Token string }
	s.call(t, http.StatusOK, http.MethodPost, "/dev/tokens", "", map[string]string{"sub": subject, "role": role}, &answer)
	return answer.Token
}
