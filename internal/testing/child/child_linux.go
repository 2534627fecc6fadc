// Package child starts the processes of tests and benchmarks so that none outlives the program
// that started it.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Start starts cmd and returns once it runs. It calls exited in the background when cmd ends.
// The kernel kills the process when the test binary dies, because a test that reaches its
// timeout panics without running any clean-up.
//
// The kernel binds the process to the thread that started it, not to the whole test binary. So
// one thread starts the process and does nothing but wait for it.
func Start(cmd *exec.Cmd, exited func(error)) error {
	return StartEnding(cmd, syscall.SIGKILL, exited)
}

// StartEnding is [Start] with the signal that the process gets when the test binary dies, for a
// program that then ends processes of its own.
func StartEnding(cmd *exec.Cmd, death syscall.Signal, exited func(error)) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = death
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited(cmd.Wait())
		}
	}()
	return <-started
}
