package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
	"flashsale/lock"
)

var errTest = errors.New("the test ended it")

func withCause(t testing.TB) (context.Context, context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(await.Context(t))
	t.Cleanup(func() { cancel(nil) })
	return ctx, cancel
}

// TestInventory_TwoProcesses: two inventories, as in two processes, sell exactly the stock of
// one item, and each sells a share.
func TestInventory_TwoProcesses(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		// Each process has buyers for the whole stock.
		const stock, buyersEach, parallel = 800, 900, 30
		s := newShop(t, rdb, open(stock, 1), 0)
		type process struct {
			v        *Inventory
			accepted atomic.Int64
			soldOut  atomic.Int64
		}
		var processes [2]process
		for i := range processes {
			processes[i].v = s.inventoryOn(t, rdb, newLocks(t, rdb, lockConfig), Config{MaxBatch: 10})
			mustBuy(t, processes[i].v, s.request(fmt.Sprintf("first%d", i), "k", 1))
		}
		ctx := await.Context(t)
		var wg sync.WaitGroup
		for i := range processes {
			p := &processes[i]
			var next atomic.Int64
			for range parallel {
				wg.Go(func() {
					for {
						n := next.Add(1)
						if n > buyersEach {
							return
						}
						o, err := p.v.Purchase(ctx, s.request(fmt.Sprintf("p%d-%d", i, n), "k", 1))
						switch {
						case err == nil && o == Outcome{}:
							p.accepted.Add(1)
						case err == nil && errors.Is(o.Err, ErrSoldOut):
							p.soldOut.Add(1)
						default:
							t.Errorf("outcome %+v, %v", o, err)
						}
					}
				})
			}
		}
		wg.Wait()
		a, b := processes[0].accepted.Load(), processes[1].accepted.Load()
		if a+b+2 != stock || processes[0].soldOut.Load()+processes[1].soldOut.Load() != 2*buyersEach-(stock-2) {
			t.Errorf("%d and %d sold of %d", a, b, stock)
		}
		if a < stock/10 || b < stock/10 {
			t.Errorf("shares are %d and %d: one process was kept out", a, b)
		}
		st := s.audit(t)
		if st.left(t) != 0 {
			t.Errorf("left is %d, want 0", st.left(t))
		}
	})
}

// sendAs runs the purchase script as the holder of l, whether or not it still is.
func sendAs(t *testing.T, v *Inventory, s *shop, value string, fence int64, requests ...*Request) purchaseReply {
	t.Helper()
	keys := newSeller(v, s.item).keys
	parcel := requests[0].OrderID
	if uuid.Validate(parcel) == nil {
		parcel = accepted.TaskOf(parcel)
	}
	args := []any{value, fence, v.epoch.Load(), s.queue.MaxLength(), 0, len(requests), appendRecords(nil, requests),
		appendKeyHashes(nil, requests), 0, "", 0, parcel, appendLines(nil, requests)}
	values := appendValues(nil, requests)
	for i, r := range requests {
		args = append(args, r.Buyer, values[i])
	}
	for _, r := range requests {
		args = append(args, r.Quantity)
	}
	res, err := purchaseScript.Run(await.Context(t), s.rdb, keys, args...).Result()
	if err != nil {
		t.Fatal(err)
	}
	reply, err := parsePurchaseReply(res)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// dead returns a lock of the item whose holder has stalled: it is not renewed. On a busy
// machine a grant may reach its holder after the TTL; the lock is then acquired again.
func dead(t *testing.T, s *shop, ttl time.Duration) *lock.Lock {
	t.Helper()
	gone := redistest.Second(t, s.rdb)
	locks := newLocks(t, gone, lock.Config{TTL: ttl, ClaimTTL: ttl, Liveness: 10 * time.Millisecond, CallTimeout: limit})
	l, err := locks.Acquire(await.Context(t), keys{1}.lock(s.item))
	for errors.Is(err, lock.ErrLost) && t.Context().Err() == nil {
		l, err = locks.Acquire(await.Context(t), keys{1}.lock(s.item))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPurchaseScript_Lost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		stalled := dead(t, s, 300*time.Millisecond)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("b", "k", 1)) // waits until the stalled holder's lock expires
		release := stall(t, v, s.request("b", "k2", 1))
		defer release()
		before := s.state(t)
		// B holds the lock now, and A wakes up.
		reply := sendAs(t, v, s, stalled.GuardValue(), stalled.Fence(), s.request("a", "k", 1), s.request("a", "k2", 2))
		if reply.status != "lost" {
			t.Errorf("script of a stalled holder: %+v, want lost", reply)
		}
		same(t, before, s.state(t))
	})
}

func TestPurchaseScript_LostToNobody(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventory(t, Config{})
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		stalled := dead(t, s, 200*time.Millisecond)
		lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
		await.True(t, "the lock to lapse", func() bool {
			n, err := rdb.Exists(await.Context(t), lockKey).Result()
			return err == nil && n == 0
		})
		before := s.state(t)
		if reply := sendAs(t, v, s, stalled.GuardValue(), stalled.Fence(), s.request("a", "k", 1)); reply.status != "lost" {
			t.Errorf("script without the lock: %+v, want lost", reply)
		}
		same(t, before, s.state(t))
	})
}

