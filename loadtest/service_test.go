package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// script starts a shell script instead of the service.
func script(t *testing.T, text string) *service {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "service")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := newService(filepath.Join(t.TempDir(), "run"))
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.start(bin, options4test(t, "--redis", "redis://127.0.0.1:1/0")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.process != nil {
			if err := s.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Error(err)
			}
			<-s.exited
		}
	})
	return s
}

func TestService_EarlyExitShowsItsLog(t *testing.T) {
	t.Parallel()
	s := script(t, `echo "setting --redis: cannot connect" >&2; exit 3`)
	err := s.awaitReady(t.Context(), s.url, "/readyz", 30*time.Second)
	if !errors.Is(err, errEarly) || !strings.Contains(err.Error(), "cannot connect") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
}

func TestService_NeverReady(t *testing.T) {
	t.Parallel()
	s := script(t, `echo "still thinking"; exec sleep 1000`)
	err := s.awaitReady(t.Context(), s.url, "/readyz", 200*time.Millisecond)
	if !errors.Is(err, errReady) {
		t.Errorf("got %v", err)
	}
}

func TestService_StopEndsItAndRemovesItsDirectory(t *testing.T) {
	t.Parallel()
	// It reports in its log that it can be stopped.
	s := script(t, `trap 'echo bye; exit 0' TERM; echo "$@"; env; echo armed; while :; do sleep 0.05; done`)
	err := poll(t.Context(), 30*time.Second, 5*time.Millisecond, func() (bool, error) {
		return strings.Contains(s.logTail(), "armed\n"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	log := s.logTail()
	for _, want := range []string{"serve --addr 127.0.0.1:", "--db sqlite:" + s.dir, "--data-dir " + s.dir, "--redis redis://127.0.0.1:1/0", secretEnv + "=" + s.secret} {
		if !strings.Contains(log, want) {
			t.Errorf("the service was not told %q:\n%s", want, log)
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	select {
	case <-s.exited:
	default:
		t.Error("still running after stop")
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestService_UncleanExitIsTold(t *testing.T) {
	t.Parallel()
	s := script(t, `exec sleep 1000`) // SIGTERM kills it; it does not exit on its own
	if err := s.stop(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("got %v", err)
	}
}

func TestAbsoluteDB(t *testing.T) {
	t.Parallel()
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"":                 "sqlite:/tmp/x/flashsale.db",
		"sqlite:a.db":      "sqlite:" + filepath.Join(cwd, "a.db"),
		"sqlite:/a/b.db":   "sqlite:/a/b.db",
		"postgres://h/db1": "postgres://h/db1",
	} {
		if got, err := absoluteDB(in, "/tmp/x"); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", in, got, err, want)
		}
	}
}

// TestRun_RealService is the load test as its users run it, on a small scale.
func TestRun_RealService(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--buyers", "1000", "--stock", "100", "--connections", "32", "--duplicates", "0.2", "--greedy", "0.1"}, &out, &errs)
	want := "PASS accepted=100 persisted=100 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"
	if code != exitPassed || lastLine(out.String()) != want {
		t.Errorf("exit %d\n%s\n%s", code, out.String(), errs.String())
	}
}
