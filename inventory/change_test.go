package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/lock"
)

// commits is a commit that changes the shop's database.
func (s *shop) commits(add, version int64) func(context.Context) (int64, error) {
	return func(context.Context) (int64, error) {
		s.stock(add, version)
		return version, nil
	}
}

func TestInventory_Change(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(3, 1), 0)
		v, other := s.inventory(t, Config{MarkLife: forEver}), s.inventory(t, Config{MarkLife: forEver})
		ctx := await.Context(t)
		change := func(c Change, commit func(context.Context) (int64, error), want error) {
			t.Helper()
			if err := v.Change(ctx, s.item, c, commit); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("change %+v: %v, want %v", c, err, want)
			}
			if st := s.audit(t); st.sale["changing"] != "" {
				t.Errorf("the sale is still marked: %v", st.sale)
			}
		}
		never := func(context.Context) (int64, error) {
			t.Error("committed a change that had to be refused")
			return 0, errTest
		}
		change(Change{AddLeft: -1}, s.commits(-1, 2), nil) // of a sale that was not loaded
		sellOut(t, s, v, 2)
		marked(t, s, v, other)
		change(Change{AddLeft: -1}, never, ErrStockBelowSold)
		change(Change{AddLeft: 2}, s.commits(2, 3), nil)
		await.True(t, "the mark to go", func() bool { return !fromMemory(t, s, other) })
		mustBuy(t, other, s.request("n1", "k", 1))
		before := s.state(t)
		change(Change{AddLeft: -2}, never, ErrStockBelowSold)
		change(Change{AddLeft: -1}, func(context.Context) (int64, error) {
			// While the commit runs, no buyer can buy.
			if st := s.state(t); st.sale["changing"] == "" {
				t.Error("the sale is not marked")
			}
			return 0, fmt.Errorf("%w: %w", ErrUnchanged, errTest)
		}, errTest)
		change(Change{AddLeft: 7}, func(context.Context) (int64, error) { return 0, ErrUnchanged }, ErrUnchanged)
		same(t, before, s.state(t))
		// A commit that was done before returns the version of that time.
		change(Change{AddLeft: 2}, func(context.Context) (int64, error) { return 3, nil }, nil)
		same(t, before, s.state(t))
		change(Change{AddLeft: -1, PerUserLimit: ptr(int64(2))}, s.commits(-1, 4), nil)
		mustRefuse(t, v, s.request("n2", "k", 1), ErrSoldOut)
		if loads := s.source.loads; loads != 1 {
			t.Errorf("the sale was loaded %d times, want once", loads)
		}
	})
}

// TestInventory_Change_Unknown: when the outcome of the commit is unknown, or the process
// died, the next buyer's load reads it from the database.
func TestInventory_Change_Unknown(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, c := range map[string]struct {
			add  int64
			done bool // whether the database has the change
			want int64
		}{
			"AddDone": {5, true, 14}, "AddNotDone": {5, false, 9},
			"TakeDone": {-5, true, 4}, "TakeNotDone": {-5, false, 9},
		} {
			for _, by := range []string{"Error", "NoVersion", "Death"} {
				t.Run(name+by, func(t *testing.T) {
					t.Parallel()
					s := newShop(t, rdb, open(10, 1), 0)
					v := s.inventory(t, Config{})
					mustBuy(t, v, s.request("u", "k", 1))
					commit := func(context.Context) (int64, error) {
						if c.done {
							s.stock(c.add, 2)
						}
						return 0, errTest
					}
					switch by {
					case "Error":
						if err := v.Change(await.Context(t), s.item, Change{AddLeft: c.add}, commit); !errors.Is(err, errTest) {
							t.Errorf("change: %v, want the commit's error", err)
						}
					case "NoVersion":
						if err := v.Change(await.Context(t), s.item, Change{AddLeft: c.add}, func(ctx context.Context) (int64, error) {
							version, err := commit(ctx)
							if !errors.Is(err, errTest) {
								t.Error(err)
							}
							return version, nil
						}); err == nil {
							t.Error("a commit without a version was taken for one")
						}
					default:
						dies(t, s, v, c.add, commit)
					}
					mustBuy(t, s.inventory(t, Config{}), s.request("w", "k", 1))
					if st := s.audit(t); st.left(t) != c.want-1 || st.sale["changing"] != "" {
						t.Errorf("%d left, want %d; the sale is %v", st.left(t), c.want-1, st.sale)
					}
				})
			}
		}
	})
}

