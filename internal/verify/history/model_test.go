package history

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// shop is a model of the service that keeps every promise, and of clients that call it
// concurrently. Calls begin, take effect and end in separate steps, and a worker commits in
// separate steps.
type shop struct {
	rt    *rapid.T
	now   int64
	calls []Call
	open  []*attempt
	users int

	items  map[string]*stall
	orders map[string]*Order
	lossy  bool // Redis may lose queued orders
	dead   []string
	fences []FenceSample
	looks  []LedgerSample
	next   int
}

// stall is one item on sale.
type stall struct {
	initial, restocked, left, limit, fence int64
	// lowest is the fewest units that were ever left: sold_out may be answered from memory for
	// a moment.
	lowest    int64
	known     map[string]string // user and key -> order
	held      map[string]int64
	restocks  map[string]bool
	exhausted bool
}

// attempt is a call in progress.
type attempt struct {
	call  Call
	done  bool // it has taken effect
	apply func(a *attempt)
}

func newShop(rt *rapid.T) *shop {
	s := &shop{rt: rt, items: map[string]*stall{}, orders: map[string]*Order{}, users: upTo(rt, "users", 6), lossy: rapid.Bool().Draw(rt, "lossy")}
	for i := range upTo(rt, "items", 2) {
		n := rapid.Int64Range(1, 6).Draw(rt, "stock")
		s.items["item"+strconv.Itoa(i)] = &stall{
			initial: n, left: n, lowest: n, limit: rapid.Int64Range(1, 3).Draw(rt, "limit"),
			known: map[string]string{}, held: map[string]int64{}, restocks: map[string]bool{},
		}
	}
	return s
}

func upTo(rt *rapid.T, what string, most int) int { return rapid.IntRange(1, most).Draw(rt, what) }

// run takes a number of steps and then completes everything.
func (s *shop) run(steps int) *run {
	for range steps {
		if rapid.IntRange(0, 2).Draw(s.rt, "tick") > 0 {
			s.now += ms
		}
		switch rapid.IntRange(0, 11).Draw(s.rt, "step") {
		case 0, 1, 2:
			s.begin()
		case 3, 4, 5:
			s.effect()
		case 6, 7, 8:
			s.end()
		case 9:
			s.work()
		case 10:
			s.look()
		case 11:
			s.lapse()
		}
	}
	for len(s.open) > 0 {
		s.end()
	}
	for _, id := range slices.Sorted(maps.Keys(s.orders)) {
		if o := s.orders[id]; o.Status == Queued {
			if rapid.IntRange(0, 9).Draw(s.rt, "dies") == 0 {
				s.dead = append(s.dead, id)
				delete(s.orders, id)
				continue
			}
			o.Status = Confirmed
		}
	}
	return s.final()
}

// begin starts a call: a new purchase, or a repeat of an earlier one.
func (s *shop) begin() {
	user := "u" + strconv.Itoa(rapid.IntRange(0, s.users-1).Draw(s.rt, "user"))
	item := "item" + strconv.Itoa(rapid.IntRange(0, len(s.items)-1).Draw(s.rt, "item"))
	c := Call{Client: len(s.calls) + len(s.open), User: user, Item: item, Start: s.now}
	a := &attempt{}
	switch op := rapid.IntRange(0, 10).Draw(s.rt, "op"); op {
	case 0:
		c.Op, c.User, c.Key, c.Quantity = Restock, "", "r"+strconv.Itoa(rapid.IntRange(0, 3).Draw(s.rt, "delivery")), 0
		c.Quantity = int64(len(c.Key)) + int64(c.Key[1]-'0') - 3 // determined by its key: -1 to 2
		if c.Quantity == 0 {
			c.Quantity = 3
		}
		a.apply = s.restock
	case 1, 2, 10:
		id, o := s.known()
		if o == nil {
			return
		}
		c.Op, c.Order, c.User, c.Item = Cancel, id, o.User, o.Item
		a.apply = func(a *attempt) { s.close(a, Cancelled) }
		if op == 2 {
			c.Op, c.User = Pay, ""
			a.apply = func(a *attempt) { s.close(a, Paid) }
		}
		if op == 10 {
			c.Op, c.User = Refund, ""
			restock := rapid.Bool().Draw(s.rt, "restock")
			a.apply = func(a *attempt) { s.refund(a, restock) }
		}
	case 3:
		id, o := s.known()
		if o == nil {
			return
		}
		c.Op, c.Order, c.User, c.Item = Get, id, o.User, o.Item
		a.apply = s.get
	default:
		c.Op, c.Quantity, c.Key = Buy, rapid.Int64Range(1, 2).Draw(s.rt, "quantity"), "k"+strconv.Itoa(rapid.IntRange(0, 2).Draw(s.rt, "key"))
		c.Async = rapid.Bool().Draw(s.rt, "async")
		a.apply = s.buy
	}
	a.call = c
	s.open = append(s.open, a)
}

