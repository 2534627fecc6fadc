package inventory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// forEver is a mark's life in tests in which only a message may end it.
const forEver = time.Hour

// fromMemory reports whether the process would refuse a new buyer without Redis.
func fromMemory(t testing.TB, s *shop, v *Inventory) bool {
	t.Helper()
	sel, err := v.seller(s.item)
	if err != nil {
		t.Fatal(err)
	}
	r := s.request("stranger of "+s.item, "k", 1)
	r.since = time.Now()
	return sel.refusal(r.Buyer, r.IdempotencyKey, r.Quantity, r.since) != nil
}

// marked makes every process refuse from memory, and waits until that is stable: the message
// of the sale's load also drops a mark.
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

// awaitListening waits until the subscription carries messages, and all messages that were
// published before have arrived. It uses items of its own, so that it drops no mark.
func awaitListening(t testing.TB, s *shop, v *Inventory) {
	t.Helper()
	await.True(t, "the subscription", v.subscribed.Load)
	serial.mu.Lock()
	serial.n++
	item := fmt.Sprintf("%s-probe-%d", s.item, serial.n)
	serial.mu.Unlock()
	probe, err := v.seller(item)
	if err != nil {
		t.Fatal(err)
	}
	await.True(t, "a message", func() bool {
		if err := s.rdb.Publish(await.Context(t), keys{1}.stockChannel(0), item).Err(); err != nil {
			t.Fatal(err)
		}
		return probe.drops.Load() > 0
	})
}

// TestInventory_Listen_Released: a unit that returns can be bought on every process, though
// each has just answered "sold out" from memory.
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
				await.True(t, fmt.Sprintf("process %d to forget that nothing is left", i), func() bool { return !fromMemory(t, s, v) })
			}
			v := processes[1+round]
			mustBuy(t, v, s.request(fmt.Sprintf("next%d", round), "k", 1))
			// A new mark has the key of the new order.
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

// TestInventory_Listen_Others: the message affects only one item.
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
		await.True(t, "the item's mark to go", func() bool { return !fromMemory(t, s, v) })
		if !fromMemory(t, &other, v) {
			t.Error("another item's mark went too")
		}
	})
}

// twoLinks is a client whose subscriptions use a connection of their own.
type twoLinks struct {
	redis.UniversalClient
	subscriptions *redis.Client
}

func (c twoLinks) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return c.subscriptions.Subscribe(ctx, channels...)
}

// listener returns an inventory whose subscription goes through the proxy.
func listener(t *testing.T, s *shop, p *redistest.Proxy, cfg Config) *Inventory {
	t.Helper()
	hears := redis.NewClient(redistest.Options(p.Addr()))
	t.Cleanup(func() {
		if err := hears.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg.signOfLife = 500 * time.Millisecond // so that a silent link is noticed
	return s.inventoryOn(t, twoLinks{s.rdb, hears}, newLocks(t, s.rdb, lockConfig), cfg)
}

// TestInventory_Listen_NoSubscription: a process without a subscription answers no request from memory,
// so a unit that returns can be bought there immediately.
func TestInventory_Listen_NoSubscription(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(1, 1), 0)
		p := redistest.NewProxy(t, rdb.Options().Addr)
		p.Refuse(true) // no subscription is ever confirmed
		v := listener(t, s, p, Config{MarkLife: forEver})
		winner := s.request("winner", "k", 1)
		mustBuy(t, v, winner)
		for i := range 5 {
			mustRefuse(t, v, s.request(fmt.Sprintf("stranger%d", i), "k", 1), ErrSoldOut)
		}
		wantStatus(t, s.give(t, winner), ReleaseDone)
		mustBuy(t, v, s.request("next", "k", 1))
		if v.subscribed.Load() {
			t.Error("there is a subscription; the test means to have none")
		}
		s.audit(t)
	})
}

// links are the ways in which a subscription is lost.
var links = map[string]func(p *redistest.Proxy, down bool){
	"Severed": func(p *redistest.Proxy, down bool) {
		p.Refuse(down)
		if down {
			p.Sever()
		}
	},
	// Without an error: the link just stops carrying data.
	"Silent": func(p *redistest.Proxy, down bool) { p.Blackhole(down) },
}

// TestInventory_Listen_LinkLost: once the loss of the link is detected, a repeat of an order
// that another process accepted meanwhile gets that order. Marks are used again when the link
// is up again. Each loss has the same effect.
func TestInventory_Listen_LinkLost(t *testing.T) {
	t.Parallel()
	for name, cut := range links {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				s := newShop(t, rdb, open(1, 1), 0)
				p := redistest.NewProxy(t, rdb.Options().Addr)
				lost := make(chan struct{}, 1)
				v := listener(t, s, p, Config{MarkLife: forEver, OnError: func(error) {
					select {
					case lost <- struct{}{}:
					default:
					}
				}})
				other := s.inventory(t, Config{})
				awaitListening(t, s, v)
				winner := sellOut(t, s, v, 1)[0]
				for round := range 2 {
					marked(t, s, v)
					select {
					case <-lost:
					default:
					}
					cut(p, true)
					wantStatus(t, s.give(t, winner), ReleaseDone)
					winner = s.request(fmt.Sprintf("next%d", round), "k", 1)
					await.True(t, "the other process to forget that nothing is left", func() bool { return !fromMemory(t, s, other) })
					mustBuy(t, other, winner)
					select {
					case <-lost:
					case <-time.After(limit):
						t.Fatal("the loss was not noticed")
					}
					if o := buy(t, v, s.request(winner.Buyer, "k", 1)); o != (Outcome{ReplayOf: winner.OrderID}) {
						t.Errorf("round %d: a repeat to the process that missed the message: %+v, want order %s", round, o, winner.OrderID)
					}
					cut(p, false)
				}
				marked(t, s, v)
				s.audit(t)
			})
		})
	}
}

