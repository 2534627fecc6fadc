package inventory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
	"flashsale/lock"
)

// TestInventory_Load_SaleDamaged: a sale is loaded again if a required field is missing.
func TestInventory_Load_SaleDamaged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, field := range []string{"epoch", "left", "per_user_limit", "opens_ms", "closes_ms", "version"} {
			t.Run(field, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(10, 2), 0)
				v := s.inventory(t, Config{})
				mustBuy(t, v, s.request("a", "k", 2))
				if n, err := rdb.HDel(await.Context(t), v.keys.sale(s.item), field).Result(); err != nil || n != 1 {
					t.Fatalf("deleted %d fields, %v", n, err)
				}
				mustBuy(t, v, s.request("b", "k", 1))
				left, err := v.Left(await.Context(t), []string{s.item})
				if err != nil || left[0] != 7 {
					t.Errorf("left %v, %v, want 7", left, err)
				}
			})
		}
	})
}

// TestInventory_Load_BuyerDamaged: a sale is loaded again if a purchase finds a buyer's value
// that it cannot read, such as one of an older version of the program.
func TestInventory_Load_BuyerDamaged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, value := range []string{"2", "", "many 2:x k", "2 x k", "2 2:x"} {
			t.Run(value, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(10, 2), 0)
				v := s.inventory(t, Config{})
				first := s.request("a", "k", 1)
				mustBuy(t, v, first)
				if err := rdb.HSet(await.Context(t), v.keys.buyers(s.item), "a", value).Err(); err != nil {
					t.Fatal(err)
				}
				if o := buy(t, v, s.request("a", "k", 1)); o != (Outcome{ReplayOf: first.OrderID}) {
					t.Errorf("the same request again: %+v, want order %s", o, first.OrderID)
				}
				mustRefuse(t, v, s.request("a", "k2", 2), ErrUserLimit)
				if st := s.audit(t); st.left(t) != 9 {
					t.Errorf("left is %d, want 9", st.left(t))
				}
			})
		}
	})
}

// TestPurchase_FurtherOrders: a buyer's orders after the first are found under their keys, and
// count towards the limit, in one batch and in several.
func TestPurchase_FurtherOrders(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(1000, 5), 0)
		v := s.inventory(t, Config{})
		l, err := v.locks.Acquire(await.Context(t), v.keys.lock(s.item))
		if err != nil {
			t.Fatal(err)
		}
		if err := v.load(await.Context(t), l, s.item); err != nil {
			t.Fatal(err)
		}
		send := func(want string, requests ...*Request) {
			t.Helper()
			taskID, err := accepted.NewTaskID()
			if err != nil {
				t.Fatal(err)
			}
			name(requests, taskID)
			if got := sendAs(t, v, s, l.GuardValue(), l.Fence(), requests...).verdicts; got != want {
				t.Errorf("verdicts %s, want %s", got, want)
			}
		}
		// A repeat, another quantity under the same key, a further order, and one above the limit.
		send("ARKAAL", s.request("a", "k1", 1), s.request("a", "k1", 1), s.request("a", "k1", 2), s.request("b", "k1", 5),
			s.request("a", "k2", 2), s.request("a", "k3", 3))
		send("RRKALL", s.request("a", "k1", 1), s.request("a", "k2", 2), s.request("a", "k2", 1), s.request("a", "k3", 2),
			s.request("a", "k4", 1), s.request("b", "k2", 1))
		send("RRR", s.request("a", "k3", 2), s.request("a", "k1", 1), s.request("b", "k1", 5))
		// More buyers than the script passes to one command.
		const many = 150
		crowd := func(key string) (all []*Request) {
			for i := range many {
				all = append(all, s.request(fmt.Sprint("u", i), key, 1))
			}
			return all
		}
		for _, key := range []string{"k1", "k2"} {
			send(strings.Repeat("A", many), crowd(key)...)
		}
		send(strings.Repeat("R", many), crowd("k2")...)
		if st := s.audit(t); st.left(t) != 990-2*many {
			t.Errorf("left is %d, want %d", st.left(t), 990-2*many)
		}
	})
}

