//go:build unix

package redisserver

import (
	"errors"
	"syscall"

	"flashsale/internal/testing/child"
)

// ownGroup puts the server in its own process group. Ctrl-C then reaches only the program that
// started the server, which stops it in order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

var errNotRunning = errors.New("redis-server is not running")

// Pause stops the server's process (SIGSTOP) until Continue: its connections stay open, but it
// does not answer. On Linux it returns once the process has stopped; elsewhere the signal may
// still be pending.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return errNotRunning
	}
	return child.Pause(s.cmd.Process, s.ended)
}

// Continue resumes a paused server (SIGCONT), which then processes the requests sent in the
// meantime.
func (s *Server) Continue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return errNotRunning
	}
	return child.Continue(s.cmd.Process)
}
