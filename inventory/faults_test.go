package inventory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
)

// TestInventory_UnknownOutcome cuts the connection around the purchase script.
// The request is sent again and has exactly one order.
func TestInventory_UnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]cutAt{"BeforeRequest": cutBefore, "BeforeReply": cutAfter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, direct *redis.Client) {
				p := newProxy(t, direct.Options().Addr, purchases(3, func(int) cutAt { return at }))
				s := newShop(t, direct, open(10, 1), 0)
				rdb := p.client(t)
				locks := newLocks(t, direct, lockConfig) // the lock's own calls are not the subject
				v := s.inventoryOn(t, rdb, locks, Config{})
				if err := v.Open(await.Context(t), s.item); err != nil {
					t.Fatal(err)
				}
				if err := purchaseScript.Load(await.Context(t), direct).Err(); err != nil {
					t.Fatal(err)
				}
				r := s.request("u", "k", 1)
				mustBuy(t, v, r)
				if p.count() != 3 {
					t.Errorf("the connection was cut %d times, want 3", p.count())
				}
				st := s.audit(t)
				if len(st.queue) != 1 || st.queue[0].id != r.OrderID || st.left(t) != 9 {
					t.Errorf("state %+v, want the one order %s", st, r.OrderID)
				}
			})
		})
	}
}

// TestInventory_UnknownOutcome_UnderLoad cuts many batches in both ways.
func TestInventory_UnknownOutcome_UnderLoad(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, direct *redis.Client) {
		p := newProxy(t, direct.Options().Addr, purchases(30, func(run int) cutAt { return []cutAt{cutNever, cutAfter, cutBefore}[run%3] }))
		s := newShop(t, direct, open(120, 2), 0)
		v := s.inventoryOn(t, p.client(t), newLocks(t, direct, lockConfig), Config{MaxBatch: 5})
		var requests []*Request
		for i := range 100 {
			for k := range 3 { // one more than the limit
				requests = append(requests, s.request(fmt.Sprintf("u%d", i), fmt.Sprintf("k%d", k), 1))
			}
		}
		out := outcomes(t, v, requests)
		if p.count() < 10 {
			t.Errorf("%d cuts: the fault hardly struck", p.count())
		}
		n := tally(out)
		if n["accepted"] != 120 || n["replay"] != 0 || n["accepted"]+n[ErrSoldOut.Error()]+n[ErrUserLimit.Error()] != len(requests) {
			t.Errorf("outcomes are %v, want 120 accepted and definite refusals", n)
		}
		s.audit(t)
	})
}

// TestInventory_UnknownOutcome_ThenMore: the script accepted a part of a batch, its reply was
// lost, and units came back before the batch was sent again. Those accepted then have a task
// of their own; the first task stays.
func TestInventory_UnknownOutcome_ThenMore(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, direct *redis.Client) {
		s := newShop(t, direct, open(2, 1), 0)
		rdb := redistest.Second(t, direct)
		v := s.inventoryOn(t, rdb, newLocks(t, direct, lockConfig), Config{})
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		if err := purchaseScript.Load(await.Context(t), direct).Err(); err != nil {
			t.Fatal(err)
		}
		rdb.AddHook(&counter{after: func(n int, err error) error {
			if n > 1 || err != nil {
				return err
			}
			if err := direct.HIncrBy(await.Context(t), v.keys.sale(s.item), "left", 1).Err(); err != nil {
				t.Error(err)
			}
			return io.ErrUnexpectedEOF
		}})
		s.source.sales[s.item] = open(3, 1) // for the audit
		sel := newSeller(v, s.item)
		defer sel.lock.release()
		batch := []*Request{s.request("a", "k", 1), s.request("b", "k", 1), s.request("c", "k", 1), s.request("d", "k", 1)}
		got := make([]Outcome, len(batch))
		names := make([]int, len(batch))
		for i, r := range batch {
			r.since = time.Now()
			r.Done = func(o Outcome) { got[i] = o }
			r.Named = func(string) { names[i]++ }
		}
		sel.sell(slices.Clone(batch))
		again := sel.take()
		if len(again) != 2 {
			t.Fatalf("%d requests are sent in a batch of their own, want 2", len(again))
		}
		sel.sell(slices.Clone(again))
		for i, want := range []error{nil, nil, nil, ErrSoldOut} {
			if !errors.Is(got[i].Err, want) || names[i] != 1+i/2 {
				t.Errorf("request %d: %v, named %d times; want %v", i, got[i].Err, names[i], want)
			}
		}
		if st := s.audit(t); len(st.queue) != 3 || st.left(t) != 0 {
			t.Errorf("%d orders are queued, %d left, want 3 and 0", len(st.queue), st.left(t))
		}
	})
}

