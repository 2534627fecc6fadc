package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/lock"
	"flashsale/queue"
)

// TestInventory_Load_SaleDamaged: a sale that misses a field it cannot sell
// without is loaded anew.
func TestInventory_Load_SaleDamaged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, field := range []string{"epoch", "left", "limit", "opens_ms", "closes_ms", "version"} {
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
				mustBuy(t, v, kept) // its outcome was unknown and it is sent again
				st := s.audit(t)
				if st.left(t) != 6 {
					t.Errorf("left is %d, want 6", st.left(t))
				}
			})
		}
	})
}

// TestInventory_Load_UnderLoad loses all that Redis holds of the item while it
// sells, the lock included as a FLUSHALL would, several times.
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
		// A load that is interrupted itself is answered "rebuilding": try again.
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

// TestInventory_Load_Refused: of an order that holds nothing only the key is remembered.
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
			if !pause(ctx, reading) {
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

// TestInventory_Load_Ends: a load that nobody may finish any more stops, with
// the process or with its lock, and the sale stays closed until another loads it.
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
				// The watchdog notices within a second; a process that is kept
				// from running for two more still has its lock.
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
				// A request whose patience ends before it gets to the load begins none.
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

// TestInventory_Load_LockLost: a builder that lost the item's lock changes nothing.
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

// TestInventory_Epoch: state of an earlier epoch is rebuilt, whoever notices.
func TestInventory_Epoch(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		a, b := s.inventory(t, Config{}), s.inventory(t, Config{})
		first := s.request("u", "1", 1)
		mustBuy(t, a, first)
		mustBuy(t, b, s.request("w", "1", 1))
		// Redis falls back to a stale picture, and the database declares it void.
		if err := rdb.HSet(await.Context(t), keys{1}.sale(s.item), "left", 1000, "epoch", 0).Err(); err != nil {
			t.Fatal(err)
		}
		s.source.set(func(src *stored) { src.epoch = 2 })
		mustBuy(t, a, s.request("u", "2", 1))
		mustRefuse(t, a, s.request("u", "3", 1), ErrUserLimit)
		if st := s.state(t); st.sale["epoch"] != "2" || st.left(t) != 7 {
			t.Errorf("epoch %s, %d left, want 2 and 7", st.sale["epoch"], st.left(t))
		}
		// b still carries epoch 1: its script is refused, and it learns.
		if o := buy(t, b, s.request("u", "1", 1)); o.ReplayOf != first.OrderID {
			t.Errorf("replay through the other process: %+v", o)
		}
		mustBuy(t, b, s.request("w", "2", 1))
		mustRefuse(t, b, s.request("w", "3", 1), ErrUserLimit)
		s.audit(t)
	})
}

func TestInventory_Left(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("u", "k", 2))
		got, err := v.Left(await.Context(t), []string{"none-" + s.item, s.item, "none2-" + s.item})
		if err != nil || !slices.Equal(got, []int64{-1, 8, -1}) {
			t.Errorf("Left = %v, %v, want [-1 8 -1]", got, err)
		}
		if got, err := v.Left(await.Context(t), nil); err != nil || len(got) != 0 {
			t.Errorf("Left of nothing = %v, %v", got, err)
		}
		if err := rdb.HSet(await.Context(t), keys{1}.sale(s.item), "left", "many").Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := v.Left(await.Context(t), []string{s.item}); err == nil {
			t.Errorf("Left of a broken sale = %v, want an error", got)
		}
	})
}

