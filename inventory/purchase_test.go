package inventory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// outcomes runs the requests in parallel and returns their outcomes.
func outcomes(t *testing.T, v *Inventory, requests []*Request) []Outcome {
	t.Helper()
	ctx := await.Context(t)
	out := make([]Outcome, len(requests))
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, r := range requests {
		wg.Go(func() {
			<-start
			o, err := v.Purchase(ctx, r)
			if err != nil {
				t.Errorf("purchase %s: %v", r.OrderID, err)
			}
			out[i] = o
		})
	}
	close(start)
	wg.Wait()
	return out
}

// tally counts outcomes: "accepted", "replay" or the error's text.
func tally(out []Outcome) map[string]int {
	n := map[string]int{}
	for _, o := range out {
		switch {
		case o.Err != nil:
			n[o.Err.Error()]++
		case o.ReplayOf != "":
			n["replay"]++
		default:
			n["accepted"]++
		}
	}
	return n
}

func wantTally(t *testing.T, out []Outcome, want map[string]int) {
	t.Helper()
	if got := tally(out); !maps.Equal(got, want) {
		t.Errorf("outcomes are %v, want %v", got, want)
	}
}

func TestInventory_Purchase(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		t.Run("TenUnitsThousandBuyers", func(t *testing.T) { purchaseTenUnitsThousandBuyers(t, rdb) })
		t.Run("OneBuyerThousandKeys", func(t *testing.T) { purchaseOneBuyerThousandKeys(t, rdb) })
		t.Run("FiftyTimesOneKey", func(t *testing.T) { purchaseFiftyTimesOneKey(t, rdb) })
		t.Run("BatchesAreGathered", func(t *testing.T) { purchaseBatchesAreGathered(t, rdb) })
	})
}

func purchaseTenUnitsThousandBuyers(t *testing.T, rdb *redis.Client) {
	t.Parallel()
	s := newShop(t, rdb, open(10, 1), 0)
	requests := make([]*Request, 1000)
	for i := range requests {
		requests[i] = s.request(fmt.Sprintf("u%d", i), "k", 1)
	}
	out := outcomes(t, s.inventory(t, Config{}), requests)
	wantTally(t, out, map[string]int{"accepted": 10, ErrSoldOut.Error(): 990})
	st := s.audit(t)
	if left := st.left(t); left != 0 {
		t.Errorf("left is %d, want 0", left)
	}
	accepted := map[string]bool{}
	for i, o := range out {
		if o.Err == nil {
			accepted[requests[i].OrderID] = true
		}
	}
	for _, o := range st.queue {
		if !accepted[o.id] {
			t.Errorf("order %s is queued and its buyer was refused", o.id)
		}
	}
}

func purchaseOneBuyerThousandKeys(t *testing.T, rdb *redis.Client) {
	t.Parallel()
	s := newShop(t, rdb, open(10, 1), 0)
	v := s.inventory(t, Config{})
	var requests []*Request
	for i := range 1000 {
		requests = append(requests, s.request("greedy", fmt.Sprintf("k%d", i), 1))
	}
	wantTally(t, outcomes(t, v, requests), map[string]int{"accepted": 1, ErrUserLimit.Error(): 999})
	requests = nil
	for i := range 9 {
		requests = append(requests, s.request(fmt.Sprintf("u%d", i), "k", 1))
	}
	wantTally(t, outcomes(t, v, requests), map[string]int{"accepted": 9})
	s.audit(t)
	mustRefuse(t, v, s.request("late", "k", 1), ErrSoldOut)
}

func purchaseFiftyTimesOneKey(t *testing.T, rdb *redis.Client) {
	t.Parallel()
	s := newShop(t, rdb, open(100, 100), 0)
	var requests []*Request
	for range 50 {
		requests = append(requests, s.request("u", "k", 2))
	}
	out := outcomes(t, s.inventory(t, Config{MaxBatch: 7}), requests)
	wantTally(t, out, map[string]int{"accepted": 1, "replay": 49})
	st := s.audit(t)
	if len(st.queue) != 1 || st.left(t) != 98 {
		t.Fatalf("%d orders, %d left, want 1 and 98", len(st.queue), st.left(t))
	}
	for i, o := range out {
		if o.ReplayOf != st.queue[0].id && requests[i].OrderID != st.queue[0].id {
			t.Errorf("request %s was answered with order %q, want %s", requests[i].OrderID, o.ReplayOf, st.queue[0].id)
		}
	}
}

