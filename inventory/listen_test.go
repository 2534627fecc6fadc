package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
)

// forEver is a mark's life in tests in which only a message may end it.
const forEver = time.Hour

// fromMemory reports whether the process would refuse a stranger without Redis.
func fromMemory(t testing.TB, s *shop, v *Inventory) bool {
	t.Helper()
	sel, err := v.seller(s.item)
	if err != nil {
		t.Fatal(err)
	}
	r := s.request("stranger of "+s.item, "k", 1)
	r.since = time.Now()
	return sel.soldOut(r)
}

// marked brings every process to where it refuses from memory, and keeps it so:
// a mark is also dropped by the confirmation of the first subscription.
func marked(t *testing.T, s *shop, processes ...*Inventory) {
	t.Helper()
	for _, v := range processes {
		awaitListening(t, s, v)
		awaitMark(t, s, v)
		if !fromMemory(t, s, v) {
			t.Fatal("a mark did not stay")
		}
	}
}

// awaitListening waits until the subscription is confirmed and carries
// messages, on an item of its own, so that no mark is dropped by a late one.
func awaitListening(t testing.TB, s *shop, v *Inventory) {
	t.Helper()
	item := s.item + "-probe"
	probe, err := v.seller(item)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the subscription", func() bool {
		if err := s.rdb.Publish(testContext(t), stockChannel(0), item).Err(); err != nil {
			t.Fatal(err)
		}
		return probe.drops.Load() > 1 // the confirmation is one, and a message comes after it
	})
}

// TestInventory_Listen_Released: a unit that comes back can be bought on every
// process, though each has just said from memory that there is none.
func TestInventory_Listen_Released(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(2, 1), 0)
		var processes []*Inventory
		for range 3 {
			own := redistest.Second(t, rdb)
			processes = append(processes, s.inventoryOn(t, own, newLocks(t, own, lockConfig), Config{MarkLife: forEver}))
		}
		for _, v := range processes {
			awaitListening(t, s, v)
		}
		winners := sellOut(t, s, processes[0], 2)
		marked(t, s, processes...)
		for round, winner := range winners {
			wantStatus(t, s.give(t, winner), ReleaseDone)
			for i, v := range processes {
				await(t, fmt.Sprintf("process %d to forget that nothing is left", i), func() bool { return !fromMemory(t, s, v) })
			}
			v := processes[1+round]
			mustBuy(t, v, s.request(fmt.Sprintf("next%d", round), "k", 1))
			// A new mark knows the new order.
			marked(t, s, processes...)
			for _, v := range processes {
				if o := buy(t, v, s.request(fmt.Sprintf("next%d", round), "k", 1)); o.ReplayOf == "" {
					t.Errorf("replay by the new winner: %+v", o)
				}
			}
		}
		s.audit(t)
	})
}

// TestInventory_Listen_Others: the message is about one item.
func TestInventory_Listen_Others(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(1, 1), 0)
		other := *s
		other.item = s.item + "-2"
		s.source.set(func(src *stored) { src.sales[other.item] = open(1, 1) })
		v := s.inventory(t, Config{MarkLife: forEver})
		awaitListening(t, s, v)
		winner := sellOut(t, s, v, 1)[0]
		sellOut(t, &other, v, 1)
		marked(t, s, v)
		marked(t, &other, v)
		wantStatus(t, s.give(t, winner), ReleaseDone)
		await(t, "the item's mark to go", func() bool { return !fromMemory(t, s, v) })
		if !fromMemory(t, &other, v) {
			t.Error("another item's mark went too")
		}
	})
}

// twoLinks is a client whose subscriptions take a way of their own.
type twoLinks struct {
	redis.UniversalClient
	subscriptions *redis.Client
}

func (c twoLinks) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return c.subscriptions.Subscribe(ctx, channels...)
}

