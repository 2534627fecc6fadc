//go:build unix

package main_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/process"
)

// persistent is a crowd that buys one item from a process that is killed repeatedly. Each buyer
// repeats the purchase with its key until it is decided. All answers are recorded.
type persistent struct {
	t    *testing.T
	c    *client
	item string
	done chan []purchase // each buyer's last answer

	mu       sync.Mutex
	accepted []purchase // all answers with an order, repeats included
	answers  int        // definite answers
	cut      int        // purchases whose outcome the buyer did not learn
	moved    chan struct{}
}

// gather starts the crowd; at most width buyers buy concurrently.
func gather(t *testing.T, c *client, item string, buyers, width int) *persistent {
	p := &persistent{t: t, c: c, item: item, done: make(chan []purchase, 1), moved: make(chan struct{}, 1)}
	go func() {
		p.done <- stream(buyers, width, func(i int) purchase {
			got := purchase{user: fmt.Sprintf("u%d", i), key: "k", err: errDial{}}
			// On an engine that is not durable, a purchase waits for its commit even if it does
			// not ask for it.
			var headers []string
			if i%3 == 0 {
				headers = []string{"Prefer", "respond-async"}
			}
			// One call of settle covers one restart, and a buyer may see all of them.
			for n := 0; n < 6 && (got.err != nil || got.Status == 503); n++ {
				got = c.settle(item, c.buy(item, got.user, got.key, headers...), p.note)
			}
			return got
		})
	}()
	return p
}

func (p *persistent) note(got purchase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case got.err != nil:
		p.cut++
		return
	case got.Status == 503:
		return // the process starts, and has decided nothing
	}
	p.answers++
	if got.accepted() {
		p.accepted = append(p.accepted, got)
	}
	select {
	case p.moved <- struct{}{}:
	default:
	}
}

// further waits for n more answers. It returns false if the crowd ends before that.
func (p *persistent) further(n int) bool {
	p.t.Helper()
	p.mu.Lock()
	goal := p.answers + n
	p.mu.Unlock()
	limit := time.After(2 * time.Minute)
	for {
		p.mu.Lock()
		there := p.answers >= goal
		p.mu.Unlock()
		if there {
			return true
		}
		select {
		case <-p.moved:
		case last := <-p.done:
			p.done <- last
			return false
		case <-limit:
			p.t.Fatalf("no %d answers within two minutes", n)
		}
	}
}

// judge waits for the end of the crowd, and checks that no answer was taken back: an order
// answered 201 is in the database and in every repeat. Exactly the stock is sold.
func (p *persistent) judge(s *shop, stock int) {
	p.t.Helper()
	var last []purchase
	select {
	case last = <-p.done:
	case <-time.After(2 * time.Minute):
		p.t.Fatal("the buyers were not decided within two minutes")
	}
	only(p.t, last, "201", "409 sold_out")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == 0 {
		p.t.Error("no purchase was cut off: the process died between purchases")
	}
	orders := make(map[string]string)
	for _, a := range p.accepted {
		if a.Status != 201 {
			p.t.Errorf("%s was answered %d on an engine that is not durable", a.user, a.Status)
		}
		if first, told := orders[a.user]; told && first != a.Order.ID {
			p.t.Errorf("%s has order %s, and the same key got %s", a.user, first, a.Order.ID)
		}
		orders[a.user] = a.Order.ID
	}
	for _, l := range last {
		if id, told := orders[l.user]; told && l.Order.ID != id {
			p.t.Errorf("%s has order %s, and finally got %s", l.user, id, l.verdict())
		}
	}
	if rows := s.audit(p.c, p.item, 1, p.accepted); len(rows) != stock {
		p.t.Errorf("%d rows, want %d", len(rows), stock)
	}
	if left := s.ledger(p.c, p.item).Left; left != 0 {
		p.t.Errorf("%d left unsold", left)
	}
}

// TestServe_KilledAtRandom kills the all-in-one process six times during one burst. The seed
// determines each moment: after a number of answers, and within the following millisecond or
// two.
func TestServe_KilledAtRandom(t *testing.T) {
	needProcesses(t)
	testKilledAtRandom(t, 1)
}

func TestServe_KilledAtRandom_Long(t *testing.T) {
	longtest.Only(t)
	needProcesses(t)
	testKilledAtRandom(t, 2, 3)
}

func testKilledAtRandom(t *testing.T, seeds ...uint64) {
	t.Helper()
	const buyers, stock, kills = 2000, 1500, 6
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			draw := rand.New(rand.NewPCG(seed, 0))
			s := newShop(t)
			p := s.serve(noLimit...)
			c := dial(t, p)
			crowd := gather(t, c, s.newItem(c, stock, 1), buyers, 24)
			for range kills {
				if !crowd.further(1 + draw.IntN(150)) {
					t.Fatal("the burst was over before the last kill")
				}
				<-lasting(t, time.Duration(draw.IntN(2000))*time.Microsecond)
				p.Kill()
				// It may be killed again before it is ready.
				again := p.Spec()
				again.NoWait = true
				p = process.Start(t, again)
			}
			crowd.judge(s, stock)
		})
	}
}