func TestInventory_Load_SaleLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		k := keys{1}
		for name, lost := range map[string]func(item string) []string{
			"Everything": func(item string) []string {
				return []string{k.sale(item), k.idempotency(item), k.buyers(item)}
			},
			"SaleOnly": func(item string) []string { return []string{k.sale(item)} },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(10, 2), 0)
				v := s.inventory(t, Config{})
				kept := s.request("a", "k", 2)
				mustBuy(t, v, kept)
				mustBuy(t, v, s.request("b", "k", 1))
				if err := rdb.Del(await.Context(t), lost(s.item)...).Err(); err != nil {
					t.Fatal(err)
				}
				if o := buy(t, v, s.request("a", "k", 2)); o != (Outcome{ReplayOf: kept.OrderID}) {
					t.Errorf("replay after the loss: %+v, want order %s", o, kept.OrderID)
				}
				mustRefuse(t, v, s.request("a", "k", 1), ErrKeyReused)
				mustRefuse(t, v, s.request("a", "k2", 1), ErrUserLimit)
				mustRefuse(t, v, s.request("b", "k2", 2), ErrUserLimit)
				mustBuy(t, v, s.request("b", "k3", 1))
				st := s.audit(t)
				if st.left(t) != 6 {
					t.Errorf("left is %d, want 6", st.left(t))
				}
			})
		}
	})
}

// TestInventory_Load_UnderLoad deletes everything that Redis holds of the item while it is
// sold, several times, also the lock, as FLUSHALL would.
func TestInventory_Load_UnderLoad(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s, k := newShop(t, rdb, open(200, 1), 0), keys{1}
		batches, due := 0, make(chan struct{}, 1)
		v := s.inventory(t, Config{MaxBatch: 8, OnBatch: func(int, time.Duration) {
			if batches++; batches%6 == 0 { // one seller, so one caller
				select {
				case due <- struct{}{}:
				default:
				}
			}
		}})
		var requests []*Request
		for i := range 400 {
			requests = append(requests, s.request(fmt.Sprintf("u%d", i), "k", 1))
		}
		lockKey, waitersKey := v.locks.GuardKeys(k.lock(s.item))
		stop, lost := make(chan struct{}), make(chan int)
		go func() {
			for n := 0; ; {
				select {
				case <-stop:
					lost <- n
					return
				case <-due:
				}
				deleted, err := rdb.Del(context.WithoutCancel(t.Context()), lockKey, waitersKey, lockKey+":seen", lockKey+":fence",
					k.sale(s.item), k.idempotency(s.item), k.buyers(s.item)).Result()
				if err != nil {
					t.Error(err)
				}
				if deleted >= 3 {
					n++
				}
			}
		}()
		out := outcomes(t, v, requests)
		// A request during an interrupted load is answered "rebuilding" and repeated.
		for i, o := range out {
			for errors.Is(o.Err, ErrRebuilding) {
				o = buy(t, v, requests[i])
			}
			out[i] = o
		}
		close(stop)
		if n := <-lost; n < 3 {
			t.Errorf("the sale was lost %d times, want a few", n)
		}
		wantTally(t, out, map[string]int{"accepted": 200, ErrSoldOut.Error(): 200})
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		s.audit(t)
	})
}

func TestInventory_Load_Pages(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, orders := range []int{0, 1, loadPage - 1, loadPage, loadPage + 1, 2*loadPage + 7} {
			t.Run(fmt.Sprint(orders), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(10_000, 2), 0)
				for i := range orders {
					s.source.past[s.item] = append(s.source.past[s.item], Holding{
						Buyer: fmt.Sprintf("u%d", i), IdempotencyKey: "k", OrderID: fmt.Sprintf("o%d", i), Quantity: 2, Counts: true,
					})
				}
				v := s.inventory(t, Config{})
				if err := v.Open(await.Context(t), s.item); err != nil {
					t.Fatal(err)
				}
				st := s.state(t)
				if len(st.idempotency) != orders || len(st.buyers) != orders || st.left(t) != int64(10_000-2*orders) {
					t.Fatalf("%d keys, %d buyers, %d left after loading %d orders of 2", len(st.idempotency), len(st.buyers), st.left(t), orders)
				}
				for i := range orders {
					if st.idempotency[fmt.Sprintf("u%d k", i)] != fmt.Sprintf("2:o%d", i) || st.buyers[fmt.Sprintf("u%d", i)] != "2" {
						t.Fatalf("order %d is remembered as %q, count %q", i, st.idempotency[fmt.Sprintf("u%d k", i)], st.buyers[fmt.Sprintf("u%d", i)])
					}
				}
			})
		}
	})
}

