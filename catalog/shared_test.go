package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/lock"
)

// limit bounds waits; it is long because it only delays a failure.
const limit = 5 * time.Minute

// patient is a configuration under which nothing that a test checks depends on the time,
// however slow the machine is.
func patient() Config {
	return Config{
		Life: 10 * time.Minute, Fresh: 10 * time.Minute, Keep: time.Hour, Negative: maxNegative,
		Wait: limit, LoadTimeout: limit, RedisTimeout: limit, StockTimeout: limit, announceLimit: limit,
	}
}

const (
	// lockTTL is long enough for a live holder on a busy machine.
	lockTTL = 20 * time.Second
	// lockCall bounds a call of the lock there.
	lockCall = 10 * time.Second
	// deadTTL is the TTL of the lock of a process that died.
	deadTTL = 3 * time.Second
)

// steadyTTL is longer than a test may take.
const steadyTTL = 10 * time.Minute

// held takes a lock, as another process that does not use it.
func held(t *testing.T, rdb redis.UniversalClient, name string, ttl time.Duration, opts ...lock.Option) *lock.Lock {
	t.Helper()
	locks, err := lock.New(redistest.Second(t, rdb), lock.Config{TTL: ttl, CallTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := locks.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for {
		l, err := locks.Acquire(await.Context(t), name, opts...)
		if err == nil {
			return l
		}
		if !errors.Is(err, lock.ErrLost) { // it was granted, and the reply came after its end
			t.Fatal(err)
		}
	}
}

// newProcess makes a catalogue with its own client and locks, like another process.
func newProcess(t *testing.T, s *shop, rdb redis.UniversalClient, cfg Config) *Catalog {
	t.Helper()
	own := redistest.Second(t, rdb)
	locks, err := lock.New(own, lock.Config{TTL: lockTTL, CallTimeout: lockCall})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Redis, cfg.Locks = own, locks
	c, err := New(t.Context(), s, s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := errors.Join(c.Close(ctx), locks.Close(ctx)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// runs runs a process, and returns once it is subscribed and has its filter.
func runs(t *testing.T, c *Catalog) *Catalog {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	await.True(t, "the process to be ready", func() bool { return c.subscriptions.Load() > 0 && c.Ready(ctx) == nil })
	return c
}

// expire makes an item due for a reload, in every process and in Redis.
func expire(t *testing.T, rdb redis.UniversalClient, id string, all ...*Catalog) {
	t.Helper()
	for _, c := range all {
		r, ok := c.known.GetIfPresent(id)
		if !ok {
			t.Fatal("not in memory")
		}
		r.swap(func(v *View) bool {
			v.freshUntil = time.Now()
			return true
		})
	}
	ago := -(30 * time.Minute).Milliseconds()
	if err := rdb.HIncrBy(await.Context(t), all[0].remote.keys.item(id), "at", ago).Err(); err != nil {
		t.Fatal(err)
	}
}

// crowd reads an item on each process, with all readers at once, and counts what they got.
func crowd(t *testing.T, id string, readers int, all ...*Catalog) map[int64]int {
	t.Helper()
	ctx := await.Context(t)
	var mu sync.Mutex
	versions := map[int64]int{}
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			v, err := all[i%len(all)].View(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("reader %d: %v", i, err)
				return
			}
			versions[v.Item.Version]++
		})
	}
	wg.Wait()
	return versions
}

// newID is an id that no other test uses.
func newID(t *testing.T) string {
	t.Helper()
	return "item-" + fmt.Sprintf("%x", time.Now().UnixNano()) + fmt.Sprint(ids.Add(1))
}

var ids atomic.Int64

// TestBreakdown: of 10,000 readers of one item on 4 processes, only one queries the database,
// both when no process has the item and when it has expired.
func TestBreakdown(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		const readers = 10_000
		id := newID(t)
		s := newShop(Item{ID: id, Version: 1})
		var all []*Catalog
		for range 4 {
			all = append(all, newProcess(t, s, rdb, patient()))
		}
		if seen := crowd(t, id, readers, all...); seen[1] != readers {
			t.Errorf("seen by version: %v, want the first by all", seen)
		}
		wantCalls(t, s, 1, 0)

		// The database is slow; until it answers, all readers get the old item.
		gate := s.holdBack()
		s.set(func(s *shop) { s.items[id] = Item{ID: id, Version: 2} })
		expire(t, rdb, id, all...)
		if seen := crowd(t, id, readers, all...); seen[1] != readers {
			t.Errorf("seen by version: %v, want the one before by all", seen)
		}
		await.True(t, "the one question", func() bool { byID, _ := s.counts(); return byID == 2 })
		close(gate)
		for i, c := range all {
			await.True(t, fmt.Sprintf("process %d to have the next version", i), func() bool {
				v, err := c.View(await.Context(t), id)
				return err == nil && v.Item.Version == 2
			})
		}
		wantCalls(t, s, 2, 0)
	})
}

