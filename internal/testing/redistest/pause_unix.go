//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// restWithin bounds the wait for a process to come to rest or to be reaped.
const restWithin = 10 * time.Second

// Pause freezes the server (SIGSTOP) until Continue: its connections stay open
// and nothing is answered. On Linux it returns once the process has come to
// rest; elsewhere the signal may still be on its way.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return errors.New("redistest: pause: the server is not running")
	}
	return pause(s.cmd.Process, s.ended)
}

// Continue lets a frozen server go on (SIGCONT) with what was sent to it
// meanwhile.
func (s *Server) Continue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return errors.New("redistest: continue: the server is not running")
	}
	return resume(s.cmd.Process)
}

// Pause freezes the child (SIGSTOP) until Continue, with all its goroutines. On
// Linux it returns once the process has come to rest; elsewhere the signal may
// still be on its way.
func (c *Child) Pause() error { return pause(c.cmd.Process, c.done) }

// Continue lets a frozen child go on (SIGCONT).
func (c *Child) Continue() error { return resume(c.cmd.Process) }

func pause(p *os.Process, ended <-chan struct{}) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("redistest: pause process %d: %w", p.Pid, err)
	}
	limit := time.NewTimer(restWithin)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		rests, err := frozen(p.Pid)
		if rests || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ended:
			return fmt.Errorf("redistest: pause process %d: it has ended", p.Pid)
		case <-limit.C:
			return fmt.Errorf("redistest: process %d did not come to rest within %v", p.Pid, restWithin)
		}
	}
}

func resume(p *os.Process) error {
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("redistest: continue process %d: %w", p.Pid, err)
	}
	return nil
}
