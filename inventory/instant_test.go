package inventory

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/lock"
)

// TestInventory_Instant: a purchase after a pause does not acquire the lock, but waits for a
// process that holds it.
func TestInventory_Instant(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		var acquired atomic.Int64
		cfg := lockConfig
		cfg.Observer.Acquired = func(string, time.Duration) { acquired.Add(1) }
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventoryOn(t, rdb, newLocks(t, rdb, cfg), Config{})
		lockKey, waitersKey, fenceKey := v.locks.InstantKeys(v.keys.lock(s.item))
		free := func() {
			t.Helper()
			await.True(t, "the lock to be free", func() bool {
				n, err := rdb.Exists(await.Context(t), lockKey).Result()
				return err == nil && n == 0
			})
		}
		mustBuy(t, v, s.request("u", "1", 1)) // loads the sale, under the lock
		free()
		before, had := acquired.Load(), s.state(t).sale["fence"]
		mustBuy(t, v, s.request("u", "2", 1))
		if n := acquired.Load(); n != before {
			t.Errorf("the lock was acquired %d times for a purchase after a pause", n-before)
		}
		fence := s.state(t).sale["fence"]
		if last, err := rdb.Get(await.Context(t), fenceKey).Result(); err != nil || last != fence || fence <= had {
			t.Errorf("fencing token %s after %s, and the lock's is %s, %v", fence, had, last, err)
		}

		free()
		other, err := newLocks(t, rdb, lockConfig).Acquire(await.Context(t), v.keys.lock(s.item))
		if err != nil {
			t.Fatal(err)
		}
		r, done := s.request("u", "3", 1), make(chan Outcome, 1)
		r.Done = func(o Outcome) { done <- o }
		if err := v.Submit(r); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the seller to wait for the lock", func() bool {
			n, err := rdb.ZCard(await.Context(t), waitersKey).Result()
			return err == nil && n == 1
		})
		if err := other.Release(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		select {
		case o := <-done:
			if o != (Outcome{}) {
				t.Errorf("purchase after waiting for the lock: %+v", o)
			}
		case <-await.Context(t).Done():
			t.Fatal("no outcome after the lock was released")
		}
		s.audit(t)
	})
}

// TestPurchaseScript_Instant: without a lock value, the script sells only if the lock is
// free and has no waiters, and not after its time.
func TestPurchaseScript_Instant(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 9), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("u", "1", 1))
		lockKey, waitersKey, fenceKey := v.locks.InstantKeys(v.keys.lock(s.item))
		soon := func(d time.Duration) int64 {
			t.Helper()
			now, err := rdb.Time(await.Context(t)).Result()
			if err != nil {
				t.Fatal(err)
			}
			return now.Add(d).UnixMilli()
		}
		const never = "9999999999999999"
		for name, c := range map[string]struct {
			prepare []any
			undo    []any
			life    time.Duration
			want    string
		}{
			"free":             {[]any{"PING"}, []any{"PING"}, time.Hour, "ok"},
			"late":             {[]any{"PING"}, []any{"PING"}, -time.Millisecond, "late"},
			"held":             {[]any{"SET", lockKey, "other:1", "PX", 60_000}, []any{"DEL", lockKey}, time.Hour, "held"},
			"held without TTL": {[]any{"SET", lockKey, "other:1"}, []any{"DEL", lockKey}, time.Hour, "held"},
			"clock set back":   {[]any{"SET", fenceKey, never}, []any{"DEL", fenceKey}, time.Hour, "late"},
			"waited for":       {[]any{"SET", fenceKey, "17w"}, []any{"DEL", fenceKey}, time.Hour, "held"},
			"fenced":           {[]any{"HSET", v.keys.sale(s.item), "fence", never}, []any{"HSET", v.keys.sale(s.item), "fence", 1}, time.Hour, "fenced"},
		} {
			await.True(t, "the lock to be free", func() bool {
				n, err := rdb.Exists(await.Context(t), lockKey).Result()
				return err == nil && n == 0
			})
			if err := rdb.Do(await.Context(t), c.prepare...).Err(); err != nil {
				t.Fatal(err)
			}
			before := s.state(t)
			reply := sendAs(t, v, s, "", soon(c.life), s.request(name, "k", 1))
			if reply.status != c.want {
				t.Errorf("%s: %+v, want %s", name, reply, c.want)
			}
			if c.want != "ok" {
				same(t, before, s.state(t))
			}
			if err := rdb.Do(await.Context(t), c.undo...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		// The last token is lost, and there is a waiter.
		if err := rdb.ZAdd(await.Context(t), waitersKey, redis.Z{Score: 1, Member: "m.t"}).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Del(await.Context(t), fenceKey).Err(); err != nil {
			t.Fatal(err)
		}
		if reply := sendAs(t, v, s, "", soon(time.Hour), s.request("w", "k", 1)); reply.status != "held" {
			t.Errorf("waiter, no token: %+v, want held", reply)
		}
		if err := rdb.Del(await.Context(t), waitersKey).Err(); err != nil {
			t.Fatal(err)
		}
		mustBuy(t, v, s.request("u", "2", 1))
		s.audit(t)
	})
}