// TestBreakdown_Off: the same without the defence, to see that it is the defence.
func TestBreakdown_Off(t *testing.T) {
	t.Parallel()
	id := newID(t)
	s := newShop(Item{ID: id, Version: 1})
	cfg := patient()
	cfg.Off, cfg.LoadLimit = Breakdown, 1000
	c := newProcess(t, s, redistest.Embedded(t), cfg)
	gate := s.holdBack()
	done := make(chan struct{})
	go func() {
		defer close(done)
		crowd(t, id, 500, c)
	}()
	await.True(t, "each reader's question", func() bool { byID, _ := s.counts(); return byID == 500 })
	close(gate)
	<-done
}

// TestLoaderDies: a process that dies while it loads for all delays the others for the TTL of
// its lock, and no longer.
func TestLoaderDies(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		id := newID(t)
		s := newShop(Item{ID: id, Version: 1})
		a, b := newProcess(t, s, rdb, patient()), newProcess(t, s, rdb, patient())
		held(t, rdb, a.remote.keys.lock(id), deadTTL, lock.WithoutWatchdog())
		if seen := crowd(t, id, 100, a, b); seen[1] != 100 {
			t.Errorf("seen by version: %v", seen)
		}
		wantCalls(t, s, 1, 0)
	})
}

// TestLoaderSlow: a process that waits for another to load an item finally queries the
// database itself.
func TestLoaderSlow(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	id := newID(t)
	s := newShop(Item{ID: id, Version: 1})
	cfg := patient()
	cfg.Wait = time.Second
	c := newProcess(t, s, rdb, cfg)
	l := held(t, rdb, c.remote.keys.lock(id), steadyTTL)
	await.True(t, "an answer beside the lock", func() bool {
		_, err := c.View(await.Context(t), id)
		return err == nil
	})
	wantCalls(t, s, 1, 0)
	// A renewal, during which readers get the old item, does not query it.
	expire(t, rdb, id, c)
	r, _ := c.known.GetIfPresent(id)
	for range 100 {
		if v, err := c.View(await.Context(t), id); err != nil || v.Stale {
			t.Fatalf("%+v, %v, want the item as it was", v, err)
		}
	}
	await.True(t, "the renewal to give up", func() bool { return !r.renewing.Load() && r.retryAt.Load() > 0 })
	wantCalls(t, s, 1, 0)
	if err := l.Release(await.Context(t)); err != nil {
		t.Error(err)
	}
}

// TestRedis_SecondProcess: a process takes from Redis what another has loaded.
func TestRedis_SecondProcess(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		at := time.UnixMilli(1_900_000_000_123).UTC()
		want := Item{
			ID: newID(t), Name: "Näme", Description: "<d>\n", ImageURL: "/ä?a=1&b", PriceMinor: 1, Currency: "EUR", StockInitial: 2, StockTotal: 3,
			StockLeft: 4, PerUserLimit: 5, OpensAt: at, ClosesAt: at.Add(time.Hour), PaymentWindow: time.Minute,
			Control: ControlPaused, Version: 7,
		}
		s := newShop(want)
		a, b := newProcess(t, s, rdb, patient()), newProcess(t, s, rdb, patient())
		wantItem(t, a, want.ID, 4)
		if got, err := b.Item(await.Context(t), want.ID); err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
		ghost := newID(t)
		wantUnknown(t, a, ghost)
		wantUnknown(t, b, ghost)
		wantCalls(t, s, 2, 0)
		for _, key := range []string{a.remote.keys.item(want.ID), a.remote.keys.item(ghost)} {
			if ttl, err := rdb.PTTL(await.Context(t), key).Result(); err != nil || ttl <= 0 || ttl > time.Hour {
				t.Errorf("%s lives %v, %v", key, ttl, err)
			}
		}
	})
}

