package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// awaitIdle fails unless a manager holds no lock and its renewal loop ends at its next check.
func awaitIdle(t *testing.T, m *Manager) {
	t.Helper()
	m.kickDog() // it checks within a third of the TTL
	await.True(t, "the renewal loop ends", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return !m.dog.running && len(m.held) == 0
	})
}

// TestManager_ForeignKey: calls that need a key of another type fail and do not touch it. The holder of a lock can
// release it nevertheless.
func TestManager_ForeignKey(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		m := newManager(t, rdb, slow)
		for i := range suffixes {
			name := resource(t)
			k := mustKeys(t, name)
			must(t, rdb.RPush(ctx, k[i], "precious").Err())
			wantErr(t, errOf(m.Inspect(ctx, name)), ErrForeignKey)
			if i == keyLock || i == keyFence { // a free lock needs no others
				wantErr(t, errOf(m.TryAcquire(ctx, name)), ErrForeignKey)
				wantErr(t, errOf(m.Acquire(ctx, name)), ErrForeignKey)
			}
			if i != keyLock {
				must(t, rdb.Del(ctx, k[i]).Err())
				l := mustAcquire(t, m, name)
				must(t, errors.Join(rdb.Del(ctx, k[keyFence]).Err(), rdb.RPush(ctx, k[i], "precious").Err()))
				wantErr(t, errOf(m.Acquire(ctx, name)), ErrForeignKey)
				mustRelease(t, l)
				if rdb.Exists(ctx, k[keyLock]).Val() != 0 {
					t.Errorf("%s: the lock's key is left", k[i])
				}
			}
			if got := rdb.LRange(ctx, k[i], 0, -1).Val(); !slices.Equal(got, []string{"precious"}) {
				t.Errorf("%s holds %q", k[i], got)
			}
		}
	})
}

// TestNew_Config: managers of one Redis and of several nodes accept and reject the same settings, except NodeTimeout
// and, because a quorum has no queue, Liveness.
func TestNew_Config(t *testing.T) {
	t.Parallel()
	var nodes []redis.UniversalClient
	for i := range quorumSize {
		nodes = append(nodes, quorumClient(t, fmt.Sprintf("127.0.0.1:%d", i+1), nil)) // never dialled
	}
	one := func(cfg Config) (*Manager, error) { return New(nodes[0], cfg) }
	several := func(cfg Config) (*Manager, error) { return NewQuorum(nodes, cfg) }
	quorumOnly := func(cfg Config) (*Manager, error) {
		wantErr(t, errOf(one(cfg)), ErrInvalid)
		return several(cfg)
	}
	const ms = time.Millisecond
	for _, tc := range []struct {
		name string
		cfg  Config
		ok   bool
	}{
		{"zero", Config{}, true},
		{"shortest ttl", Config{TTL: minTTL}, true},
		{"ttl too short", Config{TTL: minTTL - ms}, false},
		{"ttl negative", Config{TTL: -time.Second}, false},
		{"ttl not in milliseconds", Config{TTL: minTTL + 1}, false},
		{"only a long ttl", Config{TTL: time.Minute}, true},
		{"claim above ttl", Config{TTL: time.Second, ClaimTTL: 2 * time.Second}, false},
		{"claim too short", Config{ClaimTTL: ms}, false},
		{"claim not in milliseconds", Config{ClaimTTL: 10*ms + 1}, false},
		{"liveness too short", Config{Liveness: ms}, false},
		{"grace too short", Config{Grace: ms}, false},
		{"call timeout too short", Config{CallTimeout: ms}, false},
		{"only a short call timeout", Config{CallTimeout: 100 * ms}, true},
		{"prefix with a tag", Config{Prefix: "app:{x}:"}, true},
		{"prefix with an empty tag", Config{Prefix: "app:{}:"}, false},
		{"poll least", Config{Poll: ms}, true},
		{"poll too short", Config{Poll: ms - 1}, false},
		{"poll negative", Config{Poll: -time.Second}, false},
		{"poll a third of the claim", Config{ClaimTTL: 300 * ms, Poll: 100 * ms}, true},
		{"poll beyond a third of the claim", Config{ClaimTTL: 300 * ms, Poll: 101 * ms}, false},
		{"poll of liveness", Config{Liveness: 50 * ms, Poll: 50 * ms}, true},
		{"metadata longest", Config{Metadata: strings.Repeat("x", maxMetadata)}, true},
		{"metadata too long", Config{Metadata: strings.Repeat("x", maxMetadata+1)}, false},
		{"node timeout negative", Config{NodeTimeout: -time.Second}, false},
		{"node timeout a third of the ttl", Config{TTL: 3 * time.Second, NodeTimeout: time.Second}, true},
		{"node timeout beyond", Config{TTL: 3 * time.Second, NodeTimeout: time.Second + 1}, false},
		{"node timeout of the call's", Config{TTL: time.Minute, CallTimeout: time.Second, NodeTimeout: time.Second}, true},
		{"node timeout above the call's", Config{TTL: time.Minute, CallTimeout: time.Second, NodeTimeout: time.Second + 1}, false},
	} {
		makers := map[string]func(Config) (*Manager, error){"one": one, "several": several}
		if tc.cfg.NodeTimeout != 0 {
			makers = map[string]func(Config) (*Manager, error){"several": quorumOnly}
		}
		for kind, create := range makers {
			made, err := create(tc.cfg)
			if tc.ok && err != nil || !tc.ok && (!errors.Is(err, ErrInvalid) || made != nil) {
				t.Errorf("%s, %s: err = %v, want valid = %v", kind, tc.name, err, tc.ok)
			}
			if made != nil {
				closeQuorum(t, made)
			}
		}
	}
}