func purchaseBatchesAreGathered(t *testing.T, rdb *redis.Client) {
	t.Parallel()
	s := newShop(t, rdb, open(1000, 1), 0)
	var largest, batches atomic.Int64
	v := s.inventory(t, Config{MaxBatch: 64, OnBatch: func(n int, _ time.Duration) {
		batches.Add(1)
		largest.Store(max(largest.Load(), int64(n))) // one seller, so one caller
	}})
	if err := v.Open(await.Context(t), s.item); err != nil {
		t.Fatal(err)
	}
	// The first answer is delayed, so that the others wait together.
	hold := make(chan struct{})
	first := s.request("first", "k", 1)
	first.Done = func(Outcome) { <-hold }
	if err := v.Submit(first); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the first batch", func() bool { return batches.Load() == 1 })
	var wg sync.WaitGroup
	for i := range 200 {
		r := s.request(fmt.Sprintf("u%d", i), "k", 1)
		wg.Add(1)
		r.Done = func(o Outcome) {
			defer wg.Done()
			if o != (Outcome{}) {
				t.Errorf("outcome %+v, want accepted", o)
			}
		}
		if err := v.Submit(r); err != nil {
			t.Fatal(err)
		}
	}
	close(hold)
	wg.Wait()
	if largest.Load() != 64 || batches.Load() != 1+4 {
		t.Errorf("200 waiting requests were sent in %d batches, the largest of %d; want 4, of 64", batches.Load()-1, largest.Load())
	}
	s.audit(t)
}

func TestInventory_Purchase_Refusals(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		shop := func(t *testing.T, change func(*Sale)) (*shop, *Inventory) {
			sale := open(10, 3)
			change(&sale)
			s := newShop(t, rdb, sale, 0)
			v := s.inventory(t, Config{})
			return s, v
		}
		as := func(t *testing.T, change func(*Sale), want error) {
			s, v := shop(t, change)
			mustRefuse(t, v, s.request("u", "k", 1), want)
			if st := s.audit(t); len(st.queue) != 0 {
				t.Errorf("a refused purchase left %+v", st)
			}
		}
		t.Run("Units", func(t *testing.T) { refuseUnits(t, shop) })
		t.Run("KeyReused", func(t *testing.T) { refuseKeyReused(t, shop) })
		t.Run("NotOpen", func(t *testing.T) { refuseNotOpen(t, shop) })
		t.Run("Opens", func(t *testing.T) { refuseOpens(t, shop) })
		t.Run("WindowEnded", func(t *testing.T) { refuseWindowEnded(t, as) })
		t.Run("ClosedByOperator", func(t *testing.T) { refuseClosedByOperator(t, as) })
		t.Run("ClosedBeforeOpening", func(t *testing.T) { refuseClosedBeforeOpening(t, as) })
		t.Run("Paused", func(t *testing.T) { refusePaused(t, as) })
		t.Run("NoStock", func(t *testing.T) { refuseNoStock(t, as) })
		t.Run("ReplayWhilePaused", func(t *testing.T) { refuseReplayWhilePaused(t, rdb, shop) })
	})
}

func refuseUnits(t *testing.T, shop func(t *testing.T, change func(*Sale)) (*shop, *Inventory)) {
	t.Parallel()
	s, v := shop(t, func(*Sale) {})
	mustBuy(t, v, s.request("a", "1", 2))
	mustRefuse(t, v, s.request("a", "2", 2), ErrUserLimit)
	mustBuy(t, v, s.request("a", "3", 1))
	mustBuy(t, v, s.request("b", "1", 3))
	mustBuy(t, v, s.request("c", "1", 2))
	mustRefuse(t, v, s.request("d", "1", 3), ErrSoldOut)
	mustBuy(t, v, s.request("d", "2", 2))
	s.audit(t)
}