// known draws an order that an answer named.
func (s *shop) known() (string, *Order) {
	var ids []string
	for i := range s.calls {
		if c := &s.calls[i]; c.Accepted() && s.orders[c.Order] != nil && !slices.Contains(ids, c.Order) {
			ids = append(ids, c.Order)
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	id := rapid.SampledFrom(ids).Draw(s.rt, "order")
	return id, s.orders[id]
}

func (s *shop) effect() {
	if len(s.open) == 0 {
		return
	}
	if a := rapid.SampledFrom(s.open).Draw(s.rt, "takes effect"); !a.done {
		a.done = true
		a.apply(a)
	}
}

// end answers a call, or leaves it without an answer. An unanswered call may have taken effect,
// may take effect later, or never.
func (s *shop) end() {
	if len(s.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(s.open)-1).Draw(s.rt, "ends")
	a := s.open[i]
	s.open = slices.Delete(s.open, i, i+1)
	answered := rapid.IntRange(0, 3).Draw(s.rt, "answered") > 0
	if answered && !a.done {
		a.done = true
		a.apply(a)
	}
	c := a.call
	c.End = s.now
	if !answered {
		c.Status, c.Code, c.State, c.Replayed = 0, "", "", false
		if c.Op == Buy {
			c.Order = ""
		}
		if rapid.Bool().Draw(s.rt, "503") {
			c.Status, c.Code = 503, "unavailable"
		}
		// It may take effect later.
		if !a.done && rapid.Bool().Draw(s.rt, "late") {
			a.apply(a)
		}
	}
	s.calls = append(s.calls, c)
}

func (s *shop) buy(a *attempt) {
	c := &a.call
	it := s.items[c.Item]
	field := c.User + " " + c.Key
	if id := it.known[field]; id != "" {
		o := s.orders[id]
		switch {
		case o == nil: // a dead letter is reported as queued, and has no order here
			c.refuses(503, "unavailable")
		case o.Quantity != c.Quantity:
			c.refuses(422, "idempotency_key_reused")
		case o.Reason == "sold_out":
			c.refuses(409, "sold_out")
		default:
			s.tell(c, o)
			c.Replayed = true
		}
		return
	}
	switch {
	case it.held[c.User]+c.Quantity > it.limit:
		c.refuses(409, "user_limit")
		return
	case c.Quantity > it.left, c.Quantity > it.lowest && rapid.Bool().Draw(s.rt, "from memory"):
		c.refuses(409, "sold_out")
		it.exhausted = true
		return
	}
	s.next++
	o := &Order{ID: fmt.Sprintf("o%d", s.next), User: c.User, Item: c.Item, Quantity: c.Quantity, Key: c.Key, Status: Queued}
	s.orders[o.ID] = o
	it.known[field] = o.ID
	it.left -= o.Quantity
	it.lowest = min(it.lowest, it.left)
	it.held[c.User] += o.Quantity
	it.fence += rapid.Int64Range(0, 2).Draw(s.rt, "fence")
	if !c.Async {
		o.Status = Confirmed
	}
	s.tell(c, o)
}

// tell answers a purchase with the current state of its order.
func (s *shop) tell(c *Call, o *Order) {
	if o.Status == Queued {
		c.answers(202, o.ID, Queued)
		return
	}
	c.answers(201, o.ID, o.Status)
}

func (s *shop) get(a *attempt) {
	if o := s.orders[a.call.Order]; o != nil {
		a.call.answers(200, o.ID, o.Status)
		return
	}
	id := a.call.Order
	a.call.refuses(404, "order_not_found").Order = id
}

func (s *shop) close(a *attempt, to string) {
	o := s.orders[a.call.Order]
	switch {
	case o == nil:
		s.get(a)
	case o.Status == Confirmed && to != Refunded:
		o.Status = to
		if to == Cancelled {
			s.giveBack(o)
		}
		a.call.answers(200, o.ID, to)
	case o.Status == to:
		a.call.answers(200, o.ID, to)
	default:
		id := a.call.Order
		a.call.refuses(409, "order_final").Order = id
	}
}

func (s *shop) refund(a *attempt, restock bool) {
	o := s.orders[a.call.Order]
	if o == nil || o.Status != Paid {
		s.close(a, Refunded)
		return
	}
	o.Status, o.Restocked = Refunded, restock
	if restock {
		s.giveBack(o)
	}
	a.call.answers(200, o.ID, Refunded)
}

func (s *shop) giveBack(o *Order) {
	it := s.items[o.Item]
	it.left += o.Quantity
	it.held[o.User] -= o.Quantity
}

func (s *shop) restock(a *attempt) {
	c := &a.call
	it := s.items[c.Item]
	switch {
	case it.restocks[c.Key]:
	case it.left+c.Quantity < 0:
		c.refuses(409, "stock_below_sold")
		return
	default:
		it.restocks[c.Key] = true
		it.left += c.Quantity
		it.restocked += c.Quantity
		it.lowest = min(it.lowest, it.left)
	}
	c.Status = 200
}

// work commits or rejects queued orders, or loses them with Redis's data.
func (s *shop) work() {
	how := rapid.IntRange(0, 7).Draw(s.rt, "work")
	for _, id := range slices.Sorted(maps.Keys(s.orders)) {
		o := s.orders[id]
		if o.Status != Queued {
			continue
		}
		switch {
		case how < 2:
			o.Status, o.Reason = Rejected, "failed"
			if s.items[o.Item].lowest < o.Quantity {
				o.Reason = "sold_out"
			}
			s.giveBack(o)
		case how < 4 && s.lossy:
			delete(s.orders, id)
			delete(s.items[o.Item].known, o.User+" "+o.Key)
			s.giveBack(o)
		default:
			o.Status = Confirmed
		}
	}
}

func (s *shop) lapse() {
	for _, id := range slices.Sorted(maps.Keys(s.orders)) {
		if o := s.orders[id]; o.Status == Confirmed && rapid.IntRange(0, 4).Draw(s.rt, "lapses") == 0 {
			o.Status = Expired
			s.giveBack(o)
			return
		}
	}
}

func (s *shop) look() {
	for _, id := range slices.Sorted(maps.Keys(s.items)) {
		it := s.items[id]
		s.fences = append(s.fences, FenceSample{s.now, id, SourceLock, it.fence})
		s.looks = append(s.looks, LedgerSample{s.now, id, it.ledger()})
	}
}

func (it *stall) ledger() Ledger {
	taken := it.initial + it.restocked - it.left
	return Ledger{Initial: it.initial, Restocked: it.restocked, Left: it.left, Held: taken, Balanced: true}
}

func (s *shop) final() *run {
	r := &run{calls: s.calls}
	r.final = Final{Dead: s.dead, Fences: s.fences, Ledgers: s.looks, AcceptedMayBeLost: s.lossy}
	for _, id := range slices.Sorted(maps.Keys(s.items)) {
		it := s.items[id]
		l := it.ledger()
		r.final.Items = append(r.final.Items, Item{
			ID: id, Initial: it.initial, Restocked: it.restocked, Limit: it.limit, Exhausted: it.exhausted && it.left == 0,
			Loaded: true, Left: it.left, Fence: it.fence, Ledger: &l,
		})
	}
	for _, id := range slices.Sorted(maps.Keys(s.orders)) {
		r.final.Orders = append(r.final.Orders, *s.orders[id])
	}
	return r
}

func (r *run) clone() *run {
	c := &run{calls: slices.Clone(r.calls), final: r.final}
	c.final.Items = slices.Clone(r.final.Items)
	for i := range c.final.Items {
		l := *c.final.Items[i].Ledger
		c.final.Items[i].Ledger = &l
	}
	c.final.Orders = slices.Clone(r.final.Orders)
	c.final.Fences = slices.Clone(r.final.Fences)
	c.final.Ledgers = slices.Clone(r.final.Ledgers)
	return c
}

// A random history of a shop that keeps its promises has no findings. One change to the history
// or its final state is found.
func TestCheck_Model(t *testing.T) {
	t.Parallel()
	applied := make(map[string]int)
	rapid.Check(t, func(rt *rapid.T) {
		r := newShop(rt).run(rapid.IntRange(10, 120).Draw(rt, "steps"))
		if v := Check(r.calls, &r.final); !v.Passed {
			rt.Fatalf("a right history is found wrong: %s\n%+v", v.Line(), v.Findings)
		}
		for _, m := range mutations {
			c := r.clone()
			if !m.alter(rt, c) {
				continue
			}
			applied[m.name]++
			v := Check(c.calls, &c.final)
			if !slices.ContainsFunc(m.found, v.Has) {
				rt.Fatalf("%s: it is not found: %s\n%+v", m.name, v.Line(), v.Findings)
			}
		}
	})
	for _, m := range mutations {
		if applied[m.name] == 0 && !testing.Short() {
			t.Errorf("%s: no history had a place for it", m.name)
		}
	}
	t.Logf("altered: %v", applied)
}
