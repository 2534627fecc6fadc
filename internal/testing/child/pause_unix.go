//go:build unix

package child

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// restWithin bounds the wait until a process has stopped.
const restWithin = 10 * time.Second

// Pause stops a process (SIGSTOP) until Continue: its connections stay open, but it does
// nothing. ended must be closed when the process has ended. On Linux Pause returns once every
// thread has stopped; elsewhere the signal may still be pending.
func Pause(p *os.Process, ended <-chan struct{}) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause process %d: %w", p.Pid, err)
	}
	limit := time.NewTimer(restWithin)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		rests, err := Frozen(p.Pid)
		if rests || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ended:
			return fmt.Errorf("pause process %d: it has ended", p.Pid)
		case <-limit.C:
			return fmt.Errorf("pause process %d: it did not come to rest within %v", p.Pid, restWithin)
		}
	}
}

// Continue resumes a paused process (SIGCONT).
func Continue(p *os.Process) error {
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("continue process %d: %w", p.Pid, err)
	}
	return nil
}
