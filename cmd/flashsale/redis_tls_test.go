//go:build unix

package main_test

import (
	"testing"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// TestRedis_TLS: API and worker use a Redis that only speaks TLS. SSL_CERT_FILE names its
// authority.
func TestRedis_TLS(t *testing.T) {
	needProcesses(t)
	authority := redistest.NewAuthority(t, "127.0.0.1")
	server := redistest.RealTLS(t, authority)
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	start := func(command string) *process.P {
		spec := s.spec(command, []string{"--redis", "rediss://" + server.Addr() + "/0"})
		spec.Env = append(spec.Env, "SSL_CERT_FILE="+authority.File)
		return process.Start(t, spec)
	}
	start("worker")
	c := dial(t, start("api"))
	item := s.newItem(c, 10, 1)
	bought := c.buy(item, "alice", "k", untilCommitted...)
	only(t, []purchase{bought}, "201")
	s.audit(c, item, 1, []purchase{bought})
}