// listener returns an inventory that hears through the proxy.
func listener(t *testing.T, s *shop, p *redistest.Proxy, cfg Config) *Inventory {
	t.Helper()
	hears := redis.NewClient(redistest.Options(p.Addr()))
	t.Cleanup(func() {
		if err := hears.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.inventoryOn(t, twoLinks{s.rdb, hears}, newLocks(t, s.rdb, lockConfig), cfg)
}

// TestInventory_Listen_MessageLost: without the message the unit can be bought
// once the mark's life is over.
func TestInventory_Listen_MessageLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(1, 1), 0)
		p := redistest.NewProxy(t, rdb.Options().Addr)
		p.Refuse(true) // no subscription ever stands
		v := listener(t, s, p, Config{MarkLife: 200 * time.Millisecond})
		winner := sellOut(t, s, v, 1)[0]
		wantStatus(t, s.give(t, winner), ReleaseDone)
		n := 0
		await(t, "the unit to be sold", func() bool {
			n++
			o := buy(t, v, s.request(fmt.Sprintf("again%d", n), "k", 1))
			return o.Err == nil
		})
		if sel, err := v.seller(s.item); err != nil || sel.drops.Load() != 0 {
			t.Errorf("something was heard (%v); the test means to have no subscription", err)
		}
		s.audit(t)
	})
}

// TestInventory_Listen_LinkLost: what was published while the link was down is
// made good when it is up again, each time it was.
func TestInventory_Listen_LinkLost(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(p *redistest.Proxy, down bool){
		"Severed": func(p *redistest.Proxy, down bool) {
			p.Refuse(down)
			if down {
				p.Sever()
			}
		},
		// Nothing tells of it: the link just carries nothing any more.
		"Silent": func(p *redistest.Proxy, down bool) { p.Blackhole(down) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				s := newShop(t, rdb, open(1, 1), 0)
				p := redistest.NewProxy(t, rdb.Options().Addr)
				var mu sync.Mutex
				var last error
				v := listener(t, s, p, Config{MarkLife: forEver, OnError: func(err error) {
					mu.Lock()
					defer mu.Unlock()
					last = err
				}})
				awaitListening(t, s, v)
				winner := sellOut(t, s, v, 1)[0]
				for shown, round := 0, 0; shown < 2; round++ {
					marked(t, s, v)
					cut(p, true)
					wantStatus(t, s.give(t, winner), ReleaseDone)
					await(t, "the loss to be noticed", func() bool {
						mu.Lock()
						defer mu.Unlock()
						return last != nil
					})
					// On a busy machine a late confirmation of the link before may have
					// dropped the mark; such a round shows nothing.
					if fromMemory(t, s, v) {
						shown++
					} else if round == 10 {
						t.Fatal("the mark went without a message each time")
					}
					cut(p, false)
					await(t, "the mark to go with the new subscription", func() bool { return !fromMemory(t, s, v) })
					winner = s.request(fmt.Sprintf("next%d", round), "k", 1)
					mustBuy(t, v, winner)
					mu.Lock()
					last = nil
					mu.Unlock()
				}
				s.audit(t)
			})
		})
	}
}

// TestInventory_Listen_Killed: Redis itself ends the subscriptions, twice.
func TestInventory_Listen_Killed(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newShop(t, rdb, open(1, 1), 0)
	v := s.inventory(t, Config{MarkLife: forEver})
	awaitListening(t, s, v)
	winner := sellOut(t, s, v, 1)[0]
	for round := range 2 {
		marked(t, s, v)
		// In one transaction, so that the message finds nobody.
		ctx := testContext(t)
		var killed *redis.IntCmd
		if _, err := rdb.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			killed = tx.ClientKillByFilter(ctx, "TYPE", "pubsub")
			o := winner
			tx.Eval(ctx, versionLua+"\n"+releaseLua, []string{v.keys.sale(s.item), v.keys.idempotency(s.item), v.keys.buyers(s.item)},
				1, stockChannel(0), s.item, 1, o.Buyer, o.IdempotencyKey, o.OrderID, o.Quantity)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s.given[winner.OrderID] = true
		if killed.Val() == 0 {
			t.Fatal("no subscription was killed")
		}
		await(t, "the mark to go", func() bool { return !fromMemory(t, s, v) })
		winner = s.request(fmt.Sprintf("next%d", round), "k", 1)
		mustBuy(t, v, winner)
	}
	s.audit(t)
}

