package inventory

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
)

// sellOut sells the shop's stock, a unit each, and returns the accepted
// requests once "sold out" is answered from memory.
func sellOut(t *testing.T, s *shop, v *Inventory, stock int) []*Request {
	t.Helper()
	var accepted []*Request
	for i := range stock {
		r := s.request(fmt.Sprintf("winner%d", i), "k", 1)
		mustBuy(t, v, r)
		accepted = append(accepted, r)
	}
	awaitMark(t, s, v)
	return accepted
}

// awaitMark asks until a refusal needs no script. The answers until then must
// be the same one.
func awaitMark(t *testing.T, s *shop, v *Inventory) {
	t.Helper()
	n := 0
	await(t, "sold out to be answered from memory", func() bool {
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
		// A stranger whom the set of the accepted takes for a member costs a
		// script; with 1 % of them, 60 of 1,000 is far out of chance.
		if n := scripts.count() - before; n > 60 {
			t.Errorf("%d refusals cost %d scripts", refused, n)
		}
		// Everybody who was accepted has their order under the mark.
		for _, r := range accepted {
			if o := buy(t, v, s.request(r.Buyer, r.IdempotencyKey, 1)); o != (Outcome{ReplayOf: r.OrderID}) {
				t.Errorf("replay by %s: %+v, want order %s", r.Buyer, o, r.OrderID)
			}
			mustRefuse(t, v, s.request(r.Buyer, r.IdempotencyKey, 2), ErrKeyReused)
		}
		s.audit(t)
	})
}

// TestInventory_SoldOutMark_WithoutRedis ends the server: who may be refused
// from memory still is, who may have an order is not lied to.
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
	// A lock that could not be given back to a dead server lapses after the restart.
	cfg := lockConfig
	cfg.TTL, cfg.ClaimTTL, cfg.Liveness, cfg.CallTimeout = time.Second, 400*time.Millisecond, 300*time.Millisecond, time.Second
	v := s.inventoryOn(t, rdb, newLocks(t, rdb, cfg), Config{MarkLife: time.Hour, Patience: 300 * time.Millisecond})
	accepted := sellOut(t, s, v, 5)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range 100 {
		r := s.request(fmt.Sprintf("crowd%d", i), "k", 1)
		r.Done = func(Outcome) {}
		if err := v.Submit(r); errors.Is(err, ErrSoldOut) {
			refused++
		}
	}
	if refused < 90 {
		t.Errorf("%d of 100 were refused from memory", refused)
	}
	if o := buy(t, v, s.request(accepted[0].Buyer, "k", 1)); !errors.Is(o.Err, ErrUnavailable) && !errors.Is(o.Err, ErrOverloaded) {
		t.Errorf("an accepted buyer, without Redis: %+v", o)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the accepted buyer's order", func() bool {
		o := buy(t, v, s.request(accepted[0].Buyer, "k", 1))
		return o == Outcome{ReplayOf: accepted[0].OrderID}
	})
	s.audit(t)
}

func TestSeller_soldOut_Expires(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(2, 1), 0)
	v := s.inventory(t, Config{MarkLife: time.Hour})
	sellOut(t, s, v, 2)
	sel, err := v.seller(s.item)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Unix(0, sel.mark.Load().until.Load())
	if d := time.Until(until); d <= 0 || d > time.Hour {
		t.Errorf("the mark lives for %v, want up to MarkLife", d)
	}
	for _, c := range []struct {
		since time.Time
		want  bool
	}{{until.Add(-time.Nanosecond), true}, {until, false}, {until.Add(time.Second), false}} {
		r := s.request("stranger", "k", 1)
		r.since = c.since
		if got := sel.soldOut(r); got != c.want {
			t.Errorf("%v after the mark's end: %v, want %v", c.since.Sub(until), got, c.want)
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
		if err := rdb.Del(testContext(t), keys{1}.sale(s.item)).Err(); err != nil {
			t.Fatal(err)
		}
		n := 0
		await(t, "the returned unit to be sold", func() bool {
			n++
			o := buy(t, v, s.request(fmt.Sprintf("again%d", n), "k", 1))
			if o.Err != nil && !errors.Is(o.Err, ErrSoldOut) {
				t.Fatalf("outcome %+v", o)
			}
			return o.Err == nil
		})
		// The next mark is of the new build and knows the new order too.
		awaitMark(t, s, v)
		for _, r := range append(accepted, &Request{Buyer: fmt.Sprintf("again%d", n), IdempotencyKey: "k"}) {
			if o := buy(t, v, s.request(r.Buyer, r.IdempotencyKey, 1)); o.Err != nil || o.ReplayOf == "" {
				t.Errorf("replay by %s: %+v", r.Buyer, o)
			}
		}
		s.audit(t)
	})
}

// TestSeller_soldOut_OtherVersion: a mark made of one build of the sale is not
// renewed by a script that saw another.
func TestSeller_soldOut_OtherVersion(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(2, 1), 0)
	v := s.inventory(t, Config{MarkLife: time.Hour})
	sellOut(t, s, v, 2)
	sel, err := v.seller(s.item)
	if err != nil {
		t.Fatal(err)
	}
	first := sel.mark.Load()
	first.until.Store(1) // it has lapsed
	sel.markSoldOut("another version", time.Hour, sel.drops.Load())
	if got := first.until.Load(); got != 1 {
		t.Errorf("a mark of version %q was renewed until %d by another version", first.version, got)
	}
	await(t, "the new mark", func() bool { return sel.mark.Load() != first })
	m := sel.mark.Load()
	if m.version != "another version" || m.until.Load() != 0 {
		t.Errorf("the new mark is of version %q until %d, want it void until a script confirms it", m.version, m.until.Load())
	}
}

// TestInventory_SoldOutMark_Shut: an item that is sold out and shut says that it
// is shut, before its opening and after its end.
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

// TestInventory_SoldOutMark_Closes: the mark does not outlive the sale. The sale
// has to sell out and be marked before it closes; on a machine on which it is
// not, a longer one is tried.
func TestInventory_SoldOutMark_Closes(t *testing.T) {
	t.Parallel()
	for life := time.Second; !marksUntilClosed(t, life); life *= 2 {
		if life > limit {
			t.Fatalf("one unit was not sold, and then refused from memory, in a sale of %v", life/2)
		}
	}
}

// marksUntilClosed sells out a sale that closes after life, and sees it closed.
// It returns false when there was no time to sell out or to refuse from memory.
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
	await(t, "the sale to be closed", func() bool {
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
