// Package embedded runs a Redis-compatible server inside the process, so that
// the service starts on a machine on which nothing is installed. It keeps
// nothing over a restart.
package embedded

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// Server is an in-process Redis on a free loopback port.
type Server struct {
	m *miniredis.Miniredis
}

// Start listens on a free port of 127.0.0.1. Time-outs of keys run by the wall
// clock, as they do in a real Redis.
func Start() (*Server, error) {
	m := miniredis.NewMiniRedis()
	// Without this, keys keep their TTL for ever unless a test advances the
	// clock by hand; locks would then never lapse.
	m.ClockTTL(true)
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start embedded redis: %w", err)
	}
	return &Server{m: m}, nil
}

// Addr is the host:port the server listens on.
func (s *Server) Addr() string { return s.m.Addr() }

// Close ends the server and cuts its connections. A second call does nothing.
func (s *Server) Close() { s.m.Close() }
