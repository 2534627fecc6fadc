package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/registry"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func newRegistry(t testing.TB, rdb redis.UniversalClient, cfg registry.Config) *registry.Registry {
	t.Helper()
	if cfg.Key == "" {
		cfg.Key = redistest.Prefix(t) + "workers"
	}
	r, err := registry.New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func listed(t testing.TB, r *registry.Registry) registry.Workers {
	t.Helper()
	w, err := r.List(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// join runs a registration until leave is called, or the test ends.
func join(t testing.TB, g *registry.Registration, onError func(error)) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { g.Run(ctx, onError) })
	leave = func() { cancel(); running.Wait() }
	t.Cleanup(leave)
	return leave
}

func dial(t testing.TB, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(redistest.Options(addr))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	return rdb
}

// refuse fails the test if a heartbeat fails.
func refuse(t testing.TB) func(error) { return func(err error) { t.Error(err) } }

// calls counts the commands of a client.
type calls struct{ n *atomic.Int64 }

func (calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

// TestRegistry: a worker is listed with its data while it runs, and a clean stop removes it
// at once. The times of the last heartbeat and fetch remain.
func TestRegistry(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		key := redistest.Prefix(t) + "workers"
		// Silence is longer than the test: only a clean stop removes an entry.
		r := newRegistry(t, rdb, registry.Config{Key: key, Every: 20 * time.Millisecond, Silence: time.Hour})
		if w := listed(t, r); len(w.Live) != 0 || !w.SeenAt.IsZero() || !w.FetchedAt.IsZero() || w.Now.IsZero() {
			t.Fatalf("an empty registry: %+v", w)
		}
		g := r.Register("host a\n"+strings.Repeat("x", 200), "v1.2")
		leave := join(t, g, refuse(t))
		await.True(t, "the registry changes", func() bool { return len(listed(t, r).Live) == 1 })
		one := listed(t, r).Live[0]
		if !strings.HasPrefix(one.Host, "host_a_x") || len(one.Host) != 100 || one.Version != "v1.2" || one.ID == "" {
			t.Errorf("listed as %+v", one)
		}
		if !one.FetchedAt.IsZero() || one.StartedAt.After(one.SeenAt) {
			t.Errorf("times of a new worker: %+v", one)
		}
		if _, ever := g.SinceFetch(); ever {
			t.Error("it has fetched")
		}
		g.Fetched()
		await.True(t, "the registry changes", func() bool { return !listed(t, r).FetchedAt.IsZero() })
		await.True(t, "the registry changes", func() bool { return listed(t, r).Live[0].SeenAt.After(one.SeenAt) })
		other := join(t, r.Register("b", ""), refuse(t))
		// A heartbeat that is slow to reach Redis makes its worker look younger until the next one.
		await.True(t, "the oldest is first", func() bool {
			live := listed(t, r).Live
			return len(live) == 2 && live[0].ID == one.ID && live[1].Host == "b" && live[1].Version == ""
		})
		leave()
		w := listed(t, r)
		if len(w.Live) != 1 || w.Live[0].Host != "b" {
			t.Errorf("after a clean stop: %+v", w.Live)
		}
		other()
		if w = listed(t, r); len(w.Live) != 0 || w.SeenAt.IsZero() || w.FetchedAt.IsZero() || w.SeenAt.Before(w.FetchedAt) {
			t.Errorf("after all have left: %+v", w)
		}
		if ttl, err := rdb.PTTL(await.Context(t), key).Result(); err != nil || ttl <= 0 {
			t.Errorf("the key has no TTL: %v, %v", ttl, err)
		}
	})
}

// TestRegistry_Killed: a killed worker counts as live until Silence has passed by the server's
// clock, and the next heartbeat of another removes its entry. The server's clock is years off
// this host's.
func TestRegistry_Killed(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	rdb := dial(t, server.Addr())
	now := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	server.SetTime(now)
	key := redistest.Prefix(t) + "workers"
	cfg := registry.Config{Key: key, Every: time.Hour, Silence: time.Hour}
	r := newRegistry(t, rdb, cfg)
	g := r.Register("a", "")
	g.Fetched()
	join(t, g, refuse(t)) // the next heartbeat is an hour away
	await.True(t, "the registry changes", func() bool { return len(listed(t, r).Live) == 1 })
	if w := listed(t, r); !w.Now.Equal(now) || !w.SeenAt.Equal(now) || now.Sub(w.FetchedAt) > await.Limit || now.Sub(w.Live[0].StartedAt) > await.Limit {
		t.Fatalf("times are the server's: %+v", w)
	}
	server.SetTime(now.Add(time.Hour))
	if w := listed(t, r); len(w.Live) != 1 {
		t.Errorf("within its silence: %+v", w)
	}
	server.SetTime(now.Add(time.Hour + time.Millisecond))
	if w := listed(t, r); len(w.Live) != 0 || !w.SeenAt.Equal(now) {
		t.Errorf("after its silence: %+v", w)
	}
	leave := join(t, r.Register("b", ""), refuse(t))
	await.True(t, "the registry changes", func() bool { return len(listed(t, r).Live) == 1 })
	if fields, err := rdb.HLen(await.Context(t), key).Result(); err != nil || fields != 3 {
		t.Errorf("%d fields, %v: want the other worker and two times", fields, err)
	}
	leave()
	server.FastForward(30 * 24 * time.Hour)
	if w := listed(t, r); !w.SeenAt.IsZero() || server.Exists(key) {
		t.Errorf("the times of past workers never expire: %+v", w)
	}
}

