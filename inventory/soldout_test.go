package inventory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// sellOut sells the shop's stock, a unit each, and returns the accepted
// requests once "sold out" is answered from memory.
func sellOut(t *testing.T, s *shop, v *Inventory, stock int) []*Request {
	t.Helper()
	var accepted []*Request
	for i := range stock {
		r := s.request(fmt.Sprintf("winner%d", i), "k", 1)
		mustBuyAtLast(t, v, r) // some callers use locks with a short TTL
		accepted = append(accepted, r)
	}
	awaitMark(t, s, v)
	return accepted
}

// awaitMark buys until a refusal needs no script. The answers until then must be the same.
func awaitMark(t *testing.T, s *shop, v *Inventory) {
	t.Helper()
	n := 0
	await.True(t, "sold out to be answered from memory", func() bool {
		n++
		done := make(chan Outcome, 1)
		r := s.request(fmt.Sprintf("stranger%d", n), "k", 1)
		r.Done = func(o Outcome) { done <- o }
		err := v.Submit(r)
		if err != nil {
			if !errors.Is(err, ErrSoldOut) {
				t.Fatalf("submit: %v", err)
			}
			return true
		}
		if o := <-done; !errors.Is(o.Err, ErrSoldOut) && !hurried(v, o.Err) {
			t.Fatalf("outcome %+v, want ErrSoldOut", o)
		}
		return false
	})
}

func TestInventory_SoldOutMark(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, shared *redis.Client) {
		rdb := redis.NewClient(redistest.Options(shared.Options().Addr))
		t.Cleanup(func() {
			if err := rdb.Close(); err != nil {
				t.Error(err)
			}
		})
		var scripts counter
		rdb.AddHook(&scripts)
		s := newShop(t, rdb, open(30, 1), 0)
		v := s.inventory(t, Config{MarkLife: time.Hour})
		accepted := sellOut(t, s, v, 30)

		before, refused := scripts.count(), 0
		for i := range 1000 {
			r := s.request(fmt.Sprintf("crowd%d", i), "k", 1)
			switch o := buy(t, v, r); {
			case errors.Is(o.Err, ErrSoldOut):
				refused++
			default:
				t.Fatalf("outcome %+v, want ErrSoldOut", o)
			}
		}
		// A false positive of the set of accepted keys costs a script. At a rate of 1 %, 60 of
		// 1,000 is far beyond chance.
		if n := scripts.count() - before; n > 60 {
			t.Errorf("%d refusals cost %d scripts", refused, n)
		}
		if err := v.Refusal(s.item+"-other", "crowd0", "k", 1); err != nil {
			t.Errorf("Refusal of an item that was never sold: %v, want nil", err)
		}
		if err := v.Refusal(s.item, "crowd0", "k", 1); !errors.Is(err, ErrSoldOut) && !v.sellers[s.item].mark.Load().accepted.has(keyHashOf("crowd0", "k")) {
			t.Errorf("Refusal under the mark: %v, want ErrSoldOut", err)
		}
		// All accepted buyers get their order under the mark.
		for _, r := range accepted {
			if err := v.Refusal(s.item, r.Buyer, r.IdempotencyKey, 1); err != nil {
				t.Errorf("Refusal of a replay by %s: %v, want nil", r.Buyer, err)
			}
			if o := buy(t, v, s.request(r.Buyer, r.IdempotencyKey, 1)); o != (Outcome{ReplayOf: r.OrderID}) {
				t.Errorf("replay by %s: %+v, want order %s", r.Buyer, o, r.OrderID)
			}
			mustRefuse(t, v, s.request(r.Buyer, r.IdempotencyKey, 2), ErrKeyReused)
		}
		s.audit(t)
	})
}