func refuseKeyReused(t *testing.T, shop func(t *testing.T, change func(*Sale)) (*shop, *Inventory)) {
	t.Parallel()
	s, v := shop(t, func(*Sale) {})
	first := s.request("u", "k", 1)
	mustBuy(t, v, first)
	mustRefuse(t, v, s.request("u", "k", 2), ErrKeyReused)
	if o := buy(t, v, s.request("u", "k", 1)); o != (Outcome{ReplayOf: first.OrderID}) {
		t.Errorf("replay: %+v, want order %s", o, first.OrderID)
	}
	mustBuy(t, v, s.request("other", "k", 2)) // a key is a buyer's own
	s.audit(t)
}

func refuseNotOpen(t *testing.T, shop func(t *testing.T, change func(*Sale)) (*shop, *Inventory)) {
	t.Parallel()
	opens := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	s, v := shop(t, func(sale *Sale) { sale.OpensAt = opens })
	o := buy(t, v, s.request("u", "k", 1))
	var notOpen *NotOpenError
	if !errors.As(o.Err, &notOpen) {
		t.Fatalf("outcome %+v, want NotOpenError", o)
	}
	if !notOpen.OpensAt.Equal(opens) || notOpen.In <= 0 || notOpen.In > time.Hour {
		t.Errorf("opens at %v in %v, want %v", notOpen.OpensAt, notOpen.In, opens)
	}
	if st := s.audit(t); len(st.queue) != 0 {
		t.Errorf("sold before the opening: %+v", st)
	}
}

func refuseOpens(t *testing.T, shop func(t *testing.T, change func(*Sale)) (*shop, *Inventory)) {
	t.Parallel()
	opens := time.Now().Add(150 * time.Millisecond)
	s, v := shop(t, func(sale *Sale) { sale.OpensAt = opens })
	await.True(t, "the opening", func() bool {
		o := buy(t, v, s.request("u", "k", 1))
		var notOpen *NotOpenError
		if errors.As(o.Err, &notOpen) {
			return false
		}
		// Redis and the test read the same clock, so the comparison is exact.
		if o.Err == nil && time.Now().UnixMilli() < opens.UnixMilli() {
			t.Error("sold before the opening")
		}
		return o == Outcome{}
	})
	s.audit(t)
}

func refuseWindowEnded(t *testing.T, as func(t *testing.T, change func(*Sale), want error)) {
	t.Parallel()
	as(t, func(sale *Sale) { sale.ClosesAt = time.Now().Add(-time.Minute) }, ErrClosed)
}

func refuseClosedByOperator(t *testing.T, as func(t *testing.T, change func(*Sale), want error)) {
	t.Parallel()
	as(t, func(sale *Sale) { sale.Control = "closed" }, ErrClosed)
}

func refuseClosedBeforeOpening(t *testing.T, as func(t *testing.T, change func(*Sale), want error)) {
	t.Parallel()
	as(t, func(sale *Sale) { sale.Control, sale.OpensAt = "closed", time.Now().Add(time.Hour) }, ErrClosed)
}

func refusePaused(t *testing.T, as func(t *testing.T, change func(*Sale), want error)) {
	t.Parallel()
	as(t, func(sale *Sale) { sale.Control = "paused" }, ErrPaused)
}

func refuseNoStock(t *testing.T, as func(t *testing.T, change func(*Sale), want error)) {
	t.Parallel()
	as(t, func(sale *Sale) { sale.Left = 0 }, ErrSoldOut)
}

func refuseReplayWhilePaused(t *testing.T, rdb *redis.Client, shop func(t *testing.T, change func(*Sale)) (*shop, *Inventory)) {
	t.Parallel()
	s, v := shop(t, func(*Sale) {})
	r := s.request("u", "k", 1)
	mustBuy(t, v, r)
	if err := rdb.HSet(await.Context(t), keys{1}.sale(s.item), "control", "paused").Err(); err != nil {
		t.Fatal(err)
	}
	if o := buy(t, v, s.request("u", "k", 1)); o.ReplayOf != r.OrderID {
		t.Errorf("replay in a paused sale: %+v, want order %s", o, r.OrderID)
	}
	mustRefuse(t, v, s.request("u", "k2", 1), ErrPaused)
}

