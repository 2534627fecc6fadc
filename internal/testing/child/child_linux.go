// Package child starts the processes of tests and benchmarks so that none
// outlives whoever started it.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Start starts cmd, calls exited in the background when it ends, and returns
// once it runs. The process is killed by the kernel when the test binary dies:
// a test that runs into its time-out panics, and no clean-up runs then.
//
// The kernel ties that promise to the thread that started the process, not to
// the whole of the test binary. So one thread starts it, waits for it, and does
// nothing else meanwhile.
func Start(cmd *exec.Cmd, exited func(error)) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
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