// dies begins a change as a process does that ends in the middle of it: its mark stays, and
// its lock expires.
func dies(t *testing.T, s *shop, v *Inventory, add int64, commit func(context.Context) (int64, error)) {
	t.Helper()
	// A lock that was handed over keeps the previous holder's TTL for a while; this one must
	// expire soon.
	lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
	await.True(t, "the lock to be free", func() bool {
		n, err := s.rdb.Exists(await.Context(t), lockKey).Result()
		return err == nil && n == 0
	})
	err := v.suspend(await.Context(t), dead(t, s, 500*time.Millisecond), s.item, add)
	for errors.Is(err, lock.ErrLost) && t.Context().Err() == nil { // a busy machine was too late
		err = v.suspend(await.Context(t), dead(t, s, 500*time.Millisecond), s.item, add)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := commit(await.Context(t)); !errors.Is(err, errTest) {
		t.Fatal(err)
	}
}

// TestInventory_Change_LeftMarked: Reload loads a sale that a dead process left half-changed,
// and so does the next purchase after a change. No other operation changes it.
func TestInventory_Change_LeftMarked(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		r := s.request("u", "k", 1)
		mustBuy(t, v, r)
		commit := func(context.Context) (int64, error) {
			s.stock(-5, 2)
			return 0, errTest
		}
		dies(t, s, v, -5, commit)
		before := s.state(t)
		if err := s.adjust(t, Change{Version: 2, AddLeft: 1}); !errors.Is(err, ErrNotLoaded) {
			t.Errorf("adjust a marked sale: %v, want ErrNotLoaded", err)
		}
		same(t, before, s.state(t))
		if err := v.Reload(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		if st := s.audit(t); st.left(t) != 4 {
			t.Errorf("left is %d, want 4", st.left(t))
		}
		dies(t, s, v, -1, func(context.Context) (int64, error) { return 0, errTest })
		if err := v.Change(await.Context(t), s.item, Change{AddLeft: 3}, s.commits(3, 3)); err != nil {
			t.Fatal(err)
		}
		if err := v.Reload(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		if st := s.audit(t); st.left(t) != 7 {
			t.Errorf("left is %d, want 7", st.left(t))
		}
		// A unit that returns to a marked sale is there after the load.
		dies(t, s, v, 0, func(context.Context) (int64, error) { return 0, errTest })
		s.commit(t)
		s.cancel(r.OrderID)
		wantStatus(t, s.give(t, r), ReleaseDone)
		mustBuy(t, v, s.request("w", "k", 1))
		if st := s.state(t); st.left(t) != 7 {
			t.Errorf("left is %d, want 7", st.left(t))
		}
		wantStatus(t, s.give(t, r), ReleaseRepeated)
	})
}

// TestInventory_Change_WithoutLock: only the holder of the item's lock marks its sale.
func TestInventory_Change_WithoutLock(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		stalled := dead(t, s, 500*time.Millisecond)
		mustBuy(t, v, s.request("u", "k", 1)) // once the lock has expired
		before := s.state(t)
		if err := v.suspend(await.Context(t), stalled, s.item, 1); !errors.Is(err, lock.ErrLost) {
			t.Errorf("suspend without the lock: %v, want lock.ErrLost", err)
		}
		same(t, before, s.state(t))
		// And a holder does not touch another's mark: the outcome of that change is unknown.
		l, err := v.locks.Acquire(await.Context(t), v.keys.lock(s.item))
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.HSet(await.Context(t), v.keys.sale(s.item), "changing", "another:1").Err(); err != nil {
			t.Fatal(err)
		}
		before = s.state(t)
		if err := v.suspend(await.Context(t), l, s.item, 1); !errors.Is(err, ErrNotLoaded) {
			t.Errorf("suspend a marked sale: %v, want ErrNotLoaded", err)
		}
		same(t, before, s.state(t))
		if err := l.Release(await.Context(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestInventory_Change_LoadedMeanwhile: the process that makes a change stalls and loses the
// lock; another loads the sale from the database before the commit.
func TestInventory_Change_LoadedMeanwhile(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, c := range map[string]struct {
			add, sells int64 // sells: units sold meanwhile
			version    int64
			want       int64
		}{
			"Add":             {5, 2, 2, 13},
			"Take":            {-5, 2, 2, 3},
			"TakeWhatIsSold":  {-9, 3, 2, 0}, // the database decides about the orders in the queue
			"VersionsBetween": {5, 2, 3, 13},
			"SaleLost":        {5, 0, 2, 15},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(10, 9), 0)
				heard := make(chan error, 100)
				v := s.inventory(t, Config{OnError: func(err error) { heard <- err }})
				other := s.inventory(t, Config{})
				lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
				if err := v.Change(await.Context(t), s.item, Change{AddLeft: c.add}, func(context.Context) (int64, error) {
					ctx := await.Context(t)
					if err := rdb.Del(ctx, lockKey).Err(); err != nil {
						t.Error(err)
					}
					if c.sells > 0 {
						mustBuy(t, other, s.request("u", "k", c.sells))
					} else if err := rdb.Del(ctx, v.keys.sale(s.item)).Err(); err != nil {
						t.Error(err)
					}
					s.stock(c.add, c.version)
					return c.version, nil
				}); err != nil {
					t.Errorf("change: %v", err)
				}
				if err := v.Reload(await.Context(t), s.item); err != nil {
					if c.want > 0 {
						t.Error(err)
					}
					return
				}
				if st := s.state(t); st.left(t) != max(c.want, 0) {
					t.Errorf("left is %d, want %d", st.left(t), c.want)
				}
			})
		}
	})
}

