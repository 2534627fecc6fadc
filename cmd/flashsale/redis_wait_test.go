//go:build unix

package main_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// TestRedis_StartWaitsForCluster starts a worker while a cluster does not serve some slots, as
// after the restart of a master. The worker waits for it.
func TestRedis_StartWaitsForCluster(t *testing.T) {
	needProcesses(t)
	servers := redistest.OwnCluster(t)
	node := redis.NewClient(redistest.Options(servers.Addrs()[2]))
	defer node.Close()
	shards, err1 := node.ClusterShards(t.Context()).Result()
	id, err2 := node.ClusterMyID(t.Context()).Result()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if err := node.Do(t.Context(), "cluster", "flushslots").Err(); err != nil {
		t.Fatal(err)
	}
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	addrs := servers.Addrs()
	spec := s.spec("worker", []string{"--redis", "cluster+redis://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr=")})
	spec.NoWait = true
	p := process.Start(t, spec)
	eventually(t, "the worker waits", soon, func() (bool, any) { return strings.Contains(p.Log(), "waiting for Redis"), p.Log() })
	for _, shard := range shards {
		if shard.Nodes[0].ID != id {
			continue
		}
		for _, r := range shard.Slots {
			if err := node.ClusterAddSlotsRange(t.Context(), int(r.Start), int(r.End)).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.WaitReady(); err != nil {
		t.Fatal(err)
	}
}

// TestRedis_StartWaitsForSentinels starts the processes while the master is down and the Sentinels
// cannot agree on that. They wait until a replica is promoted.
func TestRedis_StartWaitsForSentinels(t *testing.T) {
	needProcesses(t)
	master := redistest.Real(t, "--appendfsync", "everysec")
	master.Replica(t)
	sentinels := redistest.Sentinels(t, master, 1, redistest.SentinelConfig{})
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	for _, one := range sentinels.Servers[1:] {
		if err := one.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	if err := master.Kill(); err != nil {
		t.Fatal(err)
	}
	setting := sentinelURL("sentinel+redis", sentinels.Addrs()[:1], redistest.SentinelMaster, "", "")
	start := func(command string) *process.P {
		spec := s.spec(command, []string{"--redis", setting})
		spec.NoWait = true
		return process.Start(t, spec)
	}
	worker, api := start("worker"), start("api")
	for _, p := range []*process.P{worker, api} {
		eventually(t, "the process waits", soon, func() (bool, any) { return strings.Contains(p.Log(), "waiting for Redis"), p.Log() })
	}
	for _, one := range sentinels.Servers[1:] {
		if err := one.Continue(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(worker.WaitReady(), api.WaitReady()); err != nil {
		t.Fatal(err)
	}
	c := dial(t, api)
	item := s.newItem(c, 1, 1)
	bought := c.settle(item, c.buy(item, "alice", "k", untilCommitted...))
	only(t, []purchase{bought}, "201")
	s.audit(c, item, 1, []purchase{bought})
}
