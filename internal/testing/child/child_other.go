//go:build !linux

// Package child starts the processes of tests and benchmarks.
package child

import (
	"os/exec"
	"syscall"
)

// Start starts cmd, calls exited in the background when it ends, and returns once it runs.
func Start(cmd *exec.Cmd, exited func(error)) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { exited(cmd.Wait()) }()
	return nil
}

// StartEnding is [Start] here: no signal follows the end of the test binary.
func StartEnding(cmd *exec.Cmd, _ syscall.Signal, exited func(error)) error {
	return Start(cmd, exited)
}
