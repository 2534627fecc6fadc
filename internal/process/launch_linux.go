package process

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// launch starts cmd, calls exited in the background when it ends, and returns
// once it runs. The process is killed by the kernel when the test binary dies:
// a test that runs into its time-out panics, and no clean-up runs then.
//
// The kernel ties that promise to the thread that started the process, not to
// the whole of the test binary. So one thread starts it, waits for it, and does
// nothing else meanwhile.
func launch(cmd *exec.Cmd, exited func(error)) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
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

// frozen reports whether the process is stopped by a signal. A process that is
// gone is not.
func frozen(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// "pid (name) state …"; the name may hold any character, ')' included.
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	var state string
	if n, err := fmt.Sscan(rest, &state); n != 1 || err != nil {
		return false
	}
	return state == "T"
}
