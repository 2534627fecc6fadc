package handler

import (
	"context"
	"strings"
	"testing"

	"flashsale/handler/auth"
)

type fakeSystem struct{ now System }

func (f *fakeSystem) System(context.Context) System { return f.now }

// The answer shows the known values, and "unknown" or null for the others.
func TestSystem(t *testing.T) {
	t.Parallel()
	f := &fakeSystem{System{
		Version: "v1", Revision: "abc", GoVersion: "go1", RedisMode: "cluster", RedisNodes: 3, RedisMemory: &Memory{Used: 5, Limit: 0},
		Database:  Engine{Name: "sqlite", Version: "3", Settings: []Setting{{"journal_mode", "wal"}, {"synchronous", "FULL"}}},
		Redis:     Engine{Name: "redis", Version: "7.0.15", Settings: []Setting{{"appendonly", "yes"}}},
		CheckedAt: someTime,
	}}
	s := open(t, func(c *Config) { c.System = f })
	const known = `{"version":"v1","revision":"abc","go_version":"go1",` +
		`"database":{"engine":"sqlite","version":"3","settings":{"journal_mode":"wal","synchronous":"FULL"}},` +
		`"redis":{"engine":"redis","version":"7.0.15","settings":{"appendonly":"yes"},"mode":"cluster","nodes":3,` +
		`"memory_used_bytes":5,"memory_limit_bytes":0},"checked_at":"2030-01-02T03:04:05.678Z"}`
	if w := s.get(t, "/v1/admin/system", "root", auth.RoleAdmin); w.Code != 200 || w.Body.String() != known {
		t.Errorf("%d %s, want %s", w.Code, w.Body, known)
	}
	f.now.Redis, f.now.RedisMode, f.now.RedisNodes, f.now.RedisMemory = Engine{Name: Unknown, Version: Unknown}, Unknown, 0, nil
	const unknown = `"redis":{"engine":"unknown","version":"unknown","settings":{},"mode":"unknown","nodes":null,` +
		`"memory_used_bytes":null,"memory_limit_bytes":null}`
	if w := s.get(t, "/v1/admin/system", "root", auth.RoleAdmin); !strings.Contains(w.Body.String(), unknown) {
		t.Errorf("%s, want %s", w.Body, unknown)
	}
	wantProblem(t, s.get(t, "/v1/admin/system", "alice", auth.RoleBuyer).Result(), 403, "forbidden")
}