// TestInventory_Change_RepliesLost cuts the connection at every step.
func TestInventory_Change_RepliesLost(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]*redis.Script{"Suspend": suspendScript, "Adjust": adjustScript} {
		for at, how := range map[string]cutAt{"BeforeRequest": cutBefore, "BeforeReply": cutAfter} {
			t.Run(name+at, func(t *testing.T) {
				t.Parallel()
				redistest.Engines(t, func(t *testing.T, direct *redis.Client) {
					s := newShop(t, direct, open(10, 5), 0)
					p := newProxy(t, direct.Options().Addr, runsOf(script, 2, func(int) cutAt { return how }))
					v := s.inventoryOn(t, p.client(t), newLocks(t, direct, lockConfig), Config{})
					if err := v.Open(await.Context(t), s.item); err != nil {
						t.Fatal(err)
					}
					if err := script.Load(await.Context(t), direct).Err(); err != nil {
						t.Fatal(err)
					}
					if err := v.Change(await.Context(t), s.item, Change{AddLeft: -4}, s.commits(-4, 2)); err != nil {
						t.Errorf("change: %v", err)
					}
					if p.count() != 2 {
						t.Errorf("%d cuts, want 2", p.count())
					}
					if st := s.audit(t); st.left(t) != 6 || st.sale["changing"] != "" || s.source.loads != 1 {
						t.Errorf("after %d loads %v, want 6 left and no mark", s.source.loads, st.sale)
					}
				})
			})
		}
	}
}

// TestInventory_Change_WithoutRedis: Redis goes away while the database commits.
// When it is back, the next buyer finds the change.
func TestInventory_Change_WithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newShop(t, rdb, open(10, 5), 0)
	// Longer than the change retries, and short enough to wait for: it expires after the
	// restart.
	cfg := lockConfig
	cfg.TTL, cfg.ClaimTTL, cfg.Liveness, cfg.CallTimeout = 8*time.Second, 400*time.Millisecond, 300*time.Millisecond, time.Second
	v := s.inventoryOn(t, rdb, newLocks(t, rdb, cfg), Config{HoldLimit: defaultHoldLimit, SettleLimit: defaultSettleLimit})
	mustBuy(t, v, s.request("u", "k", 1))
	killed := false
	await.True(t, "a change to hold the lock", func() bool { // on a busy machine a lock with such times may be lost first
		err := v.Change(await.Context(t), s.item, Change{AddLeft: -4}, func(context.Context) (int64, error) {
			s.stock(-4, 2)
			killed = true
			return 2, server.Kill()
		})
		if killed && err != nil || !killed && !errors.Is(err, ErrUnavailable) {
			t.Fatalf("change: %v", err)
		}
		return killed
	})
	if err := v.Change(await.Context(t), s.item, Change{AddLeft: 1}, func(context.Context) (int64, error) {
		t.Error("committed without a sale to hold")
		return 0, errTest
	}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("change without Redis: %v, want ErrUnavailable", err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "a purchase", func() bool { return buy(t, v, s.request("w", "k", 1)).Err == nil })
	// The change has repeated the drop of the sale, which Redis may execute only now.
	await.True(t, "4 left and no mark", func() bool {
		if err := buy(t, v, s.request("w", "k", 1)).Err; err != nil {
			return false
		}
		sale := rdb.HGetAll(await.Context(t), v.keys.sale(s.item)).Val()
		return sale["left"] == "4" && sale["changing"] == ""
	})
	s.audit(t)
}