// TestInventory_Load_Refused: of an order that does not count, only the key is stored.
func TestInventory_Load_Refused(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		s.source.past[s.item] = []Holding{
			{Buyer: "u", IdempotencyKey: "refused", OrderID: "o1", Quantity: 2},
			{Buyer: "u", IdempotencyKey: "held", OrderID: "o2", Quantity: 1, Counts: true},
		}
		v := s.inventory(t, Config{})
		for key, q := range map[string]int64{"refused": 2, "held": 1} {
			if o := buy(t, v, s.request("u", key, q)); o.Err != nil || o.ReplayOf == "" {
				t.Errorf("key %s: %+v, want a replay", key, o)
			}
		}
		mustBuy(t, v, s.request("u", "new", 1))
		mustRefuse(t, v, s.request("u", "more", 1), ErrUserLimit)
		if left := s.state(t); left.left(t) != 8 {
			t.Errorf("left is %d, want 8", left.left(t))
		}
	})
}

func TestInventory_Load_SourceFails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		s.source.set(func(src *stored) { src.err = errTest })
		mustRefuse(t, v, s.request("u", "k", 1), ErrRebuilding)
		if err := v.Open(await.Context(t), s.item); !errors.Is(err, errTest) {
			t.Errorf("Warm: %v, want the source's error", err)
		}
		if st := s.state(t); len(st.sale) != 0 || len(st.queue) != 0 {
			t.Errorf("a failed load left %+v", st)
		}
		s.source.set(func(src *stored) { src.err = nil })
		mustBuy(t, v, s.request("u", "k", 1))
		s.audit(t)
	})
}

// TestInventory_Load_LongerThanPatience: a sale whose orders take longer to
// read than one request may wait must still open in the end (P8, P10).
func TestInventory_Load_LongerThanPatience(t *testing.T) {
	t.Parallel()
	const patience, reading = 100 * time.Millisecond, 400 * time.Millisecond
	s := newShop(t, redistest.Embedded(t), open(10, 1), 0)
	v := s.inventory(t, Config{Patience: patience})
	s.source.set(func(src *stored) {
		src.before = func(ctx context.Context) error {
			if !pause.For(ctx, reading) {
				return context.Cause(ctx)
			}
			return nil
		}
	})
	end := time.Now().Add(limit)
	for tries := 1; ; tries++ {
		o := buy(t, v, s.request("u", "k", 1))
		if o.Err == nil {
			break
		}
		if !errors.Is(o.Err, ErrRebuilding) && !errors.Is(o.Err, ErrOverloaded) && !errors.Is(o.Err, ErrUnavailable) {
			t.Fatalf("outcome %+v while the sale is loaded", o)
		}
		if time.Now().After(end) {
			t.Fatalf("the sale takes %v to load and patience is %v: after %d tries and %d loads begun it is still closed: %v",
				reading, patience, tries, s.source.loads, o.Err)
		}
	}
	s.audit(t)
}

// TestInventory_Load_Ends: a load stops with its process or its lock, and the sale stays
// closed until another process loads it.
func TestInventory_Load_Ends(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for name, strike := range map[string]func(t *testing.T, s *shop, v *Inventory){
			"Close": func(t *testing.T, _ *shop, v *Inventory) {
				if err := v.Close(await.Context(t)); err != nil {
					t.Errorf("close: %v", err)
				}
			},
			"LockTaken": func(t *testing.T, s *shop, v *Inventory) {
				lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
				if err := rdb.Set(await.Context(t), lockKey, "stranger:1", 500*time.Millisecond).Err(); err != nil {
					t.Error(err)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(10, 1), 0)
				cfg := lockConfig
				// The watchdog notices within a second; a process that does not run for two
				// more seconds still has its lock.
				cfg.TTL, cfg.ClaimTTL = 3*time.Second, 3*time.Second
				v := s.inventoryOn(t, rdb, newLocks(t, rdb, cfg), Config{Patience: 50 * time.Millisecond})
				begun, ended := make(chan struct{}, 100), make(chan struct{}, 100)
				s.source.set(func(src *stored) {
					src.before = func(ctx context.Context) error {
						begun <- struct{}{}
						<-ctx.Done()
						ended <- struct{}{}
						return context.Cause(ctx)
					}
				})
				// A request whose patience ends before the load begins does not begin one.
				await.True(t, "the load", func() bool {
					mustRefuse(t, v, s.request("u", "k", 1), ErrRebuilding)
					return len(begun) > 0
				})
				mustRefuse(t, v, s.request("w", "k", 1), ErrRebuilding)
				if len(begun) != 1 || len(ended) != 0 {
					t.Errorf("%d loads begun, %d ended: requests must join the load under way", len(begun), len(ended))
				}
				strike(t, s, v)
				select {
				case <-ended:
				case <-time.After(limit):
					t.Fatal("the load went on")
				}
				s.source.set(func(src *stored) { src.before = nil })
				other := s.inventory(t, Config{})
				mustBuy(t, other, s.request("u", "k", 1))
				s.audit(t)
			})
		}
	})
}