// TestInventory_SoldOutMark_MessageMissed: a process whose link is up, but which has missed a
// message, notices from its next reply, whatever the purchase, that the mark is old.
func TestInventory_SoldOutMark_MessageMissed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(2, 1), 0)
		v, other := s.inventory(t, Config{MarkLife: forEver}), s.inventory(t, Config{MarkLife: forEver})
		awaitListening(t, s, v)
		winners := sellOut(t, s, v, 2)
		marked(t, s, v)
		giveSilently(t, s, winners[0])
		next := s.request("next", "k", 1)
		mustBuy(t, other, next)
		if !fromMemory(t, s, v) {
			t.Fatal("the mark went without a message")
		}
		// The reply to a repeat does not say whether something is left.
		repeat := buy(t, v, s.request(winners[1].Buyer, "k", 1))
		if repeat != (Outcome{ReplayOf: winners[1].OrderID}) {
			t.Fatalf("repeat: %+v", repeat)
		}
		if o := buy(t, v, s.request(next.Buyer, "k", 1)); o != (Outcome{ReplayOf: next.OrderID}) {
			t.Errorf("a repeat of an order that was accepted after the mark: %+v, want order %s", o, next.OrderID)
		}
		giveSilently(t, s, winners[1])
		if repeat = buy(t, v, s.request(winners[1].Buyer, "k", 1)); repeat.ReplayOf == "" {
			t.Fatalf("repeat: %+v", repeat)
		}
		mustBuy(t, v, s.request("last", "k", 1))
		s.audit(t)
	})
}

// giveSilently returns an order's unit, with a message that no process receives.
func giveSilently(t *testing.T, s *shop, o *Request) {
	t.Helper()
	k := keys{1}
	answer, err := releaseScript.Run(await.Context(t), s.rdb, []string{k.sale(s.item), k.idempotency(s.item), k.buyers(s.item)},
		1, "nowhere", s.item, 1, o.Buyer, o.IdempotencyKey, o.OrderID, o.Quantity).Text()
	if err != nil || !strings.HasSuffix(answer, " K") {
		t.Fatalf("release: %q, %v", answer, err)
	}
	s.given[o.OrderID] = true
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
		// In one transaction, so that the message has no subscriber.
		ctx := await.Context(t)
		var killed *redis.IntCmd
		if _, err := rdb.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			killed = tx.ClientKillByFilter(ctx, "TYPE", "pubsub")
			o := winner
			tx.Eval(ctx, versionLua+"\n"+buyerLua+"\n"+releaseLua, []string{v.keys.sale(s.item), v.keys.idempotency(s.item), v.keys.buyers(s.item)},
				1, keys{1}.stockChannel(0), s.item, 1, o.Buyer, o.IdempotencyKey, o.OrderID, o.Quantity)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s.given[winner.OrderID] = true
		if killed.Val() == 0 {
			t.Fatal("no subscription was killed")
		}
		await.True(t, "the mark to go", func() bool { return !fromMemory(t, s, v) })
		winner = s.request(fmt.Sprintf("next%d", round), "k", 1)
		mustBuy(t, v, winner)
	}
	s.audit(t)
}

// TestInventory_Listen_Ends: an inventory that cannot reach Redis still closes.
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
	for range 3 { // it keeps trying
		select {
		case <-failed:
		case <-time.After(limit):
			t.Fatal("the missing subscription was not reported")
		}
	}
	if err := v.Close(await.Context(t)); err != nil {
		t.Error(err)
	}
	if err := v.Close(await.Context(t)); err != nil {
		t.Error(err)
	}
}

// TestSeller_noteSoldOut_Dropped: a script that was under way when the message came may have
// run before the stock returned. Its reply neither sets a new mark nor keeps the old one.
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
	await.True(t, "the seller to rest", func() bool {
		sel.mu.Lock()
		defer sel.mu.Unlock()
		return len(sel.pending) == 0
	})
	reply := &purchaseReply{status: "ok", verdicts: "S", version: s.state(t).sale["version"], accepted: 1, limit: 1}
	before := sel.drops.Load()
	v.DropSoldOutMark(s.item)
	if fromMemory(t, s, v) {
		t.Fatal("the mark survived the message")
	}
	sel.noteSoldOut(reply, before)
	if sel.mark.Load() != nil {
		t.Error("a script sent before the message made a mark")
	}
	// A mark that is stored while the message arrives is invalid.
	sel.mark.Store(old)
	if fromMemory(t, s, v) {
		t.Error("a mark of before the message counts after it")
	}
	sel.noteSoldOut(reply, before)
	if sel.mark.Load() != nil {
		t.Error("a script sent before the message has kept a mark")
	}
	sel.noteSoldOut(reply, sel.drops.Load())
	if m := sel.mark.Load(); m == nil || m.drops != sel.drops.Load() || !fromMemory(t, s, v) {
		t.Error("a script sent after the message made no mark")
	}
}

// TestRelease_Version: the version changes when further orders can be accepted, and stays
// while only the number of units left changes.
func TestRelease_Version(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(3, 3), 0)
		v := s.inventory(t, Config{MarkLife: time.Nanosecond})
		if err := v.Open(await.Context(t), s.item); err != nil {
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