// TestInventory_SoldOutMark_WithoutRedis stops the server: a process without a subscription
// answers that it cannot sell, not that nothing is left.
func TestInventory_SoldOutMark_WithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newShop(t, rdb, open(5, 1), 0)
	// A lock that could not be released on a dead server expires after the restart.
	cfg := lockConfig
	cfg.TTL, cfg.ClaimTTL, cfg.Liveness, cfg.CallTimeout = time.Second, 400*time.Millisecond, 300*time.Millisecond, time.Second
	v := s.inventoryOn(t, rdb, newLocks(t, rdb, cfg), Config{MarkLife: time.Hour, Patience: 300 * time.Millisecond})
	accepted := sellOut(t, s, v, 5)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the marks to be out of use", func() bool { return !fromMemory(t, s, v) })
	for _, r := range []*Request{s.request("stranger", "k", 1), s.request(accepted[0].Buyer, "k", 1)} {
		if o := buy(t, v, r); !errors.Is(o.Err, ErrUnavailable) && !errors.Is(o.Err, ErrOverloaded) {
			t.Errorf("%s, without Redis: %+v", r.Buyer, o)
		}
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the accepted buyer's order", func() bool {
		o := buy(t, v, s.request(accepted[0].Buyer, "k", 1))
		return o == Outcome{ReplayOf: accepted[0].OrderID}
	})
	s.audit(t)
}

// TestInventory_SoldOutMark_Waiting: the script that sells the last unit answers the requests that
// wait behind it too, except a repeat of an accepted one.
func TestInventory_SoldOutMark_Waiting(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(2, 1), 0)
		var batches atomic.Int64
		v := s.inventory(t, Config{MaxBatch: 64, MarkLife: forEver, OnBatch: func(int, time.Duration) { batches.Add(1) }})
		awaitListening(t, s, v)
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		batches.Store(0)
		// The first answer is delayed, so that the others wait together.
		hold := make(chan struct{})
		first := s.request("first", "k", 1)
		first.Done = func(Outcome) { <-hold }
		if err := v.Submit(first); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the first batch", func() bool { return batches.Load() == 1 })
		requests := make([]*Request, 200)
		for i := range requests {
			requests[i] = s.request(fmt.Sprintf("u%d", i), "k", 1)
		}
		requests = append(requests, s.request(first.Buyer, first.IdempotencyKey, 1))
		outcomes := make([]Outcome, len(requests))
		var wg sync.WaitGroup
		for i, r := range requests {
			wg.Add(1)
			r.Done = func(o Outcome) {
				outcomes[i] = o
				wg.Done()
			}
			if err := v.Submit(r); err != nil {
				t.Fatal(err)
			}
		}
		close(hold)
		wg.Wait()
		for i, o := range outcomes {
			want := Outcome{Err: ErrSoldOut}
			switch i {
			case 0:
				want = Outcome{}
			case len(outcomes) - 1:
				want = Outcome{ReplayOf: first.OrderID}
			}
			if o != want {
				t.Errorf("%s: outcome %+v, want %+v", requests[i].Buyer, o, want)
			}
		}
		if n := batches.Load(); n != 3 {
			t.Errorf("%d scripts, want 3: the first purchase, the last unit, the repeat", n)
		}
		s.audit(t)
	})
}

func TestSeller_refuse_Expires(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(2, 1), 0)
	v := s.inventory(t, Config{MarkLife: time.Hour})
	sellOut(t, s, v, 2)
	sel, err := v.seller(s.item)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Unix(0, sel.mark.Load().until)
	if d := time.Until(until); d <= 0 || d > time.Hour {
		t.Errorf("the mark lives for %v, want up to MarkLife", d)
	}
	for _, c := range []struct {
		now  time.Time
		want bool
	}{{until.Add(-time.Nanosecond), true}, {until, false}, {until.Add(time.Second), false}} {
		r := s.request("stranger", "k", 1)
		r.since = until.Add(-time.Minute) // it has waited since
		if got := sel.refusal(r.Buyer, r.IdempotencyKey, r.Quantity, c.now) != nil; got != c.want {
			t.Errorf("%v after the mark's end: %v, want %v", c.now.Sub(until), got, c.want)
		}
	}
}

