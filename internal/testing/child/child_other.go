//go:build !linux

// Package child starts the processes of tests and benchmarks.
package child

import "os/exec"

// Start starts cmd, calls exited in the background when it ends, and returns once it runs.
func Start(cmd *exec.Cmd, exited func(error)) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { exited(cmd.Wait()) }()
	return nil
}