// TestRegistry_ClockSetBack: after the server's clock was set back, a killed worker and the times of past workers do
// not look recent until the clock has caught up.
func TestRegistry_ClockSetBack(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	rdb := dial(t, server.Addr())
	now := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	server.SetTime(now)
	key := redistest.Prefix(t) + "workers"
	r := newRegistry(t, rdb, registry.Config{Key: key, Every: time.Minute, Silence: time.Minute})
	g := r.Register("a", "")
	g.Fetched()
	join(t, g, refuse(t)) // the next heartbeat is a minute away
	await.True(t, "the registry changes", func() bool { return len(listed(t, r).Live) == 1 })
	now = now.Add(-time.Hour)
	server.SetTime(now)
	if w := listed(t, r); len(w.Live) != 0 {
		t.Errorf("a worker is live by a heartbeat an hour ahead: %+v", w.Live)
	}
	b := r.Register("b", "")
	b.Fetched()
	leave := join(t, b, refuse(t))
	await.True(t, "the registry changes", func() bool { return len(listed(t, r).Live) == 1 })
	if w := listed(t, r); w.Live[0].Host != "b" || w.FetchedAt.After(now) || w.SeenAt.After(now) {
		t.Errorf("times of before: %+v", w)
	}
	if fields, err := rdb.HLen(await.Context(t), key).Result(); err != nil || fields != 3 {
		t.Errorf("%d fields, %v: want the live worker and two times", fields, err)
	}
	leave()
}

// TestRegistry_Full: a full registry returns ErrFull; a worker that leaves makes room.
func TestRegistry_Full(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	key := redistest.Prefix(t) + "workers"
	r := newRegistry(t, rdb, registry.Config{Key: key, Every: 10 * time.Millisecond, Silence: time.Hour})
	seen := time.Now().UnixMilli()
	fields := make(map[string]string)
	for i := range 1024 {
		fields[fmt.Sprintf("w%d", i)] = fmt.Sprintf("%d %d 0 h v", seen, seen)
	}
	if err := rdb.HSet(await.Context(t), key, fields).Err(); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	var once sync.Once
	join(t, r.Register("a", ""), func(err error) {
		once.Do(func() { refused <- err })
	})
	select {
	case err := <-refused:
		if !errors.Is(err, registry.ErrFull) {
			t.Errorf("got %v", err)
		}
	case <-await.Context(t).Done():
		t.Fatal("not refused")
	}
	if err := rdb.HDel(await.Context(t), key, "w7").Err(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the registry changes", func() bool {
		for _, w := range listed(t, r).Live {
			if w.Host == "a" {
				return true
			}
		}
		return false
	})
}

// TestRegistry_RedisAway: heartbeats continue through an outage, which is reported once.
func TestRegistry_RedisAway(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	rdb := dial(t, server.Addr())
	r := newRegistry(t, rdb, registry.Config{Every: 10 * time.Millisecond, Silence: time.Hour})
	var sent atomic.Int64
	rdb.AddHook(calls{&sent})
	var mu sync.Mutex
	var errs []error
	g := r.Register("a", "")
	join(t, g, func(err error) { mu.Lock(); errs = append(errs, err); mu.Unlock() })
	await.True(t, "the registry changes", func() bool { return len(listed(t, r).Live) == 1 })
	server.SetError("LOADING the test says so")
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(errs) }
	await.True(t, "the registry changes", func() bool { return count() == 1 })
	for failed, last := 0, sent.Load(); failed < 5; failed++ {
		await.True(t, "the registry changes", func() bool { return sent.Load() > last })
		last = sent.Load()
	}
	server.SetError("")
	seen := listed(t, r).SeenAt
	await.True(t, "the registry changes", func() bool { return listed(t, r).SeenAt.After(seen) })
	if n := count(); n != 1 {
		t.Errorf("%d errors, want one of the whole outage: %v", n, errs)
	}
}

func TestNew_ErrConfig(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	for name, cfg := range map[string]registry.Config{
		"no key":      {},
		"quick beats": {Key: "k", Every: time.Millisecond},
		"impatient":   {Key: "k", Every: time.Second, Silence: time.Millisecond},
		"patient":     {Key: "k", Silence: 10_000 * time.Hour},
	} {
		if _, err := registry.New(rdb, cfg); !errors.Is(err, registry.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := registry.New(nil, registry.Config{Key: "k"}); !errors.Is(err, registry.ErrConfig) {
		t.Errorf("no client: %v", err)
	}
}