// TestInventory_SoldOutMark_StockReturns rebuilds the sale with more stock:
// the mark of the old build must not outlive MarkLife.
func TestInventory_SoldOutMark_StockReturns(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(3, 1), 0)
		v := s.inventory(t, Config{MarkLife: 100 * time.Millisecond})
		accepted := sellOut(t, s, v, 3)
		s.source.set(func(src *stored) {
			sale := src.sales[s.item]
			sale.Left++
			src.sales[s.item] = sale
		})
		if err := rdb.Del(await.Context(t), keys{1}.sale(s.item)).Err(); err != nil {
			t.Fatal(err)
		}
		n := 0
		await.True(t, "the returned unit to be sold", func() bool {
			n++
			o := buy(t, v, s.request(fmt.Sprintf("again%d", n), "k", 1))
			if o.Err != nil && !errors.Is(o.Err, ErrSoldOut) {
				t.Fatalf("outcome %+v", o)
			}
			return o.Err == nil
		})
		// The next mark belongs to the new build and has the key of the new order.
		awaitMark(t, s, v)
		for _, r := range append(accepted, &Request{Buyer: fmt.Sprintf("again%d", n), IdempotencyKey: "k"}) {
			if o := buy(t, v, s.request(r.Buyer, r.IdempotencyKey, 1)); o.Err != nil || o.ReplayOf == "" {
				t.Errorf("replay by %s: %+v", r.Buyer, o)
			}
		}
		s.audit(t)
	})
}

// TestInventory_SoldOutMark_Shut: an item that is sold out and closed is answered as closed,
// before its opening and after its end.
func TestInventory_SoldOutMark_Shut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opens, closes time.Duration // from now; 0: none
		control       string
		want          error
	}{
		"closed": {opens: -time.Hour, closes: -time.Minute, control: "open", want: ErrClosed},
		"paused": {opens: -time.Hour, control: "paused", want: ErrPaused},
		"early":  {opens: time.Hour, control: "open", want: &NotOpenError{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, redistest.Embedded(t), open(0, 1), 0)
			s.source.set(func(src *stored) {
				sale := src.sales[s.item]
				sale.OpensAt, sale.Control = time.Now().Add(tc.opens), tc.control
				if tc.closes != 0 {
					sale.ClosesAt = time.Now().Add(tc.closes)
				}
				src.sales[s.item] = sale
			})
			v := s.inventory(t, Config{MarkLife: time.Hour})
			for i := range 50 {
				err := buy(t, v, s.request(fmt.Sprintf("u%d", i), "k", 1)).Err
				var early *NotOpenError
				if errors.As(tc.want, &early) && errors.As(err, &early) {
					continue
				}
				if !errors.Is(err, tc.want) {
					t.Fatalf("request %d: %v, want %v", i, err, tc.want)
				}
			}
		})
	}
}

// TestInventory_SoldOutMark_Closes: the mark does not outlive the sale. The sale has to sell
// out and be marked before it closes; on a machine that is too slow for that, a longer sale is
// tried.
func TestInventory_SoldOutMark_Closes(t *testing.T) {
	t.Parallel()
	for life := time.Second; !marksUntilClosed(t, life); life *= 2 {
		if life > limit {
			t.Fatalf("one unit was not sold, and then refused from memory, in a sale of %v", life/2)
		}
	}
}

// marksUntilClosed sells out a sale that closes after life, and waits for its end. It returns
// false if there was no time to sell out or to refuse from memory.
func marksUntilClosed(t *testing.T, life time.Duration) bool {
	t.Helper()
	sale := open(1, 1)
	s := newShop(t, redistest.Embedded(t), sale, 0)
	v := s.inventory(t, Config{MarkLife: time.Hour})
	sale.ClosesAt = time.Now().Add(life)
	s.source.set(func(src *stored) { src.sales[s.item] = sale })
	first := buy(t, v, s.request("winner", "k", 1))
	if errors.Is(first.Err, ErrClosed) && !time.Now().Before(sale.ClosesAt) {
		return false
	}
	if first != (Outcome{}) {
		t.Fatalf("outcome %+v", first)
	}
	n, fromMemory := 0, false
	await.True(t, "the sale to be closed", func() bool {
		n++
		done := make(chan Outcome, 1)
		r := s.request(fmt.Sprintf("late%d", n), "k", 1)
		r.Done = func(o Outcome) { done <- o }
		err := v.Submit(r)
		if fromMemory = fromMemory || errors.Is(err, ErrSoldOut); err == nil {
			err = (<-done).Err
		}
		if err != nil && !errors.Is(err, ErrSoldOut) && !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		return errors.Is(err, ErrClosed)
	})
	return fromMemory
}

