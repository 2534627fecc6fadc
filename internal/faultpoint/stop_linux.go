//go:build faultpoint

package faultpoint

import (
	"os"
	"runtime"
	"syscall"
)

// stop stops the process. A signal for the process may be taken by another thread, and this one would
// continue until that is scheduled; a signal for this thread stops it before the call returns.
func stop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP); err != nil {
		panic(err)
	}
}