// TestNew_Config_PollExceedsLiveness: waiters that poll less often than Liveness would count as dead.
func TestNew_Config_PollExceedsLiveness(t *testing.T) {
	t.Parallel()
	wantErr(t, errOf(New(redistest.Embedded(t), Config{Poll: 51 * time.Millisecond, Liveness: 50 * time.Millisecond})), ErrInvalid)
}

// TestNew_Clients: a manager needs a client of one Redis, and a quorum needs three different ones.
func TestNew_Clients(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	var nodes []redis.UniversalClient
	for i := range 4 {
		nodes = append(nodes, quorumClient(t, fmt.Sprintf("127.0.0.1:%d", i+1), nil)) // never dialled
	}
	ring := redis.NewRing(&redis.RingOptions{})
	closeAtEnd(t, ring)
	wantErr(t, errOf(New(nil, Config{})), ErrInvalid)
	wantErr(t, errOf(New((*redis.Client)(nil), Config{})), ErrInvalid)
	wantErr(t, errOf(New(ring, Config{})), ErrInvalid)
	for name, some := range map[string][]redis.UniversalClient{
		"none": nil, "two": nodes[:2], "one is nil": {nodes[0], nil, nodes[1]}, "one is twice": {nodes[0], nodes[1], nodes[0]},
		"one address twice": {rdb, nodes[0], redistest.Second(t, rdb)},
	} {
		if _, err := NewQuorum(some, Config{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: err = %v, want ErrInvalid", name, err)
		}
	}
	for _, n := range []int{3, 4} {
		made, err := NewQuorum(nodes[:n], Config{})
		must(t, err)
		closeQuorum(t, made)
	}
}

func TestKeysOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ prefix, resource, lock string }{
		{"lock:", "item", "lock:{item}:lock"},
		{"lock:", "fs:{p3}:sale:item", "fs:{p3}:sale:item:lock"},
		{"app:{x}:", "item", "app:{x}:item:lock"},
		{"app:{x}:", "fs:{p3}:item", "fs:{p3}:item:lock"},
		{"lock:", "a{}b", "lock:{a{}b}:lock"},
		{"lock:", "a}b", "lock:{a}b}:lock"},
		{"lock:", "", ""},
		{"lock:", "}", ""},
	} {
		k, err := keysOf(tc.prefix, tc.resource)
		if k[keyLock] != tc.lock || (err != nil) != (tc.lock == "") {
			t.Errorf("%q %q: %q, %v; want %q", tc.prefix, tc.resource, k[keyLock], err, tc.lock)
		}
	}
}

// FuzzKeysOf: for any names, the keys of a resource share a hash tag, no key equals the resource's
// name, and two resources without a tag share no lock.
func FuzzKeysOf(f *testing.F) {
	f.Add("lock:", "item", "other")
	f.Add("a{", "x}{y}", "{}")
	tag := func(key string) string {
		for i := range key {
			if key[i] != '{' {
				continue
			}
			for j := i + 1; j < len(key); j++ {
				if key[j] == '}' {
					return key[i+1 : j]
				}
			}
			return ""
		}
		return ""
	}
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		ka, err := keysOf(prefix, a)
		if err != nil {
			return
		}
		for _, key := range ka {
			if tag(key) == "" || tag(key) != tag(ka[keyLock]) {
				t.Fatalf("%q: tag %q, want %q", key, tag(key), tag(ka[keyLock]))
			}
			if key == a || key == prefix+a {
				t.Fatalf("%q is the key of the resource's data", key)
			}
		}
		if kb, err := keysOf(prefix, b); err == nil && a != b && tag(a) == "" && tag(b) == "" && ka[keyLock] == kb[keyLock] {
			t.Fatalf("%q and %q share the key %q", a, b, ka[keyLock])
		}
	})
}

