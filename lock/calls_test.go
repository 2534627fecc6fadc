package lock

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

func nodeOf(t *testing.T, m *Manager) *node {
	t.Helper()
	n, ok := m.store.(*node)
	if !ok {
		t.Fatalf("%T is no node", m.store)
	}
	return n
}

// Given a call that Redis refuses in the middle of a run, then the calls before and after it run
// once and get their replies, and only its caller gets the error.
func TestNode_runCalls_OneFails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		m := newManager(t, rdb, slow)
		lost := mustAcquire(t, m, name+"lost")
		mine, broken := mustKeys(t, name), mustKeys(t, name+"broken")
		replies, err := nodeOf(t, m).runCalls(t.Context(), []call{
			{mine, callTry, "m.1", "", 60_000},
			{broken, callTry, "m.2", "", "not a TTL"},
			{&lost.h.keys, callRelease, "m.former", "", 0},
			{mine, callRelease, "m.1", "", 0},
		})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := granted(replies[0]); err != nil || !r.held {
			t.Errorf("before it: %+v, %v, want the lock", r, err)
		}
		var refused redis.Error
		if err, ok := replies[1].(error); !ok || !errors.As(err, &refused) {
			t.Errorf("the reply is %v, want the error of Redis", replies[1])
		}
		if replies[2] != int64(0) || replies[3] != int64(1) {
			t.Errorf("after it: %v, want 0 and 1", replies[2:])
		}
	})
}

// Given a user without the permission to wait in a queue, when its waiter shares a run with the release
// of a lost lock, then only the waiter gets an
// error, and the release is not held.
func TestNode_runCalls_Forbidden(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	prefix := redistest.Prefix(t)
	rdb := aclUser(t, server.Addr(), "nohset", prefix, aclCommands, aclChannels, "-hset")
	m := newManager(t, rdb, slow)
	l := mustAcquire(t, m, prefix+"item")
	replies, err := nodeOf(t, m).runCalls(t.Context(), []call{
		{&l.h.keys, callWait, "m.waiter", "", 60_000},
		{&l.h.keys, callRelease, "m.former", "", 0},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Redis 7.0 says ERR, later ones say NOPERM.
	if err, ok := replies[0].(error); !ok || strings.HasPrefix(err.Error(), "ERR ERR ") || !strings.Contains(err.Error(), "can't run this command") {
		t.Errorf("the reply to the waiter is %v, want no permission", replies[0])
	}
	if replies[1] != int64(0) {
		t.Errorf("the reply to the release is %v, want 0", replies[1])
	}
}

// Given a server that has become a replica, then it refuses the run as a whole: the client repeats a
// command on another connection only if the command itself fails.
func TestNode_runCalls_Replica(t *testing.T) {
	t.Parallel()
	rdb := clientOf(t, redistest.Real(t, "--appendonly", "no"))
	m, k := newManager(t, rdb, slow), mustKeys(t, resource(t))
	if err := rdb.Do(t.Context(), "replicaof", "127.0.0.1", 1).Err(); err != nil {
		t.Fatal(err)
	}
	replies, err := nodeOf(t, m).runCalls(t.Context(), []call{
		{k, callRelease, "m.former", "", 0},
		{k, callTry, "m.1", "", 60_000},
	})
	if !redis.HasErrorPrefix(err, "READONLY") {
		t.Errorf("%v, %v, want READONLY", replies, err)
	}
}

// Given a Redis without free memory, then releases work, and acquires fail unless they follow a
// release in the same run: see the README.
func TestNode_runCalls_OutOfMemory(t *testing.T) {
	t.Parallel()
	rdb := clientOf(t, redistest.Real(t, "--appendonly", "no"))
	n, name := nodeOf(t, newManager(t, rdb, slow)), resource(t)
	mine, next, late := mustKeys(t, name), mustKeys(t, name+"next"), mustKeys(t, name+"late")
	take, release := call{mine, callTry, "m.1", "", 60_000}, call{mine, callRelease, "m.1", "", 0}
	if _, err := n.runCalls(t.Context(), []call{take}); err != nil {
		t.Fatal(err)
	}
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	replies, err := n.runCalls(t.Context(), []call{{next, callTry, "m.2", "", 60_000}, release, {late, callTry, "m.3", "", 60_000}})
	if err != nil {
		t.Fatal(err)
	}
	if err, ok := replies[0].(error); !ok || !redis.HasErrorPrefix(err, "OOM") {
		t.Errorf("the reply before the release is %v, want OOM", replies[0])
	}
	if replies[1] != int64(1) {
		t.Errorf("the reply to the release is %v, want 1", replies[1])
	}
	if r, err := granted(replies[2]); err != nil || !r.held {
		t.Errorf("after the release: %+v, %v, want the lock", r, err)
	}
	// The rest of the reply was read: the connection can be used.
	if got := rdb.Exists(t.Context(), mine[keyLock], next[keyLock], late[keyLock]).Val(); got != 1 {
		t.Errorf("%d locks are held, want 1", got)
	}
}

// Given more dead waiters than one run removes, in the queues of two locks, when both are released in
// one run, then the locks are free, and the next runs remove the rest.
func TestNode_runCalls_DeadWaiters(t *testing.T) {
	t.Parallel()
	const dead, limit = 600, 1024
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := nodeOf(t, newManager(t, rdb, slow))
		name := resource(t)
		var takes, releases []call
		for i := range 2 {
			k := mustKeys(t, name+strconv.Itoa(i))
			takes = append(takes, call{k, callTry, "m.1", "", 60_000})
			releases = append(releases, call{k, callRelease, "m.1", "m.1", 0})
		}
		if _, err := n.runCalls(t.Context(), takes); err != nil {
			t.Fatal(err)
		}
		for _, c := range takes {
			var waiters []redis.Z
			for j := range dead {
				waiters = append(waiters, redis.Z{Score: float64(j), Member: fmt.Sprintf("GHOST.%d", j)})
			}
			if err := rdb.ZAdd(t.Context(), c.keys[keyWaiters], waiters...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		replies, err := n.runCalls(t.Context(), releases)
		if err != nil || replies[0] != int64(1) || replies[1] != int64(1) {
			t.Fatalf("%v, %v, want two releases without a handover", replies, err)
		}
		left := int64(0)
		for _, c := range takes {
			left += rdb.ZCard(t.Context(), c.keys[keyWaiters]).Val()
		}
		if left != 2*dead-limit {
			t.Errorf("%d dead waiters are left, want %d", left, 2*dead-limit)
		}
		for _, c := range takes {
			if v, err := n.runCall(t.Context(), c); err != nil {
				t.Error(err)
			} else if r, err := granted(v); err != nil || !r.held {
				t.Errorf("then: %+v, %v, want the lock", r, err)
			}
		}
	})
}