// TestInventory_SoldOutMark_Returns: units return again and again, and several processes sell
// them. Each process reads each accepted key once, however often it sets a mark, and every
// repeat gets its order from every process.
func TestInventory_SoldOutMark_Returns(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, shared *redis.Client) {
		const stock, rounds = 200, 20
		s := newShop(t, shared, open(stock, 1), 0)
		var processes []*Inventory
		var read [2]keyReader
		for i := range 2 {
			rdb := redistest.Second(t, shared)
			rdb.AddHook(&read[i])
			v := s.inventoryOn(t, rdb, newLocks(t, rdb, lockConfig), Config{MarkLife: forEver})
			awaitListening(t, s, v)
			processes = append(processes, v)
		}
		orders := sellOut(t, s, processes[0], stock)
		marked(t, s, processes...)
		for i := range rounds {
			wantStatus(t, s.give(t, orders[i]), ReleaseDone)
			for _, v := range processes {
				await.True(t, "the mark to go", func() bool { return !fromMemory(t, s, v) })
			}
			r := s.request(fmt.Sprintf("next%d", i), "k", 1)
			mustBuy(t, processes[i%2], r)
			orders = append(orders, r)
			marked(t, s, processes...)
			for _, v := range processes {
				if o := buy(t, v, s.request(r.Buyer, "k", 1)); o != (Outcome{ReplayOf: r.OrderID}) {
					t.Fatalf("round %d: repeat: %+v, want order %s", i, o, r.OrderID)
				}
			}
		}
		for _, r := range orders {
			for i, v := range processes {
				if o := buy(t, v, s.request(r.Buyer, "k", 1)); o != (Outcome{ReplayOf: r.OrderID}) {
					t.Errorf("process %d: repeat by %s: %+v, want order %s", i, r.Buyer, o, r.OrderID)
				}
			}
		}
		for i := range read {
			if n := read[i].keys.Load(); n != stock+rounds {
				t.Errorf("process %d has read %d accepted keys, want each of %d once", i, n, stock+rounds)
			}
			if n := read[i].scans.Load(); n != 0 {
				t.Errorf("process %d has scanned the sale %d times", i, n)
			}
		}
		s.audit(t)
	})
}

// keyReader counts the accepted keys that scripts return, and the scans of hashes.
type keyReader struct{ keys, scans atomic.Int64 }

func (k *keyReader) DialHook(next redis.DialHook) redis.DialHook { return next }
func (k *keyReader) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (k *keyReader) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "hscan" {
			k.scans.Add(1)
		}
		if c, ok := cmd.(*redis.Cmd); ok && err == nil && len(c.Args()) > 1 && c.Args()[1] == purchaseScript.Hash() {
			if r, err := parsePurchaseReply(c.Val()); err == nil {
				k.keys.Add(int64(len(r.more) / keyHashSize))
			}
		}
		return err
	}
}

// TestInventory_SoldOutMark_Pages: a sale with more accepted keys than fit into one reply is
// marked once all are known, also after a load.
func TestInventory_SoldOutMark_Pages(t *testing.T) {
	t.Parallel()
	const orders = 40_000 // three pages
	s := newShop(t, redis.NewClient(redistest.Options(redistest.Real(t).Addr())), open(orders, 1), 0)
	past := make([]Holding, orders)
	for i := range past {
		past[i] = Holding{Buyer: fmt.Sprintf("winner%d", i), IdempotencyKey: "k", OrderID: fmt.Sprintf("past-%d", i), Quantity: 1, Counts: true}
	}
	s.source.set(func(src *stored) { src.past[s.item] = past })
	v := s.inventory(t, Config{MarkLife: forEver})
	awaitListening(t, s, v)
	for i := range 2 {
		mustRefuse(t, v, s.request(fmt.Sprintf("early%d", i), "k", 1), ErrSoldOut)
		if fromMemory(t, s, v) {
			t.Fatalf("a mark was made after %d of 3 pages", i+1)
		}
	}
	mustRefuse(t, v, s.request("late", "k", 1), ErrSoldOut)
	if !fromMemory(t, s, v) {
		t.Fatal("no mark was made after the last page")
	}
	for i := 0; i < orders; i += 997 {
		if o := buy(t, v, s.request(past[i].Buyer, "k", 1)); o != (Outcome{ReplayOf: past[i].OrderID}) {
			t.Fatalf("repeat: %+v, want order %s", o, past[i].OrderID)
		}
	}
}