// TestServe_KilledAtEachPoint kills the process during one burst at each fault point of a
// purchase. The seed determines their order and how often each is passed before.
func TestServe_KilledAtEachPoint(t *testing.T) {
	needProcesses(t)
	const buyers, stock = 240, 160
	for _, seed := range []uint64{1, 2} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			draw := rand.New(rand.NewPCG(seed, 0))
			// Each batch passes each point once, and the buyers come in a few dozen batches: a
			// higher number might not be reached.
			places := []string{"inventory.send", "inventory.sent", "order.committed", "inventory.sent", "order.committed"}
			draw.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
			s := newShop(t)
			p := s.serve(noLimit...)
			c := dial(t, p)
			item := s.newItem(c, stock, 1)
			var crowd *persistent
			for i, place := range places {
				p.Kill()
				doomed := s.faultySpec(fmt.Sprintf("%s:%d", place, 1+draw.IntN(2)), "serve", append([]string{"--demo=false"}, noLimit...))
				// Under load it may be killed before it is ready.
				doomed.Addr, doomed.NoWait = p.Spec().Addr, true
				p = process.Start(t, doomed)
				if i == 0 {
					crowd = gather(t, c, item, buyers, 8)
				}
				struck(t, p)
			}
			spec := s.spec("serve", append([]string{"--demo=false"}, noLimit...))
			spec.Addr = p.Spec().Addr
			process.Start(t, spec)
			crowd.judge(s, stock)
		})
	}
}

// TestServe_KilledInReturn kills the process while it returns a cancelled order's unit: the
// order stays cancelled, and the unit is sold exactly once more.
func TestServe_KilledInReturn(t *testing.T) {
	needProcesses(t)
	for _, place := range []string{"order.closed", "order.released"} {
		t.Run(place, func(t *testing.T) {
			const stock = 12
			s := newShop(t)
			doomed := s.faulty(place, "serve", append([]string{"--demo=false"}, noLimit...)...)
			c := dial(t, doomed)
			item := s.newItem(c, stock, 1)
			first := stream(stock, 8, func(i int) purchase {
				return c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k", untilCommitted...))
			})
			only(t, first, "201")
			gone := first[0]
			if a, err := c.do("POST", "/v1/orders/"+gone.Order.ID+"/cancel", c.token(gone.user, auth.RoleBuyer), ""); err == nil {
				t.Fatalf("the process answered before it died: %s", a.verdict())
			}
			struck(t, doomed)
			c = dial(t, s.serve(noLimit...))
			if a := c.send(gone.Order.ID, "cancel", gone.user, auth.RoleBuyer, ""); a.Status != 200 || a.Order.Status != "cancelled" {
				t.Errorf("the repeat of the cancellation: %s %s", a.verdict(), a.Order.Status)
			}
			comesBack(t, c, item, "late")
			if n := soldOutTo(t, item, "later", 40, c); n != 0 {
				t.Errorf("%d units more than there are", n)
			}
			if l := s.ledger(c, item); l.Sold != stock || l.Left != 0 {
				t.Errorf("the ledger says %+v", l)
			}
			held := slices.DeleteFunc(s.rows(item), func(r orderRow) bool { return r.Status != "confirmed" })
			if len(held) != stock {
				t.Errorf("%d confirmed orders, want %d", len(held), stock)
			}
		})
	}
}

// TestServe_KilledInRestock kills the process during a restock, before and after its commit and
// after the change of the sale: a repeat with its key completes it once, and every unit is
// sold.
func TestServe_KilledInRestock(t *testing.T) {
	needProcesses(t)
	for _, place := range []string{"inventory.suspended", "inventory.changed", "inventory.adjusted"} {
		t.Run(place, func(t *testing.T) {
			const stock, more = 10, 7
			s := newShop(t)
			doomed := s.faulty(place, "serve", append([]string{"--demo=false"}, noLimit...)...)
			c := dial(t, doomed)
			item := s.newItem(c, stock, 1)
			if n := soldOutTo(t, item, "early", 20, c); n != stock {
				t.Fatalf("%d of %d were sold", n, stock)
			}
			if a, err := c.ask("POST", "/v1/admin/items/"+item+"/restock", restockBody(more), "Idempotency-Key", "once"); err == nil {
				t.Fatalf("the process answered before it died: %s", a.verdict())
			}
			struck(t, doomed)
			c = dial(t, s.serve(noLimit...))
			if a := c.restock(item, "once", more); a.Status != 200 {
				t.Fatalf("the repeat of the restock: %s", a.verdict())
			}
			if n := soldOutTo(t, item, "late", 40, c); n != more {
				t.Errorf("%d of the new units were sold, want %d", n, more)
			}
			if total, restocks := s.stockLedger(item); total != stock+more || restocks != 1 {
				t.Errorf("the total is %d after %d restocks", total, restocks)
			}
			if l := s.ledger(c, item); l.Sold != stock+more || l.Left != 0 {
				t.Errorf("the ledger says %+v", l)
			}
		})
	}
}