// TestChanged: a change on one process is seen on the other, and no process caches a result
// from before the change.
func TestChanged(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		id := newID(t)
		s := newShop(Item{ID: id, Version: 1})
		a, b := runs(t, newProcess(t, s, rdb, patient())), runs(t, newProcess(t, s, rdb, patient()))
		version := func(c *Catalog) int64 {
			v, err1 := c.View(await.Context(t), id)
			i, err2 := c.Item(await.Context(t), id)
			l, err3 := c.List(await.Context(t))
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Fatal(err)
			}
			return min(v.Item.Version, i.Version, l.Items[0].Version)
		}
		for n := int64(2); n < 30; n++ {
			if was := version(b); was != n-1 {
				t.Fatalf("version %d before the change to %d", was, n)
			}
			s.set(func(s *shop) { s.items[id] = Item{ID: id, Version: n} })
			a.Changed(await.Context(t), id, n)
			if v := version(a); v != n {
				t.Errorf("the process that made version %d shows %d", n, v)
			}
			await.True(t, "the other process to see the change", func() bool { return version(b) == n })
		}
	})
}

// TestChanged_SlowLoader: a load that has read before the change does not write to Redis after
// it.
func TestChanged_SlowLoader(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, known := range []bool{false, true} {
			id := newID(t)
			s := newShop(Item{ID: id, Version: 4})
			slow, other := newProcess(t, s, rdb, patient()), newProcess(t, s, rdb, patient())
			if known {
				wantItem(t, other, id, 0)
				expire(t, rdb, id, other)
			}
			gate := s.holdBack()
			done := make(chan struct{})
			asked, _ := s.counts()
			go func() {
				defer close(done)
				if _, err := slow.fetch(await.Context(t), id, toRenew); err != nil {
					t.Error(err)
				}
			}()
			await.True(t, "the loader to ask", func() bool { n, _ := s.counts(); return n > asked })
			s.set(func(s *shop) { s.items[id], s.pause = Item{ID: id, Version: 5}, nil })
			other.Changed(await.Context(t), id, 5)
			close(gate)
			<-done
			if e, found, err := other.remote.read(await.Context(t), id); err != nil || found {
				t.Errorf("Redis has %+v, %v, %v, want nothing but the version", e, found, err)
			}
			if i, err := other.Item(await.Context(t), id); err != nil || i.Version != 5 {
				t.Errorf("%+v, %v, want version 5", i, err)
			}
			if e, found, err := other.remote.read(await.Context(t), id); err != nil || !found || e.item.Version != 5 {
				t.Errorf("Redis has %+v, %v, %v, want version 5", e, found, err)
			}
		}
	})
}

// TestCreated: an item that was requested before its creation is found by every process
// immediately afterwards.
func TestCreated(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop()
		a, b := runs(t, newProcess(t, s, rdb, patient())), runs(t, newProcess(t, s, rdb, patient()))
		for range 20 {
			id := newID(t)
			for _, c := range []*Catalog{a, b} {
				wantUnknown(t, c, id)
				if _, err := c.List(await.Context(t)); err != nil {
					t.Fatal(err)
				}
			}
			s.set(func(s *shop) { s.items[id] = Item{ID: id, Version: 1} })
			a.Created(await.Context(t), id)
			for _, c := range []*Catalog{a, b} {
				await.True(t, "the new item", func() bool {
					v, err := c.View(await.Context(t), id)
					return err == nil && v.Item.ID == id
				})
				await.True(t, "the new item in the list", func() bool {
					l, err := c.List(await.Context(t))
					return err == nil && len(l.Items) == len(s.items)
				})
			}
		}
	})
}

