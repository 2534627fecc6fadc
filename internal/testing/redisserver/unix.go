//go:build unix

package redisserver

import (
	"errors"
	"syscall"

	"flashsale/internal/testing/child"
)

// ownGroup puts the server in a process group of its own, so that Ctrl-C reaches
// it through the program that started it, and in order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

var errNotRunning = errors.New("redis-server is not running")

// Pause freezes the server (SIGSTOP) until Continue: its connections stay open
// and nothing is answered. On Linux it returns once the process has come to
// rest; elsewhere the signal may still be on its way.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return errNotRunning
	}
	return child.Pause(s.cmd.Process, s.ended)
}

// Continue lets a frozen server go on (SIGCONT) with what was sent to it
// meanwhile.
func (s *Server) Continue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return errNotRunning
	}
	return child.Continue(s.cmd.Process)
}
