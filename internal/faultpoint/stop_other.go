//go:build faultpoint && !linux

package faultpoint

import (
	"os"
	"syscall"
	"time"
)

// stopArrives is long enough for a stop to reach every thread, unless the machine is very busy.
const stopArrives = 50 * time.Millisecond

// stop stops the process.
func stop() {
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		panic(err)
	}
	<-time.After(stopArrives)
}