// TestWarm: an item that one process warms is warm in the others, and its sale is loaded;
// items that open soon are warmed automatically.
func TestWarm(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		now := time.Now()
		soon, later, over := newID(t), newID(t), newID(t)
		s := newShop(
			Item{ID: soon, Version: 1, Control: ControlOpen, OpensAt: now.Add(time.Minute)},
			Item{ID: later, Version: 1, Control: ControlOpen, OpensAt: now.Add(time.Hour)},
			Item{ID: over, Version: 1, Control: ControlClosed, OpensAt: now.Add(-time.Hour)},
		)
		var mu sync.Mutex
		opened := map[string]int{}
		cfg := patient()
		cfg.OpenSale = func(_ context.Context, item string) error {
			mu.Lock()
			defer mu.Unlock()
			opened[item]++
			return nil
		}
		count := func(item string) int {
			mu.Lock()
			defer mu.Unlock()
			return opened[item]
		}
		inRedis := func(id string) bool {
			n, err := rdb.Exists(await.Context(t), keys{func(string) string { return "p0" }}.item(id)).Result()
			return err == nil && n == 1
		}
		a := newProcess(t, s, rdb, cfg)
		if err := a.Ready(await.Context(t)); err == nil {
			t.Error("ready before anything is loaded")
		}
		runs(t, a)
		await.True(t, "the sale to be opened", func() bool { return count(soon) == 1 })
		if count(soon) != 1 || count(later) != 0 || count(over) != 0 || !inRedis(soon) || inRedis(later) || inRedis(over) {
			t.Errorf("opened %v, in Redis: soon %v, later %v, over %v", opened, inRedis(soon), inRedis(later), inRedis(over))
		}
		b := runs(t, newProcess(t, s, rdb, cfg))
		b.known.InvalidateAll()
		if v, err := a.Warm(await.Context(t), later); err != nil || v.Item.ID != later {
			t.Errorf("warm: %+v, %v", v, err)
		}
		if count(later) != 1 || !inRedis(later) {
			t.Errorf("the sale was opened %d times, item in Redis: %v", count(later), inRedis(later))
		}
		await.True(t, "the other process to have it", func() bool { _, ok := b.known.GetIfPresent(later); return ok })
		if _, err := a.Warm(await.Context(t), "no-such-item"); !errors.Is(err, ErrItemNotFound) {
			t.Errorf("warm: %v, want ErrItemNotFound", err)
		}
	})
}

// TestWarm_Clock: the clock of the sale decides which items open soon, not the host's.
func TestWarm_Clock(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	now := time.Now()
	soon, later := newID(t), newID(t)
	const ahead = time.Hour
	s := newShop(
		Item{ID: soon, Version: 1, Control: ControlOpen, OpensAt: now.Add(ahead + time.Minute)},
		Item{ID: later, Version: 1, Control: ControlOpen, OpensAt: now.Add(ahead + time.Hour)},
	)
	var mu sync.Mutex
	var opened []string
	cfg := patient()
	cfg.Now = func(string) time.Time { return time.Now().Add(ahead) }
	cfg.OpenSale = func(_ context.Context, item string) error {
		mu.Lock()
		defer mu.Unlock()
		opened = append(opened, item)
		return nil
	}
	runs(t, newProcess(t, s, rdb, cfg))
	await.True(t, "a sale to be opened", func() bool { mu.Lock(); defer mu.Unlock(); return len(opened) > 0 })
	mu.Lock()
	defer mu.Unlock()
	if len(opened) != 1 || opened[0] != soon {
		t.Errorf("opened %v, want %s", opened, soon)
	}
}

// TestWarm_LargeSale: a process is ready, and opens other sales, while a large sale is
// being loaded.
func TestWarm_LargeSale(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	now := time.Now()
	large, small := newID(t), newID(t)
	s := newShop(
		Item{ID: large, Version: 1, Control: ControlOpen, OpensAt: now.Add(-time.Minute)},
		Item{ID: small, Version: 1, Control: ControlOpen, OpensAt: now.Add(-time.Minute)},
	)
	loaded, opened := make(chan struct{}), make(chan struct{})
	cfg := patient()
	cfg.OpenSale = func(ctx context.Context, item string) error {
		if item == small {
			close(opened)
			return nil
		}
		select {
		case <-loaded:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	runs(t, newProcess(t, s, rdb, cfg)) // waits until it is ready
	select {
	case <-opened:
	case <-time.After(limit):
		t.Error("the small sale waits for the large one")
	}
	close(loaded)
}