func TestInventory_Purchase_QueueFull(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 3)
		v := s.inventory(t, Config{})
		var requests []*Request
		for i := range 5 {
			requests = append(requests, s.request(fmt.Sprintf("u%d", i), "k", 1))
		}
		out := outcomes(t, v, requests)
		wantTally(t, out, map[string]int{"accepted": 3, ErrOverloaded.Error(): 2})
		st := s.audit(t)
		if st.left(t) != 7 {
			t.Errorf("left is %d, want 7: nothing is taken for a task that has no room", st.left(t))
		}
		taken := s.take(t, 1) // the tasks' orders
		for i, o := range out {
			if o.Err != nil {
				mustBuy(t, v, requests[i]) // the same request succeeds again
				taken = append(taken, s.take(t, 1)...)
			}
		}
		if st := s.state(t); st.left(t) != 5 || len(taken)+len(st.queue) != 5 {
			t.Errorf("%d left, %d taken, %d queued, want 5 left and 5 orders", st.left(t), len(taken), len(st.queue))
		}
	})
}

func TestInventory_Submit_ErrOverloaded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const pending = 20
		s := newShop(t, rdb, open(1000, 1000), 0)
		v := s.inventory(t, Config{MaxPending: pending})
		release := stall(t, v, s.request("stalled", "k", 1))
		var wg sync.WaitGroup
		submit := func(i int) error {
			r := s.request("u", fmt.Sprint(i), 1)
			r.Done = func(o Outcome) {
				if o != (Outcome{}) {
					t.Errorf("outcome %+v, want accepted", o)
				}
				wg.Done()
			}
			wg.Add(1)
			err := v.Submit(r)
			if err != nil {
				wg.Done()
			}
			return err
		}
		for i := range pending {
			if err := submit(i); err != nil {
				t.Fatalf("request %d of %d: %v", i, pending, err)
			}
		}
		if err := submit(pending); !errors.Is(err, ErrOverloaded) {
			t.Errorf("one more than MaxPending: %v, want ErrOverloaded", err)
		}
		release()
		wg.Wait()
		if st := s.audit(t); len(st.queue) != 1+pending {
			t.Errorf("%d orders, want %d", len(st.queue), 1+pending)
		}
		if o := outcomes(t, v, []*Request{s.request("u", "after", 1)}); o[0] != (Outcome{}) {
			t.Errorf("after the pressure: %+v, want accepted", o[0])
		}
	})
}

// stall keeps the seller of an item busy with the answer to r until release is called.
func stall(t *testing.T, v *Inventory, r *Request) (release func()) {
	t.Helper()
	entered, leave := make(chan struct{}), make(chan struct{})
	r.Done = func(Outcome) {
		close(entered)
		<-leave
	}
	if err := v.Submit(r); err != nil {
		t.Fatal(err)
	}
	select {
	case <-entered:
	case <-time.After(limit):
		t.Fatal("the first request was not answered")
	}
	var once sync.Once
	release = func() { once.Do(func() { close(leave) }) }
	t.Cleanup(release) // before the inventory's own clean-up, which waits for the seller
	return release
}

func TestInventory_Close_Drains(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(1000, 1000), 0)
		v := s.inventory(t, Config{MaxBatch: 16})
		release := stall(t, v, s.request("stalled", "k", 1))
		var answered atomic.Int64
		for i := range 100 {
			r := s.request("u", fmt.Sprint(i), 1)
			r.Done = func(o Outcome) {
				if o != (Outcome{}) {
					t.Errorf("outcome %+v, want accepted", o)
				}
				answered.Add(1)
			}
			if err := v.Submit(r); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- v.Close(await.Context(t)) }()
		await.True(t, "closing to begin", func() bool {
			v.mu.RLock()
			defer v.mu.RUnlock()
			return v.closed
		})
		if err := v.Submit(s.request("late", "k", 1)); !errors.Is(err, ErrOverloaded) {
			t.Errorf("submit while closing: %v, want ErrOverloaded", err)
		}
		select {
		case err := <-closed:
			t.Fatalf("closed with requests pending: %v", err)
		default:
		}
		release()
		select {
		case err := <-closed:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(limit):
			t.Fatal("Close did not return")
		}
		if n := answered.Load(); n != 100 {
			t.Errorf("%d of 100 requests were answered when Close returned", n)
		}
		if st := s.audit(t); len(st.queue) != 101 {
			t.Errorf("%d orders, want 101", len(st.queue))
		}
		lockKey, _ := v.locks.GuardKeys(v.keys.lock(s.item))
		if n, err := rdb.Exists(await.Context(t), lockKey).Result(); err != nil || n != 0 {
			t.Errorf("the item's lock is still there after Close (%d, %v)", n, err)
		}
		if err := v.Close(await.Context(t)); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

