package lock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestManager_LeavesNothing: many short locks leave no key and no loop.
func TestManager_LeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		names := []string{resource(t), resource(t)}
		m := newManager(t, rdb, steady)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range 40 {
					l, err := m.Acquire(ctx, names[i%len(names)])
					if err == nil {
						err = l.Release(ctx)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		wantNoTrace(t, rdb, names...)
		awaitIdle(t, m)
	})
}

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

// TestManager_ScriptFlush uses its own server: other tests count calls of scripts
// that Redis knows.
func TestManager_ScriptFlush(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx, name := await.Context(t), resource(t)
		flush := func() {
			t.Helper()
			must(t, rdb.ScriptFlush(ctx).Err())
		}
		m := newManager(t, rdb, slow)
		flush()
		l := mustAcquire(t, m, name)
		flush()
		until := l.ValidUntil()
		renewNow(l)
		if !l.ValidUntil().After(until) {
			t.Error("not renewed")
		}
		flush()
		must(t, l.Extend(ctx, time.Minute))
		flush()
		next := acquireAsync(ctx, m, name)
		awaitWaiters(t, rdb, name, 1)
		flush()
		mustRelease(t, l)
		l = awaitLock(t, next)
		flush()
		mustRelease(t, l)
	}
	t.Run("embedded", func(t *testing.T) { test(t, redistest.Embedded(t)) })
	t.Run("redis", func(t *testing.T) { test(t, clientOf(t, redistest.Real(t, "--appendonly", "no"))) })
}

func TestManager_ForeignKey(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		m := newManager(t, rdb, slow)
		for _, tc := range []struct {
			which string
			pick  int
		}{
			{"lock", keyLock},
			{"fence", keyFence},
		} {
			name := resource(t)
			key := mustKeys(t, name)[tc.pick]
			must(t, rdb.RPush(ctx, key, "precious").Err())
			if _, err := m.TryAcquire(ctx, name); !errors.Is(err, ErrForeignKey) {
				t.Errorf("%s: try: err = %v, want ErrForeignKey", tc.which, err)
			}
			if _, err := m.Acquire(ctx, name); !errors.Is(err, ErrForeignKey) {
				t.Errorf("%s: acquire: err = %v, want ErrForeignKey", tc.which, err)
			}
			if got := rdb.LRange(ctx, key, 0, -1).Val(); len(got) != 1 || got[0] != "precious" {
				t.Errorf("%s: the foreign key holds %q", tc.which, got)
			}
		}
		// If another program takes the queue's names, the holder can still release, and a waiter
		// gets an error.
		name := resource(t)
		k := mustKeys(t, name)
		l := mustAcquire(t, m, name)
		for _, key := range []string{k[keyWaiters], k[keySeen]} {
			must(t, rdb.RPush(ctx, key, "precious").Err())
			wantErr(t, errOf(m.Acquire(ctx, name)), ErrForeignKey)
		}
		mustRelease(t, l)
		if rdb.Exists(ctx, k[keyLock]).Val() != 0 {
			t.Error("lock key left")
		}
	})
}

func TestNew_Config(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, tc := range []struct {
		name string
		cfg  Config
		ok   bool
	}{
		{"zero", Config{}, true},
		{"shortest", Config{TTL: 10 * time.Millisecond}, true},
		{"ttl too short", Config{TTL: 9 * time.Millisecond}, false},
		{"ttl negative", Config{TTL: -time.Second}, false},
		{"ttl not in milliseconds", Config{TTL: 10*time.Millisecond + 1}, false},
		{"claim above ttl", Config{TTL: time.Second, ClaimTTL: 2 * time.Second}, false},
		{"claim too short", Config{ClaimTTL: time.Millisecond}, false},
		{"liveness too short", Config{Liveness: time.Millisecond}, false},
		{"grace too short", Config{Grace: time.Millisecond}, false},
		{"call timeout too short", Config{CallTimeout: time.Millisecond}, false},
		{"prefix with a tag", Config{Prefix: "app:{x}:"}, true},
		{"prefix with an empty tag", Config{Prefix: "app:{}:"}, false},
	} {
		_, err := New(rdb, tc.cfg)
		if tc.ok && err != nil || !tc.ok && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: err = %v", tc.name, err)
		}
	}
	wantErr(t, errOf(New(nil, Config{})), ErrInvalid)
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
