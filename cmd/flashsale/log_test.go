//go:build unix

package main_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/process"
)

// logTo returns a command whose standard error is one end of a pipe, and the other end.
func logTo(t *testing.T, args ...string) (cmd *exec.Cmd, reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range []*os.File{reader, writer} {
			if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
		}
	})
	dir := t.TempDir()
	cmd = exec.CommandContext(await.Context(t), process.Build(t), args...)
	cmd.Dir, cmd.Stderr = dir, writer
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+secret, "FLASHSALE_DB=sqlite:"+dir+"/shop.db", "FLASHSALE_DATA_DIR="+dir)
	return cmd, reader, writer
}

// TestLog_ReaderEnds: a process whose log has no reader any more, as in a closed terminal, drains.
func TestLog_ReaderEnds(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	cmd, reader, writer := logTo(t, "serve", "--addr", process.FreeAddr(t), "--ops-addr", "off", "--mock-payments-addr", "off", "--log-level", "debug")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Start(), writer.Close()); err != nil {
		t.Fatal(err)
	}
	banner := bufio.NewScanner(out)
	for banner.Scan() && !strings.HasPrefix(banner.Text(), "engine") {
	}
	if err := errors.Join(reader.Close(), cmd.Process.Signal(syscall.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after the end of the log's reader and SIGTERM: %v", err)
	}
}

// TestLog_ReaderStopped: a command whose standard error is a full pipe that is not read ends with its exit code.
func TestLog_ReaderStopped(t *testing.T) {
	needProcesses(t)
	cmd, _, writer := logTo(t, "item", "list", "--limit")
	fd := int(writer.Fd())
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{4096, 1} {
		var err error
		for err == nil {
			_, err = syscall.Write(fd, make([]byte, size))
		}
		if !errors.Is(err, syscall.EAGAIN) {
			t.Fatal(err)
		}
	}
	if err := syscall.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("a wrong flag, with a full pipe: %v, want exit code 2", err)
	}
}