// TestInventory_Change_SlowRedis: until a pause is committed, its calls to Redis have a limit of their
// own, which is less than that of the whole change.
func TestInventory_Change_SlowRedis(t *testing.T) {
	t.Parallel()
	for name, loaded := range map[string]bool{"Loaded": true, "BeingLoaded": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				s := newShop(t, rdb, open(10, 5), 0)
				hooked := redis.NewClient(rdb.Options())
				t.Cleanup(func() {
					if err := hooked.Close(); err != nil {
						t.Error(err)
					}
				})
				v := s.inventoryOn(t, hooked, newLocks(t, rdb, lockConfig), Config{HoldLimit: patient})
				if loaded {
					mustBuy(t, v, s.request("u", "k", 1))
				} else { // the lock is taken, and there is no sale
					if _, err := v.locks.Acquire(await.Context(t), v.keys.lock(s.item)); err != nil {
						t.Fatal(err)
					}
				}
				seen := &deadlines{of: v.keys.sale(s.item)}
				hooked.AddHook(seen)
				began, paused := time.Now(), "paused"
				err := v.Change(await.Context(t), s.item, Change{Control: &paused}, func(ctx context.Context) (int64, error) {
					seen.mu.Lock()
					defer seen.mu.Unlock()
					if seen.calls == 0 || seen.without > 0 || seen.latest.After(time.Now().Add(patient*2/5)) {
						t.Errorf("%d calls before the commit, %d without a deadline, the last after %v; want it within %v",
							seen.calls, seen.without, seen.latest.Sub(began), patient*2/5)
					}
					if end, ok := ctx.Deadline(); !ok || end.Before(began.Add(patient)) {
						t.Errorf("the commit may take %v, want %v", end.Sub(began), patient)
					}
					s.stock(0, 2)
					return 2, nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// deadlines is a hook that notes the deadlines of the calls with a key.
type deadlines struct {
	of string

	mu             sync.Mutex
	calls, without int
	latest         time.Time
}

func (d *deadlines) note(ctx context.Context) {
	end, ok := ctx.Deadline()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if !ok {
		d.without++
	}
	if end.After(d.latest) {
		d.latest = end
	}
}

func (d *deadlines) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *deadlines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d *deadlines) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if slices.Contains(cmd.Args(), any(d.of)) {
			d.note(ctx)
		}
		return next(ctx, cmd)
	}
}

// stuck is a client whose calls wait, once the gate is armed, until it is opened or their time is over.
type stuck struct {
	armed    atomic.Bool
	open     chan struct{}
	timedOut atomic.Bool
}

func (g *stuck) wait(ctx context.Context) {
	if !g.armed.Load() {
		return
	}
	select {
	case <-g.open:
	case <-ctx.Done():
		g.timedOut.Store(true)
	}
}

func (g *stuck) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *stuck) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g.wait(ctx)
		return next(ctx, cmds)
	}
}

func (g *stuck) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		g.wait(ctx)
		return next(ctx, cmd)
	}
}