// TestPurchaseScript_SentAgain: a batch that has accepted an order accepts no other under its task,
// whatever has happened to the order since, since that would replace the task.
func TestPurchaseScript_SentAgain(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for what, c := range map[string]struct {
			then func(t *testing.T, s *shop, first *Request)
			want string
		}{
			"Queued":    {func(*testing.T, *shop, *Request) {}, "AU"},
			"Processed": {func(t *testing.T, s *shop, _ *Request) { s.take(t, 1) }, "AU"},
			"Released": {func(t *testing.T, s *shop, r *Request) {
				s.take(t, 1)
				wantStatus(t, s.give(t, r), ReleaseDone)
			}, "AU"},
			"Lost": {func(t *testing.T, s *shop, _ *Request) {
				if err := rdb.Del(await.Context(t), keys{1}.buyers(s.item)).Err(); err != nil {
					t.Fatal(err)
				}
			}, "UU"},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(1, 1), 0)
				v := s.inventory(t, Config{})
				if err := v.Open(await.Context(t), s.item); err != nil {
					t.Fatal(err)
				}
				l, err := v.locks.Acquire(await.Context(t), v.keys.lock(s.item))
				if err != nil {
					t.Fatal(err)
				}
				taskID, err := accepted.NewTaskID()
				if err != nil {
					t.Fatal(err)
				}
				batch := []*Request{s.request("a", "k", 1), s.request("b", "k", 1)}
				name(batch, taskID)
				send := func() string { return sendAs(t, v, s, l.GuardValue(), l.Fence(), batch...).verdicts }
				if got := send(); got != "AS" {
					t.Fatalf("verdicts %s, want AS", got)
				}
				s.audit(t)
				c.then(t, s, batch[0])
				if err := rdb.HSet(await.Context(t), v.keys.sale(s.item), "left", 1).Err(); err != nil {
					t.Fatal(err)
				}
				before := s.state(t)
				if got := send(); got != c.want {
					t.Errorf("verdicts %s, want %s", got, c.want)
				}
				same(t, before, s.state(t))
			})
		}
	})
}

// TestInventory_UnknownOutcome_ThenLockGone: the script ran, its reply was lost, and the lock
// went to another process before the batch could be sent again. "Overloaded" and "rebuilding"
// promise that nothing was taken, so they are not the answer here.
func TestInventory_UnknownOutcome_ThenLockGone(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, direct *redis.Client) {
		for name, strike := range map[string]func(t *testing.T, s *shop, v *Inventory){
			"LockTaken": func(t *testing.T, s *shop, v *Inventory) {
				lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
				if err := direct.Set(t.Context(), lockKey, "stranger:1", time.Minute).Err(); err != nil {
					t.Error(err)
				}
			},
			"SaleLostAndSourceAway": func(t *testing.T, s *shop, v *Inventory) {
				s.source.set(func(src *stored) { src.err = errTest })
				if err := direct.Del(t.Context(), v.keys.sale(s.item), v.keys.idempotency(s.item), v.keys.buyers(s.item)).Err(); err != nil {
					t.Error(err)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				rdb := redis.NewClient(redistest.Options(direct.Options().Addr))
				t.Cleanup(func() {
					if err := rdb.Close(); err != nil {
						t.Error(err)
					}
				})
				s := newShop(t, direct, open(10, 1), 0)
				locks := newLocks(t, direct, lockConfig)
				v := s.inventoryOn(t, rdb, locks, Config{Patience: 300 * time.Millisecond})
				if err := v.Open(await.Context(t), s.item); err != nil {
					t.Fatal(err)
				}
				var struck atomic.Bool
				rdb.AddHook(&counter{after: func(_ int, err error) error {
					if err != nil || struck.Swap(true) {
						return err
					}
					strike(t, s, v)
					return context.DeadlineExceeded // the reply was lost
				}})
				r := s.request("u", "k", 1)
				o := buy(t, v, r)
				for !struck.Load() && hurried(v, o.Err) && t.Context().Err() == nil {
					o = buy(t, v, r) // there was not even time to send it
				}
				taken := len(s.state(t).queue)
				if taken != 1 {
					t.Fatalf("%d orders are queued, want the one whose reply was lost", taken)
				}
				if errors.Is(o.Err, ErrOverloaded) || errors.Is(o.Err, ErrRebuilding) {
					t.Errorf("answered %v, which promises that nothing was taken, and order %s is queued", o.Err, r.OrderID)
				}
			})
		}
	})
}