func TestInventory_Close_ContextEnds(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(10, 10), 0)
	v := s.inventory(t, Config{})
	release := stall(t, v, s.request("stalled", "k", 1))
	defer release()
	ctx, cancel := withCause(t)
	closed := make(chan error, 1)
	go func() { closed <- v.Close(ctx) }()
	cancel(errTest)
	select {
	case err := <-closed:
		if !errors.Is(err, errTest) {
			t.Errorf("Close: %v, want the context's cause", err)
		}
	case <-time.After(limit):
		t.Fatal("Close did not end with its context")
	}
}

func TestInventory_Purchase_ContextEnds(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(10, 10), 0)
	v := s.inventory(t, Config{})
	release := stall(t, v, s.request("stalled", "k", 1))
	ctx, cancel := withCause(t)
	r := s.request("u", "k", 1)
	got := make(chan error, 1)
	go func() {
		_, err := v.Purchase(ctx, r)
		got <- err
	}()
	cancel(errTest)
	if err := <-got; !errors.Is(err, errTest) {
		t.Errorf("Purchase: %v, want the context's cause", err)
	}
	release()
	// The outcome was unknown; a repeat gets it.
	o := buy(t, v, s.request("u", "k", 1))
	st := s.audit(t)
	i := slices.IndexFunc(st.queue, func(q sold) bool { return q.buyer == "u" })
	if i < 0 || o.Err != nil || o.ReplayOf != "" && o.ReplayOf != st.queue[i].id {
		t.Errorf("repeat: %+v, queue %+v", o, st.queue)
	}
}

// TestSeller_done: a seller that was idle for idleLife ends, and the next request starts
// another; one with pending requests stays.
func TestSeller_done(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(10, 10), 0)
	v := s.inventory(t, Config{})
	idle := newSeller(v, s.item) // without its goroutine
	v.mu.Lock()
	v.sellers[s.item] = idle
	v.mu.Unlock()
	if idle.done(false) {
		t.Error("a seller ended before its life was over")
	}
	idle.signal()
	if idle.done(true) {
		t.Error("a seller ended that was just woken")
	}
	r := s.request("u", "k", 1)
	r.Done = func(Outcome) {}
	if retry, err := idle.add(r); retry || err != nil {
		t.Fatal(retry, err)
	}
	if idle.done(true) {
		t.Error("a seller ended with a request pending")
	}
	if batch := idle.take(); len(batch) != 1 || batch[0] != r {
		t.Errorf("took %v", batch)
	}
	<-idle.wake
	if !idle.done(true) {
		t.Error("an idle seller stays for ever")
	}
	if retry, err := idle.add(r); !retry || err != nil {
		t.Errorf("a seller that ended took a request (%v)", err)
	}
	mustBuy(t, v, s.request("u", "k2", 1))
	if now, err := v.seller(s.item); err != nil || now == idle {
		t.Errorf("the seller that ended still sells, %v", err)
	}
}

// TestInventory_Submit/ErrQuantity: a quantity below one must never reach the script, where it
// would raise the stock.
func TestInventory_Submit_ErrQuantity(t *testing.T) {
	t.Parallel()
	var v Inventory // the request is refused before the Inventory is used
	for _, n := range []int64{0, -1, -1 << 62} {
		if err := v.Submit(&Request{Quantity: n}); !errors.Is(err, ErrQuantity) {
			t.Errorf("quantity %d: got %v, want ErrQuantity", n, err)
		}
	}
}

// TestInventory_Submit_PayloadOfSeveralLines: a payload must not contain the separator of the
// orders in a task.
func TestInventory_Submit_PayloadOfSeveralLines(t *testing.T) {
	t.Parallel()
	v := newShop(t, redistest.Embedded(t), open(1, 1), 0).inventory(t, Config{})
	if err := v.Submit(&Request{Quantity: 1, Payload: "a\nb"}); !errors.Is(err, errPayload) {
		t.Errorf("got %v, want errPayload", err)
	}
}