// TestInventory_Examine_StopsSales: nothing is sold while an item is examined.
func TestInventory_Examine_StopsSales(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v, other := s.inventory(t, Config{}), s.inventory(t, Config{})
		lockKey, waitersKey := v.locks.GuardKeys(v.keys.lock(s.item))
		results := make(chan Outcome, 2)
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		err := v.Examine(await.Context(t), s.item, func(ctx context.Context, _ *Examined) (bool, error) {
			for i, inv := range []*Inventory{v, other} {
				r := s.request(fmt.Sprintf("u%d", i), "k", 1)
				r.Done = func(o Outcome) { results <- o }
				if err := inv.Submit(r); err != nil {
					t.Error(err)
				}
			}
			await.True(t, "both processes to wait for the lock", func() bool {
				n, err := rdb.ZCard(ctx, waitersKey).Result()
				return err == nil && n == 2
			})
			select {
			case o := <-results:
				t.Errorf("sold an item that is being examined: %+v", o)
			default:
			}
			if st := s.state(t); st.left(t) != 10 {
				t.Errorf("left moved to %d meanwhile", st.left(t))
			}
			return false, errTest
		})
		if !errors.Is(err, errTest) {
			t.Errorf("Examine: %v, want its function's error", err)
		}
		for range 2 {
			select {
			case o := <-results:
				if o != (Outcome{}) {
					t.Errorf("after it: %+v, want accepted", o)
				}
			case <-time.After(limit):
				t.Fatalf("a purchase was not answered; lock %s", lockKey)
			}
		}
		if err := v.Reload(await.Context(t), "none-"+s.item); !errors.Is(err, errNoItem) {
			t.Errorf("Reload of no item: %v, want the source's error", err)
		}
		s.audit(t)
	})
}

// TestInventory_Warm_LongLoad: who warms a large sale waits no longer than asked to. The load
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
	})
}