// TestManager_Waiting: acquires that wait for another holder are counted until they end, whether
// they get the lock or not.
func TestManager_Waiting(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		name := resource(t)
		m := newManager(t, rdb, slow)
		l := mustAcquire(t, m, name)
		if n := m.Waiting(); n != 0 {
			t.Errorf("%d wait for a free lock", n)
		}
		leaves, cancel := context.WithCancel(ctx)
		first, second := acquireAsync(leaves, m, name), acquireAsync(ctx, m, name)
		await.True(t, "two waiters", func() bool { return m.Waiting() == 2 })
		cancel()
		if r := awaitResult(t, first); !errors.Is(r.err, context.Canceled) {
			t.Errorf("the cancelled waiter: %+v", r)
		}
		await.True(t, "one waiter", func() bool { return m.Waiting() == 1 })
		must(t, l.Release(ctx))
		if r := awaitResult(t, second); r.err != nil {
			t.Errorf("the other: %v", r.err)
		}
		await.True(t, "no waiter", func() bool { return m.Waiting() == 0 })
	})
}

// Given a data key without TTL and a lock with the same name, when the lock is taken, waited
// for, inspected and released, then the data and its TTL are unchanged, as is data under
// names that begin with it.
func TestManager_ResourceNamedLikeData(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m := newManager(t, rdb, slow)
		data := []string{name, name + ":waiters", name + ":seen", name + ":fence"}
		for _, key := range data {
			must(t, rdb.Set(ctx, key, "42", 0).Err())
		}
		var next <-chan result
		err := m.Do(ctx, name, func(context.Context, *Lock) error {
			wantTaken(t, m, name)
			info, err := m.Inspect(ctx, name)
			if !info.Held {
				t.Errorf("the lock is not seen: %+v", info)
			}
			next = acquireAsync(await.Context(t), m, name)
			awaitWaiters(t, rdb, name, 1)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		mustRelease(t, awaitLock(t, next))
		awaitNoTrace(t, rdb, name)
		for _, key := range data {
			if v, ttl := rdb.Get(ctx, key).Val(), rdb.PTTL(ctx, key).Val(); v != "42" || ttl != -1 {
				t.Errorf("%s holds %q with a TTL of %s, want 42 without one", key, v, ttl)
			}
		}
	})
}

// Given held locks and a context that has ended, as after SIGTERM, when the manager is closed, then the
// locks are released before Close returns.
func TestManager_Close_EndedContext(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		m := newManager(t, rdb, slow)
		_, names := hold(t, m, 20)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		check(t, m.Close(ctx))
		wantNoTrace(t, rdb, names...)
	})
}

// Given a call that takes the lock, when the manager is closed before the reply arrives, then the
// caller gets ErrClosed, and the lock is released.
func TestManager_Close_DuringAcquire(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		// A call runs on the caller's goroutine, or beside it.
		for _, tc := range []struct{ wait, beside bool }{{}, {beside: true}, {wait: true}, {wait: true, beside: true}} {
			ctx, name := await.Context(t), resource(t)
			own := redistest.Second(t, rdb)
			cfg := slow
			cfg.Poll = time.Second // then the first call joins the queue
			m, err := New(own, cfg)
			must(t, err)
			m.bounded = !tc.beside
			mustRelease(t, mustAcquire(t, m, name)) // Redis now knows the scripts
			closed := make(chan error, 1)
			own.AddHook(around(func(ctx context.Context, cmds []redis.Cmder, next func() error) error {
				err := next()
				if err == nil && acquires(cmds[0]) {
					go func() { closed <- m.Close(ctx) }()
					<-m.closing
				}
				return err
			}))
			_, err = m.acquire(ctx, name, tc.wait, nil)
			wantErr(t, err, ErrClosed)
			check(t, <-closed)
			if n := traces(t, rdb, name); n != 0 {
				t.Errorf("%+v: %d keys left", tc, n)
			}
		}
	})
}

// Given a Redis that hangs and a context that has ended, when the manager is closed, then Close returns
// after CallTimeout with the reason.
func TestManager_Close_EndedContext_Blackhole(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	proxy := redistest.NewProxy(t, server.Addr())
	rdb := redis.NewClient(redistest.Options(proxy.Addr()))
	defer rdb.Close()
	m := newManager(t, rdb, slow)
	mustAcquire(t, m, resource(t))
	m.cfg.CallTimeout = time.Second // the acquire needs more on a busy machine
	proxy.Blackhole(true)
	why := errors.New("terminated")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	// Either bound may be the first to end: that of the release, or that of Close.
	if err := m.Close(ctx); err == nil {
		t.Error("a close that released nothing succeeds")
	}
	proxy.Blackhole(false)
}