// TestInventory_RedisRestart kills Redis under load. Meanwhile every purchase is answered
// "unavailable" or "overloaded" within its patience. Afterwards repeats get their outcome, and
// the sum is exact.
func TestInventory_RedisRestart(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	const stock, buyers = 600, 900
	s := newShop(t, rdb, open(stock, 1), 0)
	// Short TTLs: a lock that could not be released while Redis was away has to expire.
	cfg := lockConfig
	cfg.TTL, cfg.ClaimTTL, cfg.Liveness, cfg.CallTimeout = time.Second, 400*time.Millisecond, 300*time.Millisecond, time.Second
	v := s.inventoryOn(t, rdb, newLocks(t, rdb, cfg), Config{Patience: 300 * time.Millisecond, MaxBatch: 10})

	c := &patientBuyers{t: t, s: s, v: v, buyers: buyers, early: stock / 2, down: make(chan struct{})}
	wait := c.start(await.Context(t))
	await.True(t, "sales before the fault", func() bool { return c.accepted.Load() > 50 })
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	atKill := c.accepted.Load()
	close(c.down)
	await.True(t, "the fault to be noticed", func() bool { return c.refused.Load() > 0 })
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	wait()
	if atKill >= stock || c.accepted.Load() != stock || c.soldOut.Load() != buyers-stock {
		t.Errorf("%d accepted (%d before the restart), %d sold out; want %d and %d", c.accepted.Load(), atKill, c.soldOut.Load(), stock, buyers-stock)
	}
	if st := s.audit(t); st.left(t) != 0 {
		t.Errorf("left is %d, want 0", st.left(t))
	}
}

// patientBuyers buy one unit each, and repeat a purchase until it is accepted or sold
// out. Those after the first `early` buyers wait until down is closed, so that the fault
// always falls into the sale.
type patientBuyers struct {
	t             *testing.T
	s             *shop
	v             *Inventory
	buyers, early int64
	down          chan struct{} // closed when Redis is down

	next                       atomic.Int64
	accepted, soldOut, refused atomic.Int64 // refused: attempts after the fault
}

// start lets them buy on 30 goroutines, and returns what waits for all of them.
func (c *patientBuyers) start(ctx context.Context) (wait func()) {
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			for n := c.next.Add(1); n <= c.buyers && ctx.Err() == nil; n = c.next.Add(1) {
				if n > c.early {
					select {
					case <-c.down:
					case <-ctx.Done():
					}
				}
				for ctx.Err() == nil && !c.buy(ctx, n) {
				}
			}
		})
	}
	return all.Wait
}

// buy makes one attempt of a buyer and reports whether the buyer is done.
func (c *patientBuyers) buy(ctx context.Context, n int64) (done bool) {
	down := false
	select {
	case <-c.down:
		down = true
	default:
	}
	o, err := c.v.Purchase(ctx, c.s.request(fmt.Sprintf("u%d", n), "k", 1))
	switch {
	case err != nil:
		c.t.Errorf("a purchase was not answered: %v", err)
	case o.Err == nil:
		c.accepted.Add(1)
	case errors.Is(o.Err, ErrSoldOut):
		c.soldOut.Add(1)
	case errors.Is(o.Err, ErrUnavailable), errors.Is(o.Err, ErrOverloaded), errors.Is(o.Err, ErrRebuilding):
		if down {
			c.refused.Add(1)
		}
		return false
	default:
		c.t.Errorf("outcome %+v", o)
	}
	return true
}