// TestInventory_InstantAfterHolder: a holder that stalled while the lock was free for an
// instant batch is refused afterwards.
func TestInventory_InstantAfterHolder(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventory(t, Config{})
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		stalled := dead(t, s, 200*time.Millisecond)
		lockKey, _, _ := v.locks.InstantKeys(v.keys.lock(s.item))
		await.True(t, "the lock to expire", func() bool {
			n, err := rdb.Exists(await.Context(t), lockKey).Result()
			return err == nil && n == 0
		})
		if reply := sendAs(t, v, s, "", 1<<53, s.request("a", "k", 1)); reply.status != "ok" {
			t.Fatalf("instant batch: %+v, want ok", reply)
		}
		before := s.state(t)
		// The stalled holder's value is in the lock's key again: only its token is too low.
		if err := rdb.Set(await.Context(t), lockKey, stalled.GuardValue(), time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		if reply := sendAs(t, v, s, stalled.GuardValue(), stalled.Fence(), s.request("b", "k", 1)); reply.status != "fenced" {
			t.Errorf("script of the stalled holder: %+v, want fenced", reply)
		}
		same(t, before, s.state(t))
		if err := rdb.Del(await.Context(t), lockKey).Err(); err != nil {
			t.Fatal(err)
		}
		l, err := newLocks(t, rdb, lock.Config{}).Acquire(await.Context(t), v.keys.lock(s.item))
		if err != nil {
			t.Fatal(err)
		}
		if reply := sendAs(t, v, s, l.GuardValue(), l.Fence(), s.request("b", "k", 1)); reply.status != "ok" {
			t.Errorf("script of the next holder: %+v, want ok", reply)
		}
		if err := l.Release(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		s.audit(t)
	})
}

// TestSeller_Time_Instant: only the first batch after a pause goes without the lock, also if each
// call takes longer than the pause, and none does while the clock of Redis is not known.
func TestSeller_Time_Instant(t *testing.T) {
	t.Parallel()
	inOwnTime(t, Config{}, open(100, 1), func(t *testing.T, st *stage) {
		st.submit(t, "first")
		st.after(time.Second)
		st.set(nil, takes(4*instantAfter))
		for i := range 5 { // each of these arrives while the script before it runs
			st.submit(t, fmt.Sprint("busy", i))
			st.after(time.Second + time.Duration(i+1)*3*instantAfter)
		}
		st.after(2*time.Second + scriptClockLife)
		st.submit(t, "late")
		st.after(3*time.Second + scriptClockLife)
		var instant []bool
		for _, s := range st.sendings() {
			instant = append(instant, s.guard == "")
		}
		if want := []bool{false, true, false, false, false, false, false}; !slices.Equal(instant, want) {
			t.Errorf("batches without the lock: %v, want %v", instant, want)
		}
		st.audit(t)
	})
}