// TestInventory_Change_SlowRelease: a change that is made does not wait for the release of the item's lock while
// Redis does not respond; the lock is released later.
func TestInventory_Change_SlowRelease(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		gate := &stuck{open: make(chan struct{})}
		hooked := redistest.Second(t, rdb)
		hooked.AddHook(gate)
		// The call timeout is the time in which the test has to open the gate.
		locks := newLocks(t, hooked, lock.Config{TTL: limit, ClaimTTL: time.Minute, Liveness: time.Minute, CallTimeout: 20 * time.Second})
		v := s.inventoryOn(t, rdb, locks, Config{})
		paused := "paused"
		err := v.Change(await.Context(t), s.item, Change{Control: &paused}, func(context.Context) (int64, error) {
			gate.armed.Store(true)
			s.stock(0, 2)
			return 2, nil
		})
		close(gate.open)
		if err != nil || gate.timedOut.Load() {
			t.Fatalf("%v; waited for the release: %v", err, gate.timedOut.Load())
		}
		await.True(t, "the lock to be released", func() bool {
			return rdb.Exists(await.Context(t), v.keys.lockKey(s.item)).Val() == 0
		})
	})
}

// TestInventory_Change_WhileSelling: many changes from two processes, while both
// sell and orders are released.
func TestInventory_Change_WhileSelling(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(30, 1), 0)
		processes := []*Inventory{s.inventory(t, Config{LockIdle: time.Nanosecond}), s.inventory(t, Config{LockIdle: time.Nanosecond})}
		if err := processes[0].Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		for i, v := range processes {
			go func() {
				defer func() { done <- struct{}{} }()
				for n := range 60 {
					r := s.request(fmt.Sprintf("p%d-%d", i, n), "k", 1)
					o, err := v.Purchase(await.Context(t), r)
					if err != nil || o.Err != nil && !errors.Is(o.Err, ErrSoldOut) {
						t.Errorf("purchase: %+v, %v", o, err)
					}
				}
			}()
			go func() {
				defer func() { done <- struct{}{} }()
				for n := range 20 {
					add := int64(3 - 4*(n%2)) // 3 more, 1 fewer
					err := v.Change(await.Context(t), s.item, Change{AddLeft: add}, func(context.Context) (version int64, err error) {
						s.source.set(func(src *stored) {
							sale := src.sales[s.item]
							sale.Left += add
							sale.Version++
							src.sales[s.item] = sale
							version = sale.Version
						})
						return version, nil
					})
					if err != nil && !errors.Is(err, ErrStockBelowSold) {
						t.Errorf("change: %v", err)
					}
				}
			}()
		}
		for range 4 {
			<-done
		}
		if st := s.audit(t); s.source.loads != 1 {
			t.Errorf("%d loads, want 1; the sale is %v", s.source.loads, st.sale)
		}
	})
}

// TestInventory_Change_SettledLater: another process has loaded the sale before the commit,
// and the process of the change cannot reach Redis. Once it can, it drops the sale, and the
// next load reads the change.
func TestInventory_Change_SettledLater(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 9), 0)
		p := redistest.NewProxy(t, rdb.Options().Addr)
		away := redis.NewClient(redistest.Options(p.Addr()))
		t.Cleanup(func() {
			if err := away.Close(); err != nil {
				t.Error(err)
			}
		})
		v := s.inventoryOn(t, away, newLocks(t, rdb, lockConfig), Config{SettleLimit: 50 * time.Millisecond}) // it cannot succeed
		other := s.inventory(t, Config{})
		lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
		if err := v.Change(await.Context(t), s.item, Change{AddLeft: 5}, func(context.Context) (int64, error) {
			if err := rdb.Del(await.Context(t), lockKey).Err(); err != nil {
				t.Error(err)
			}
			mustBuy(t, other, s.request("u", "k", 2))
			s.stock(5, 2)
			p.Refuse(true)
			p.Sever()
			return 2, nil
		}); err != nil {
			t.Errorf("change: %v", err)
		}
		if st := s.state(t); st.left(t) != 8 {
			t.Fatalf("left is %d, want 8: the sale was loaded before the commit", st.left(t))
		}
		p.Refuse(false)
		await.True(t, "the sale to be dropped", func() bool { return len(s.state(t).sale) == 0 })
		mustBuy(t, other, s.request("w", "k", 1))
		if st := s.audit(t); st.left(t) != 12 {
			t.Errorf("left is %d, want 12", st.left(t))
		}
	})
}