// TestInventory_RedisAway: each of many requests is answered while Redis is away.
func TestInventory_RedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newShop(t, rdb, open(100, 1), 0)
	v := s.inventoryOn(t, rdb, newLocks(t, rdb, lockConfig), Config{Patience: 200 * time.Millisecond})
	mustBuy(t, v, s.request("u", "k", 1))
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	var requests []*Request
	for i := range 200 {
		requests = append(requests, s.request(fmt.Sprintf("u%d", i), "k", 1))
	}
	for i, o := range outcomes(t, v, requests) {
		if !errors.Is(o.Err, ErrUnavailable) && !errors.Is(o.Err, ErrOverloaded) {
			t.Fatalf("request %d: %+v", i, o)
		}
	}
	// A lock that could not be acquired in time is "overloaded": nothing was sent.
	if o := buy(t, v, s.request("u", "k", 1)); !errors.Is(o.Err, ErrUnavailable) && !errors.Is(o.Err, ErrOverloaded) {
		t.Errorf("the accepted buyer's repeat: %+v", o)
	}
	if err := v.Reload(await.Context(t), s.item); err == nil {
		t.Error("Reload without Redis: no error")
	}
	if err := v.Warm(await.Context(t), s.item); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Warm without Redis: %v, want ErrUnavailable", err)
	}
	if _, err := v.Left(await.Context(t), []string{s.item}); err == nil {
		t.Error("Left without Redis: no error")
	}
}

func TestInventory_ScriptFlush(t *testing.T) {
	t.Parallel()
	engines := map[string]func(t *testing.T) *redis.Client{
		"embedded": func(t *testing.T) *redis.Client { return redistest.Embedded(t) },
		"redis": func(t *testing.T) *redis.Client { // a flush affects all tests on a server, so on one of its own
			rdb := redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
			t.Cleanup(func() {
				if err := rdb.Close(); err != nil {
					t.Error(err)
				}
			})
			return rdb
		},
	}
	for name, engine := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := engine(t)
			s := newShop(t, rdb, open(150, 1), 0)
			sent := make(chan struct{}, 1)
			v := s.inventory(t, Config{MaxBatch: 4, OnBatch: func(int, time.Duration) {
				select {
				case sent <- struct{}{}:
				default:
				}
			}, OnError: func(err error) { t.Errorf("noticed: %v", err) }})
			var requests []*Request
			for i := range 300 {
				requests = append(requests, s.request(fmt.Sprintf("u%d", i), "k", 1))
			}
			stop, flushes := make(chan struct{}), make(chan int)
			go func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						flushes <- n
						return
					case <-sent: // during the next one
					}
					if err := rdb.ScriptFlush(context.WithoutCancel(t.Context())).Err(); err != nil {
						t.Error(err)
					}
				}
			}()
			out := outcomes(t, v, requests)
			close(stop)
			if n := <-flushes; n < 10 {
				t.Errorf("%d flushes: the fault hardly struck", n)
			}
			wantTally(t, out, map[string]int{"accepted": 150, ErrSoldOut.Error(): 150})
			s.audit(t)
		})
	}
}

// TestInventory_BrokenSale: a value in Redis that is not a number makes purchases fail without
// changing anything.
func TestInventory_BrokenSale(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		var seen atomic.Int64
		v := s.inventoryOn(t, rdb, newLocks(t, rdb, lockConfig), Config{
			Patience: 100 * time.Millisecond, OnError: func(error) { seen.Add(1) },
		})
		mustBuy(t, v, s.request("u", "k", 1))
		if err := rdb.HSet(await.Context(t), keys{1}.sale(s.item), "left", "many").Err(); err != nil {
			t.Fatal(err)
		}
		before := s.state(t)
		mustRefuse(t, v, s.request("w", "k", 1), ErrUnavailable)
		if seen.Load() == 0 {
			t.Error("OnError heard nothing")
		}
		after := s.state(t)
		if !slices.Equal(before.queue, after.queue) || len(after.idempotency) != 1 {
			t.Errorf("a failed script changed %+v to %+v", before, after)
		}
	})
}