// TestInventory_Load_LockLost: a load that lost the item's lock changes nothing.
func TestInventory_Load_LockLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		stalled := dead(t, s, 500*time.Millisecond)
		mustBuy(t, v, s.request("u", "k", 1))
		before := s.state(t)
		if err := v.load(await.Context(t), stalled, s.item); !errors.Is(err, lock.ErrLost) {
			t.Errorf("load without the lock: %v, want lock.ErrLost", err)
		}
		for _, step := range [][]any{
			{"begin", 1}, {"orders", 1, "hash", "x", "k", 1, "o", "1"}, {"open", 1, 1, 999, 1, 0, 0, "open", 1},
		} {
			name, ok := step[0].(string)
			if !ok {
				t.Fatal(step)
			}
			if err := v.loadStep(await.Context(t), stalled, s.item, name, step[1:]...); !errors.Is(err, lock.ErrLost) {
				t.Errorf("step %s without the lock: %v, want lock.ErrLost", name, err)
			}
		}
		same(t, before, s.state(t))
	})
}

// TestReloadLimit: a rebuild gives a sale the time that its orders need.
func TestReloadLimit(t *testing.T) {
	t.Parallel()
	if got := reloadLimit(Loadable{Orders: 10_000_000}, Loadable{Orders: 1}); got < 10*time.Minute {
		t.Errorf("10 million orders may take %v, want 10 minutes or more", got)
	}
	if got := reloadLimit(); got < time.Minute {
		t.Errorf("a small sale may take %v, want a minute or more", got)
	}
}

// TestInventory_Warm_LongLoad: a caller of Warm waits no longer than its context. The load
// goes on, and a second call joins it.
func TestInventory_Warm_LongLoad(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		reads, read := make(chan struct{}), make(chan struct{})
		s.source.set(func(f *stored) {
			f.before = hook(func() { reads <- struct{}{}; <-read })
		})
		ctx, cancel := context.WithCancelCause(await.Context(t))
		first := make(chan error, 1)
		go func() { first <- v.Warm(ctx, s.item) }()
		<-reads
		cancel(errTest)
		if err := <-first; !errors.Is(err, ErrRebuilding) || !errors.Is(err, errTest) {
			t.Errorf("after its time: %v, want ErrRebuilding and the cause", err)
		}
		second := make(chan error, 1)
		go func() { second <- v.Warm(await.Context(t), s.item) }()
		close(read)
		if err := <-second; err != nil {
			t.Errorf("a second call: %v", err)
		}
		if left, err := v.Left(await.Context(t), []string{s.item}); err != nil || left[0] != 10 {
			t.Errorf("%v left, %v, want 10", left, err)
		}
		if err := v.Warm(await.Context(t), s.item); err != nil {
			t.Errorf("a loaded sale: %v", err)
		}
		s.source.set(func(f *stored) { f.before = nil })
		if n := s.source.loads; n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
		s.audit(t)
		if err := v.Close(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		if err := Unload(await.Context(t), rdb, 1, s.item); err != nil {
			t.Fatal(err)
		}
		if err := v.Warm(await.Context(t), s.item); !errors.Is(err, ErrUnavailable) {
			t.Errorf("after Close: %v, want ErrUnavailable", err)
		}
	})
}

// TestInventory_Change_LongLoad: a change that takes units back loads a sale that takes longer
// to load than a change may last, and has its full time afterwards.
func TestInventory_Change_LongLoad(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{HoldLimit: defaultHoldLimit})
		s.source.set(func(f *stored) {
			f.before = func(ctx context.Context) error {
				if !pause.For(ctx, defaultHoldLimit+100*time.Millisecond) {
					return context.Cause(ctx)
				}
				return nil
			}
		})
		err := v.Change(await.Context(t), s.item, Change{AddLeft: -1}, func(ctx context.Context) (int64, error) {
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > defaultHoldLimit {
				t.Errorf("the change may last until %v", end)
			}
			return 0, fmt.Errorf("%w: %w", ErrUnchanged, errTest)
		})
		if !errors.Is(err, errTest) {
			t.Errorf("change: %v, want its function's error", err)
		}
		s.source.set(func(f *stored) { f.before = nil })
		s.audit(t)
	})
}

