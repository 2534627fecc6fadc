package postgresserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"flashsale/internal/testing/child"
)

// killAll kills a server's first process and all processes that it has forked. The first is
// stopped before, so that it does not react to the end of the others. Until its own end it also
// keeps their pids from belonging to other processes.
func killAll(first *os.Process, ended <-chan struct{}) error {
	if err := child.Pause(first, ended); err != nil {
		return ignoreDone(err)
	}
	pids, err := children(first.Pid)
	for _, pid := range pids {
		if killed := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(killed, syscall.ESRCH) {
			err = errors.Join(err, killed)
		}
	}
	return errors.Join(err, ignoreDone(first.Kill()))
}

// children returns the processes whose parent is pid.
func children(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		// "pid (name) S ppid …": the name may contain any byte, including a bracket.
		fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(pid) {
			continue
		}
		id, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		pids = append(pids, id)
	}
	return pids, nil
}