func TestPurchaseScript_Fenced(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("b", "k", 1))
		before := s.state(t)
		var fence int64
		if _, err := fmt.Sscan(before.sale["fence"], &fence); err != nil {
			t.Fatal(err)
		}
		// The lock's key has an old holder's value again.
		lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
		for _, c := range []struct {
			fence int64
			want  string
		}{{fence - 1, "fenced"}, {1, "fenced"}, {fence, "ok"}} {
			value := fmt.Sprintf("forged:%d", c.fence)
			if err := rdb.Set(await.Context(t), lockKey, value, time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			reply := sendAs(t, v, s, value, c.fence, s.request("a", "k", 1))
			if reply.status != c.want {
				t.Errorf("fence %d after %d: %+v, want %s", c.fence, fence, reply, c.want)
			}
			if c.want == "fenced" {
				same(t, before, s.state(t))
			}
		}
		if err := rdb.Del(await.Context(t), lockKey).Err(); err != nil {
			t.Fatal(err)
		}
		s.audit(t)
	})
}

// TestInventory_LockTaken replaces the lock under a selling process: its next
// script is refused, and the purchase goes through under a lock of its own.
func TestInventory_LockTaken(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventory(t, Config{LockIdle: limit}) // holds the lock while idle
		mustBuy(t, v, s.request("u", "1", 1))
		lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
		if err := rdb.Set(await.Context(t), lockKey, "stranger:1", 100*time.Millisecond).Err(); err != nil {
			t.Fatal(err)
		}
		mustBuy(t, v, s.request("u", "2", 1))
		if err := rdb.Del(await.Context(t), lockKey).Err(); err != nil {
			t.Fatal(err)
		}
		mustBuy(t, v, s.request("u", "3", 1))
		s.audit(t)
	})
}

func TestInventory_Purchase_LockNotToBeHad(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventoryOn(t, rdb, newLocks(t, rdb, lockConfig), Config{Patience: 150 * time.Millisecond})
		other, err := newLocks(t, rdb, lockConfig).Acquire(await.Context(t), v.keys.lock(s.item))
		if err != nil {
			t.Fatal(err)
		}
		// The holder of the lock of an item without a sale is most likely loading it.
		mustRefuse(t, v, s.request("u", "k", 1), ErrRebuilding)
		if err := v.load(await.Context(t), other, s.item); err != nil {
			t.Fatal(err)
		}
		mustRefuse(t, v, s.request("u", "k", 1), ErrOverloaded)
		if err := other.Release(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the lock to be free again", func() bool {
			o := buy(t, v, s.request("u", "k", 1))
			return o.Err == nil
		})
		s.audit(t)
	})
}

// overdue is a context whose deadline passes when done is closed.
type overdue struct {
	context.Context //nolint:containedctx // it is a context itself
	done            chan struct{}
}

func (c overdue) Done() <-chan struct{} { return c.done }

func (c overdue) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestInventory_LockLost: an operation that ended because the lock was lost can be retried;
// its caller has not left.
func TestInventory_LockLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		// A loss is noticed with the next renewal, after a third of the TTL.
		v := s.inventoryOn(t, rdb, newLocks(t, rdb, lock.Config{TTL: 6 * time.Second, CallTimeout: limit}), Config{})
		mustBuyAtLast(t, v, s.request("u", "k", 1))
		// A database driver ends without the cause.
		lost := func(ctx context.Context) error {
			if err := rdb.Set(ctx, v.keys.lockKey(s.item), "another:1:x", 0).Err(); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return ctx.Err()
		}
		again := func() {
			if err := rdb.Del(await.Context(t), v.keys.lockKey(s.item)).Err(); err != nil {
				t.Error(err)
			}
		}
		change := func(ctx context.Context) (int64, error) { return 0, fmt.Errorf("%w: %w", ErrUnchanged, lost(ctx)) }
		err := v.Change(await.Context(t), s.item, Change{AddLeft: 1}, change)
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrUnchanged) || !errors.Is(err, lock.ErrLost) {
			t.Errorf("change: %v", err)
		}
		again()
		err = v.Examine(await.Context(t), s.item, func(ctx context.Context, _ *Examined) (bool, error) { return false, lost(ctx) })
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, lock.ErrLost) {
			t.Errorf("look: %v", err)
		}
		again()
		// A wait for the database ends with the cause.
		wait := func(ctx context.Context) (int64, error) {
			_ = lost(ctx) //nolint:errcheck // the cause says more
			return 0, fmt.Errorf("%w: wait for the database: %w", ErrUnchanged, context.Cause(ctx))
		}
		if err := v.Change(await.Context(t), s.item, Change{AddLeft: 1}, wait); !errors.Is(err, ErrUnavailable) || !errors.Is(err, lock.ErrLost) {
			t.Errorf("change that waits for the database: %v", err)
		}
		again()
		// A process that was stopped may have lost the lock and exceeded the time of its change.
		late := overdue{await.Context(t), make(chan struct{})}
		err = v.underLock(late, s.item, func(ctx context.Context, _ *lock.Lock) error {
			err := lost(ctx)
			close(late.done)
			return err
		})
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, lock.ErrLost) {
			t.Errorf("change that is late, too: %v", err)
		}
		again()
		// A caller that leaves does not get that error.
		ctx, leave := context.WithCancel(await.Context(t))
		err = v.Examine(ctx, s.item, func(ctx context.Context, _ *Examined) (bool, error) {
			leave()
			<-ctx.Done()
			return false, ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
			t.Errorf("the caller left: %v", err)
		}
		mustBuyAtLast(t, v, s.request("u", "k2", 1))
	})
}