// TestInventory_Load_Dropped: a sale that is dropped while it is loaded is loaded again from
// the database's later state. A sale that is dropped again and again is given up.
func TestInventory_Load_Dropped(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		drops := 2
		s.source.set(func(f *stored) {
			f.after = func(ctx context.Context) error {
				if drops == 0 {
					return nil
				}
				drops--
				return Invalidate(ctx, rdb, 1, []string{s.item})
			}
		})
		mustBuy(t, v, s.request("u", "k", 1))
		if s.source.loads != 3 || drops != 0 {
			t.Errorf("%d loads, %d drops left", s.source.loads, drops)
		}
		if st := s.audit(t); st.left(t) != 9 {
			t.Errorf("left is %d, want 9", st.left(t))
		}
		if left, err := rdb.HGet(await.Context(t), v.keys.sale(s.item), "building").Result(); !errors.Is(err, redis.Nil) {
			t.Errorf("the sale is still being built: %q, %v", left, err)
		}
		drops = 1000
		err := v.Examine(await.Context(t), s.item, func(context.Context, *Examined) (bool, error) { return true, nil })
		if !errors.Is(err, ErrRebuilding) {
			t.Errorf("dropped without end: %v", err)
		}
		if live, err := v.Live(await.Context(t), s.item); err != nil || live.Loaded {
			t.Errorf("after it: %+v, %v", live, err)
		}
		drops = 0
		mustBuy(t, v, s.request("w", "k", 1))
		s.audit(t)
	})
}

// TestUnload: a loaded sale is loaded again, and a load under way goes on.
func TestUnload(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		s.source.set(func(f *stored) {
			f.after = func(ctx context.Context) error { return Unload(ctx, rdb, 1, s.item) }
		})
		for i, user := range []string{"u", "w"} {
			mustBuy(t, v, s.request(user, "k", 1))
			if s.source.loads != i+1 {
				t.Errorf("%d loads, want %d", s.source.loads, i+1)
			}
			if err := Unload(await.Context(t), rdb, 1, s.item); err != nil {
				t.Fatal(err)
			}
			if live, err := v.Live(await.Context(t), s.item); err != nil || live.Loaded {
				t.Errorf("unloaded: %+v, %v", live, err)
			}
		}
		mustBuy(t, v, s.request("x", "k", 1))
		if st := s.audit(t); st.left(t) != 7 {
			t.Errorf("left is %d, want 7", st.left(t))
		}
	})
}

// TestLoadScript_LateSteps: a page that is sent twice counts once, as does an order that is twice in
// it, and a later build keeps nothing of an earlier one and ignores its steps.
func TestLoadScript_LateSteps(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventory(t, Config{})
		l, err := v.locks.Acquire(await.Context(t), v.keys.lock(s.item))
		if err != nil {
			t.Fatal(err)
		}
		step := func(want error, step, build string, args ...any) {
			t.Helper()
			if err := v.loadStep(await.Context(t), l, s.item, step, append([]any{build}, args...)...); !errors.Is(err, want) {
				t.Errorf("%s of build %s: %v, want %v", step, build, err, want)
			}
		}
		page := withKeyHashes([]any{"u", "k 1", 1, "id1", "1", "u", "k2", 2, "id2", "1", "u", "k 1", 1, "id1", "1", "u", "k2", 2, "id2", "1"})
		step(nil, "begin", "1")
		for range 2 {
			step(nil, "orders", "1", page...)
		}
		if st := s.state(t); st.buyers["u"] != "3" || len(st.idempotency) != 2 {
			t.Errorf("buyers %v, orders %v, want 3 units in 2 orders", st.buyers, st.idempotency)
		}
		step(nil, "begin", "2")
		step(errDropped, "orders", "1", page...)
		if st := s.state(t); len(st.buyers)+len(st.idempotency)+len(st.accepted) != 0 {
			t.Errorf("the second build has %v, %v and %v of the first", st.buyers, st.idempotency, st.accepted)
		}
		step(nil, "open", "2", 1, 10, 5, 0, 0, "open", 1, 0, "channel", s.item)
		if fence := s.state(t).sale["fence"]; fence != fmt.Sprint(l.Fence()) {
			t.Errorf("fence %s, want %d", fence, l.Fence())
		}
	})
}
