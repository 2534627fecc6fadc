//go:build unix

package main_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// TestRedis_FailoverKeepsConfirmedOrders kills Redis during a sale and promotes its replica, to
// which every write takes a while. Every order that was answered with 202 is in the replica, and
// is committed from there.
func TestRedis_FailoverKeepsConfirmedOrders(t *testing.T) {
	needProcesses(t)
	const buyers, answered = 400, 100
	master, replica := redistest.Real(t), redistest.Real(t)
	link := redistest.NewProxy(t, master.Addr())
	copied := redis.NewClient(redistest.Options(replica.Addr()))
	defer copied.Close()
	host, port, err := net.SplitHostPort(link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replicate := func(to ...any) {
		t.Helper()
		if err := copied.Do(t.Context(), append([]any{"replicaof"}, to...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	replicate(host, port)

	s := newShopOn(t, master)
	first := s.api(append(noLimit, "--confirm-replicas", "1")...) // without a worker: the orders are only in Redis
	c := dial(t, first)
	item := s.newItem(c, buyers, 1)
	only(t, []purchase{c.settle(item, c.buy(item, "before", "k", "Prefer", "respond-async"))}, "202")
	// The doctor also misses a worker.
	wantCode(t, 1, squeezed(s.run("doctor", "--confirm-replicas", "2")), "fix confirm-replicas replicas that must confirm a purchase: 2; connected to Redis, and answering: 1")
	wantCode(t, 1, squeezed(s.run("doctor")), "warn confirm-replicas it is 0")
	link.SetLatency(0, 50*time.Millisecond)
	got := burst(buyers, 50, answered, func(i int) purchase {
		return c.buy(item, fmt.Sprint("u", i), "k", "Prefer", "respond-async")
	}, func() {
		link.Refuse(true)
		link.Sever() // what is on its way to the replica is lost
		if err := master.Kill(); err != nil {
			t.Errorf("kill the master: %v", err)
		}
	})
	only(t, got, "202", "503 unavailable", "503 overloaded", "503 rebuilding")
	if n := len(accepted(got)); n < answered/2 || n == buyers {
		t.Errorf("%d of %d purchases were accepted: the fault struck too early or too late", n, buyers)
	}
	replicate("no", "one")
	first.Kill()

	s.useRedis(replica)
	s.worker()
	c = dial(t, s.api(noLimit...))
	s.audit(c, item, 1, accepted(got))
}