// TestInventory_SoldOutMark_Incomplete: no request is refused from memory if Redis lacks the
// keys of some accepted orders, because an older version of the program sold them.
func TestInventory_SoldOutMark_Incomplete(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(3, 2), 0)
		v := s.inventory(t, Config{MarkLife: forEver})
		awaitListening(t, s, v)
		first := s.request("first", "k", 1)
		mustBuy(t, v, first)
		if err := rdb.Del(await.Context(t), keys{1}.accepted(s.item)).Err(); err != nil {
			t.Fatal(err)
		}
		mustBuy(t, v, s.request("first", "k2", 1))
		mustBuy(t, v, s.request("next", "k", 1))
		for i := range 3 {
			mustRefuse(t, v, s.request(fmt.Sprintf("stranger%d", i), "k", 1), ErrSoldOut)
			if fromMemory(t, s, v) {
				t.Fatal("a mark was made without the first buyer's key")
			}
		}
		if o := buy(t, v, s.request("first", "k", 1)); o != (Outcome{ReplayOf: first.OrderID}) {
			t.Errorf("repeat: %+v", o)
		}
		missing := string(appendKeyHashes(nil, []*Request{first}))
		if err := rdb.Append(await.Context(t), keys{1}.accepted(s.item), missing).Err(); err != nil {
			t.Fatal(err)
		}
		s.audit(t)
	})
}

// TestKeySet: added keys are in the set, at most 1 in 100 others is, and the set may be read
// while keys are added.
func TestKeySet(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{0, 1, 1000, 1025, 100_000} {
		k := newKeySet("1", n)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range n {
				_ = k.has(keyHashOf("stranger", fmt.Sprint(i)))
			}
		})
		for i := range n {
			k.add(string(binary.BigEndian.AppendUint32(nil, keyHashOf(fmt.Sprint("buyer", i), "k"))))
		}
		wg.Wait()
		for i := range n {
			if !k.has(keyHashOf(fmt.Sprint("buyer", i), "k")) {
				t.Fatalf("of %d keys, key %d is not in the set", n, i)
			}
		}
		wrong := 0
		for i := range 10_000 {
			if k.has(keyHashOf(fmt.Sprint("stranger", i), "k")) {
				wrong++
			}
		}
		if wrong > 100 {
			t.Errorf("with %d keys, %d of 10,000 strangers are taken for members", n, wrong)
		}
		if k.known != n || k.full(n) {
			t.Errorf("%d keys: %d known, full %v", n, k.known, k.full(n))
		}
	}
	if !newKeySet("1", 1000).full(2000) || newKeySet("1", 1<<40).full(1<<41) {
		t.Error("a set is full when its keys have doubled, unless it has the greatest size")
	}
}

// TestInventory_Purchase_Limit: an order above the limit is refused for that reason, whatever
// else is wrong, with the present limit. A repeat of an order from before the limit was
// lowered gets its order.
func TestInventory_Purchase_Limit(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(3, 5), 0)
		v := s.inventory(t, Config{MarkLife: forEver})
		awaitListening(t, s, v)
		first := s.request("u", "k1", 3)
		mustBuy(t, v, first)
		lower := int64(2)
		if err := adjust(await.Context(t), rdb, keys{1}, 1, s.item, "", &Change{Version: 2, PerUserLimit: &lower}); err != nil {
			t.Fatal(err)
		}
		repeat := func() {
			t.Helper()
			if o := buy(t, v, s.request("u", "k1", 3)); o != (Outcome{ReplayOf: first.OrderID}) {
				t.Errorf("repeat: %+v, want order %s", o, first.OrderID)
			}
			mustRefuse(t, v, s.request("u", "k1", 4), ErrKeyReused)
			for _, buyer := range []string{"u", "w"} {
				var above *QuantityError
				if o := buy(t, v, s.request(buyer, "k2", 3)); !errors.As(o.Err, &above) || above.Limit != 2 {
					t.Errorf("a new order by %s: %+v, want a QuantityError with limit 2", buyer, o)
				}
			}
		}
		repeat() // nothing is left
		awaitMark(t, s, v)
		repeat() // under the mark
		wantStatus(t, s.give(t, first), ReleaseDone)
		repeat()
		control := "paused"
		if err := adjust(await.Context(t), rdb, keys{1}, 1, s.item, "", &Change{Version: 3, Control: &control}); err != nil {
			t.Fatal(err)
		}
		repeat()
	})
}
