// Package embedded runs a Redis-compatible server inside the process, so that the service
// starts on a machine without Redis. Its data is lost when the process ends.
package embedded

import (
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Server is an in-process Redis on a free loopback port.
type Server struct {
	m *miniredis.Miniredis
}

// Start listens on a free port of 127.0.0.1. Keys expire by the wall clock, as in a real Redis.
func Start() (*Server, error) { return startAt(time.Now()) }

func startAt(now time.Time) (*Server, error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start embedded redis: %w", err)
	}
	if _, err := newScripts(m, now); err != nil {
		m.Close()
		return nil, fmt.Errorf("start embedded redis: %w", err)
	}
	return &Server{m: m}, nil
}

// Addr is the host:port on which the server listens.
func (s *Server) Addr() string { return s.m.Addr() }

// Close stops the server and closes its connections. A second call does nothing.
func (s *Server) Close() { s.m.Close() }