// TestInventory_Change_LongLoad: taking units back loads a sale that takes longer to
// load than a change may last, and the change has its own time after it.
func TestInventory_Change_LongLoad(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{LookLimit: defaultLookLimit})
		s.source.set(func(f *stored) {
			f.before = func(ctx context.Context) error {
				if !pause(ctx, defaultLookLimit+100*time.Millisecond) {
					return context.Cause(ctx)
				}
				return nil
			}
		})
		err := v.Change(await.Context(t), s.item, Change{AddLeft: -1}, func(ctx context.Context) (int64, error) {
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > defaultLookLimit {
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

func TestNew_Errors(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, shared *redis.Client) {
		rdb := shared
		if strings.HasSuffix(t.Name(), "/redis") {
			// The layout is recorded for a whole Redis, so it takes one of its own.
			rdb = redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
			t.Cleanup(func() {
				if err := rdb.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		s := newShop(t, rdb, open(1, 1), 0)
		locks := newLocks(t, rdb, lockConfig)
		with := func(cfg Config, queues int) error {
			list := make([]*queue.Queue, queues)
			for i := range list {
				list[i] = s.queue
			}
			v, err := New(await.Context(t), rdb, locks, list, s.source, cfg)
			if err == nil {
				err = v.Close(await.Context(t))
			}
			return err
		}
		for name, c := range map[string]struct {
			cfg    Config
			queues int
		}{
			"queues":       {Config{Partitions: 2}, 1},
			"partitions":   {Config{Partitions: 1025}, 1025},
			"negative":     {Config{Partitions: -1}, 1},
			"batch":        {Config{MaxBatch: 513}, 1},
			"pending":      {Config{MaxPending: -1}, 1},
			"slice":        {Config{Slice: -1}, 1},
			"patience":     {Config{Patience: -time.Second}, 1},
			"mark's life":  {Config{MarkLife: -1}, 1},
			"other number": {Config{Partitions: 3}, 1},
		} {
			if err := with(c.cfg, c.queues); err == nil || errors.Is(err, ErrPartitions) {
				t.Errorf("%s: %v, want a refusal of the configuration", name, err)
			}
		}
		if n, err := rdb.Exists(await.Context(t), partitionsKey).Result(); err != nil || n != 0 {
			t.Errorf("a refused configuration recorded its partitions (%d, %v)", n, err)
		}
		if err := with(Config{Partitions: 4}, 4); err != nil {
			t.Fatal(err)
		}
		if err := with(Config{}, 1); !errors.Is(err, ErrPartitions) {
			t.Errorf("1 partition where 4 are recorded: %v, want ErrPartitions", err)
		}
		if err := with(Config{Partitions: 4}, 4); err != nil {
			t.Errorf("the recorded number again: %v", err)
		}
		s.source.set(func(src *stored) { src.err = errTest })
		if err := with(Config{Partitions: 4}, 4); !errors.Is(err, errTest) {
			t.Errorf("database away: %v, want its error", err)
		}
	})
}

func TestKeys(t *testing.T) {
	t.Parallel()
	seen := map[int]int{}
	k := keys{16}
	for i := range 2000 {
		item := fmt.Sprintf("item-%d", i)
		p := k.partition(item)
		if p < 0 || p >= 16 {
			t.Fatalf("partition of %s is %d", item, p)
		}
		seen[p]++
		want := fmt.Sprintf("fs:{p%d}:", p)
		for _, key := range []string{k.lock(item), k.sale(item), k.idempotency(item), k.buyers(item), QueuePrefix(p)} {
			if !strings.HasPrefix(key, want) {
				t.Fatalf("key %s of %s is outside its partition %s", key, item, want)
			}
		}
	}
	if len(seen) != 16 {
		t.Errorf("2,000 items are in %d of 16 partitions", len(seen))
	}
	for p, n := range seen {
		if n < 60 || n > 250 {
			t.Errorf("partition %d has %d of 2,000 items", p, n)
		}
	}
}

// TestInventory_Partitions sells items of several partitions, each into its own queue.
func TestInventory_Partitions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	s := newShop(t, rdb, open(5, 5), 0)
	var queues []*queue.Queue
	for p := range 3 {
		q, err := queue.New(rdb, queue.Config{Prefix: QueuePrefix(p)})
		if err != nil {
			t.Fatal(err)
		}
		queues = append(queues, q)
	}
	locks := newLocks(t, rdb, lockConfig)
	v, err := New(await.Context(t), rdb, locks, queues, s.source, Config{Partitions: 3, Patience: patient})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]int, 3)
	for i := range 12 {
		item := fmt.Sprintf("%s-%d", s.item, i)
		s.source.set(func(src *stored) { src.sales[item] = open(1, 1) })
		want[v.Partition(item)]++
		r := s.request("u", "k", 1)
		r.ItemID = item
		r.Payload = string(payload(r))
		mustBuy(t, v, r)
	}
	for p, q := range queues {
		st, err := q.Stats(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		if st.Ready != want[p] {
			t.Errorf("partition %d has %d orders, want %d", p, st.Ready, want[p])
		}
	}
	if slices.Contains(want, 0) {
		t.Errorf("items per partition: %v; the test wants each used", want)
	}
	if err := v.Close(await.Context(t)); err != nil {
		t.Error(err)
	}
}

func FuzzParsePurchaseReply(f *testing.F) {
	f.Add("ok", int64(1), "AR", int64(5), "1.2", int64(3), int64(4), int64(5), int64(6), "order", 13)
	f.Add("lost", int64(0), "", int64(0), "", int64(0), int64(0), int64(0), int64(0), "", 2)
	f.Fuzz(func(t *testing.T, status string, waiting int64, verdicts string, left int64, version string, now, opens, closes, sequence int64, id string, n int) {
		full := []any{status, waiting, verdicts, left, version, now, opens, closes, sequence, int64(2), int64(-1), "keys", id}
		// A reply cut short, and with its values in the wrong places.
		for _, list := range [][]any{full[:min(max(n, 0), len(full))], {id, full}, append(slices.Clone(full[1:]), full[0]), {nil, nil}} {
			r, err := parsePurchaseReply(list)
			if err == nil && r.status == "ok" && len(list) < 12 {
				t.Errorf("%v was taken for a whole reply", list)
			}
		}
		r, err := parsePurchaseReply(full)
		if err != nil {
			t.Fatal(err)
		}
		if r.status != status || r.waiting != waiting {
			t.Errorf("got %+v", r)
		}
		if status == "ok" && (r.verdicts != verdicts || r.left != left || r.version != version || r.nowMS != now || r.opensMS != opens || r.closesMS != closes || r.sequence != sequence || r.limit != 2 || r.accepted != -1 || r.more != "keys" || len(r.replayed) != 1) {
			t.Errorf("got %+v", r)
		}
		if _, err := parsePurchaseReply(id); err == nil {
			t.Error("a string was taken for a reply")
		}
	})
}

// TestSeller_deliver_Malformed: a reply that cannot be read whole answers nobody.
func TestSeller_deliver_Malformed(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(1, 1), 0)
	sel := newSeller(s.inventory(t, Config{}), s.item)
	for name, reply := range map[string]purchaseReply{
		"too few verdicts":    {verdicts: "A"},
		"too many verdicts":   {verdicts: "AAA"},
		"replay without id":   {verdicts: "AR"},
		"id without a replay": {verdicts: "AA", replayed: []any{"x"}},
	} {
		batch := []*Request{s.request("a", "k", 1), s.request("b", "k", 1)}
		for _, r := range batch {
			r.Done = func(o Outcome) { t.Errorf("%s: answered %+v", name, o) }
		}
		if err := sel.deliver(batch, &reply); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var got Outcome
	r := s.request("a", "k", 1)
	r.Done = func(o Outcome) { got = o }
	if err := sel.deliver([]*Request{r}, &purchaseReply{verdicts: "?"}); err != nil || got.Err == nil {
		t.Errorf("an unknown verdict: %+v, %v, want an error as the outcome", got, err)
	}
}

// TestInventory_Load_Dropped: a sale that is dropped while it is loaded is loaded
// from what the database says after that, and given up when that does not end.
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
				return Distrust(ctx, rdb, 1, []string{s.item})
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

// TestUnload: a loaded sale is loaded anew, and a load under way is left alone.
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

// sequenceBlock is how far a build's numbers begin above the highest known, if the clock
// was set back.
const sequenceBlock = 1 << 20

// TestInventory_Sequence: each script that takes or returns units counts the sale
// up, payloads carry the count, and a build begins above all that may have been
// handed out.
func TestInventory_Sequence(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		sale := open(10, 5)
		sale.Sequence = 7 << 50 // the server's clock was set back: it is behind that
		s := newShop(t, rdb, sale, 0)
		asked := 0
		v := s.inventory(t, Config{Observe: Observers{OnLoss: func(context.Context, int64) { asked++ }}.For})
		sequence := func() int64 {
			t.Helper()
			n, err := strconv.ParseInt(s.state(t).sale["sequence"], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		r := s.request("a", "k", 1)
		mustBuy(t, v, r)
		first := sequence()
		if first != 7<<50+sequenceBlock+1 || asked != 0 {
			t.Fatalf("sequence %d after the first purchase, asked %d times", first, asked)
		}
		body, err := rdb.HGet(await.Context(t), s.queue.EnqueueKeys()[3], r.OrderID).Result()
		if want := fmt.Sprintf("%s\t1.%d", r.Payload, first); err != nil || body != want {
			t.Errorf("payload %q, %v, want %q", body, err, want)
		}
		mustBuy(t, v, r) // a repeat takes nothing
		if got := sequence(); got != first {
			t.Errorf("sequence %d after a repeat, want %d", got, first)
		}
		_, reached, err := Release(await.Context(t), rdb, 1, 1, s.item, released(r))
		if err != nil || reached != first+1 || sequence() != reached {
			t.Errorf("release: sequence %d, %v, and the sale stands at %d, want %d", reached, err, sequence(), first+1)
		}
		mustBuy(t, v, s.request("b", "k", 1))
		second := sequence()
		if second != first+2 {
			t.Errorf("sequence %d, want %d", second, first+2)
		}
		// Redis comes back with an older sale.
		if err := rdb.HSet(await.Context(t), v.keys.sale(s.item), "sequence", second-1).Err(); err != nil {
			t.Fatal(err)
		}
		s.source.set(func(s *stored) {
			for item, sale := range s.sales {
				sale.Sequence = 0 // and the database has no row of it
				s.sales[item] = sale
			}
		})
		mustBuy(t, v, s.request("c", "k", 1))
		if got := sequence(); got != second+sequenceBlock+1 || asked != 1 {
			t.Errorf("sequence %d after the loss, want %d; asked %d times, want once", got, second+sequenceBlock+1, asked)
		}
		mustBuy(t, v, s.request("d", "k", 1))
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
}