// TestInventory_Listen_Ends: an inventory that can reach nobody still closes.
func TestInventory_Listen_Ends(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	s := newShop(t, rdb, open(1, 1), 0)
	p := redistest.NewProxy(t, rdb.Options().Addr)
	p.Refuse(true)
	failed := make(chan struct{}, 1000)
	v := listener(t, s, p, Config{OnError: func(err error) {
		if errors.Is(err, context.Canceled) {
			t.Errorf("the end is no error: %v", err)
		}
		failed <- struct{}{}
	}})
	for range 3 { // it goes on trying
		select {
		case <-failed:
		case <-time.After(limit):
			t.Fatal("the missing subscription was not reported")
		}
	}
	if err := v.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	if err := v.Close(testContext(t)); err != nil {
		t.Error(err)
	}
}

// TestSeller_noteSoldOut_Dropped: a script that was under way when the message
// came may have run before the stock returned. What it says is no ground for a
// mark, neither an old one nor a new one.
func TestSeller_noteSoldOut_Dropped(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(1, 1), 0)
	v := s.inventory(t, Config{MarkLife: forEver})
	awaitListening(t, s, v)
	sellOut(t, s, v, 1)
	sel, err := v.seller(s.item)
	if err != nil {
		t.Fatal(err)
	}
	old := sel.mark.Load()
	if old.drops != sel.drops.Load() {
		t.Fatal("the mark is void from the start")
	}
	reply := &purchaseReply{status: "ok", verdicts: "S", version: old.version}
	before := sel.drops.Load()
	v.dropMark(s.item)
	if fromMemory(t, s, v) {
		t.Fatal("the mark survived the message")
	}
	sel.noteSoldOut(reply, before)
	if sel.mark.Load() != nil || sel.marking.Load() {
		t.Error("a script sent before the message made a mark")
	}
	// A mark whose set was read before the message may come after it.
	sel.mark.Store(old)
	sel.noteSoldOut(reply, before)
	if fromMemory(t, s, v) {
		t.Error("a mark of before the message counts after it")
	}
	old.until.Store(1)
	sel.noteSoldOut(reply, sel.drops.Load())
	if old.until.Load() != 1 {
		t.Error("a mark of before the message was renewed by a script sent after it")
	}
	await(t, "a new mark", func() bool { m := sel.mark.Load(); return m != nil && m != old })
	if m := sel.mark.Load(); m.drops != sel.drops.Load() || m.version != old.version {
		t.Errorf("the new mark is of drop %d, version %q", m.drops, m.version)
	}
}

// TestRelease_Version: the version is another once the accepted may grow again,
// and the same while it only matters how many are left.
func TestRelease_Version(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(3, 3), 0)
		v := s.inventory(t, Config{MarkLife: time.Nanosecond})
		if err := v.Open(testContext(t), s.item); err != nil {
			t.Fatal(err)
		}
		seen := []string{s.state(t).sale["version"]}
		var all []*Request
		for i := range 3 {
			r := s.request(fmt.Sprintf("u%d", i), "k", 1)
			mustBuy(t, v, r)
			all = append(all, r)
		}
		for _, r := range all {
			s.give(t, r)
			seen = append(seen, s.state(t).sale["version"])
		}
		mustBuy(t, v, s.request("all", "k", 3))
		s.give(t, &Request{Buyer: "all", IdempotencyKey: "k", OrderID: s.audit(t).queue[3].id, Quantity: 3})
		seen = append(seen, s.state(t).sale["version"])
		if seen[0] == seen[1] || seen[1] != seen[2] || seen[2] != seen[3] || seen[3] == seen[4] || seen[4] == seen[0] {
			t.Errorf("versions are %v, want another after each time that nothing was left", seen)
		}
	})
}
