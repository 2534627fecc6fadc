package history

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Errors of Linearizable; compare with errors.Is.
var (
	// ErrNotLinearizable means that no sequence of an item's calls explains the answers and the
	// final state.
	ErrNotLinearizable = errors.New("history: not linearizable")
	// ErrUndecided means that the search did not finish in time.
	ErrUndecided = errors.New("history: linearizability undecided in time")
)

// Linearizable searches, item by item, for a sequence of the calls in which each took effect at
// one instant between its start and its end, such that a shop that serves one client at a time
// would have given the same answers and reached the same final state. It returns nil if there
// is one. Otherwise it returns ErrNotLinearizable or ErrUndecided with the item.
//
// It is meant for small histories of some hundred calls: the time may grow exponentially with
// the number of concurrent calls, and a call of unknown outcome is concurrent with all later
// calls. It does not support histories in which acknowledged data may be lost, or with dead
// letters that no answer named, because the sequential shop has neither. The model also allows
// two deviations from that shop:
//
//   - sold_out is allowed at any time after too few units were left once, because the
//     service answers it from memory for a moment;
//   - the units of an order that ended cancelled, expired, rejected or refunded with
//     a restock return at some time after the start of its purchase or, for a
//     cancellation or a refund, after the start of that call.
func Linearizable(calls []Call, final *Final, timeout time.Duration) error {
	began := time.Now()
	for i := range final.Items {
		item := &final.Items[i]
		model, ops := saleModel(item), saleOperations(item, calls, final)
		left := timeout - time.Since(began)
		if left <= 0 {
			return fmt.Errorf("%w: item %s, %d operations", ErrUndecided, item.ID, len(ops))
		}
		switch porcupine.CheckOperationsTimeout(model, ops, left) {
		case porcupine.Illegal:
			return fmt.Errorf("%w: item %s, %d operations", ErrNotLinearizable, item.ID, len(ops))
		case porcupine.Ok:
		case porcupine.Unknown:
			return fmt.Errorf("%w: item %s, %d operations", ErrUndecided, item.ID, len(ops))
		}
	}
	return nil
}

// The operations of the shop itself, in addition to those of its clients.
const (
	opRelease = "release" // the units of a closed order return
	opEnd     = "end"     // the final state
)

// buyer is a user and a key of one item.
type buyer struct{ user, key string }

// saleStep is one operation on a sale: a client's call or one of the shop's own.
type saleStep struct {
	op    string
	buyer buyer
	units int64
	call  *Call
	// order is the order that the key has at the end, "" for none.
	order string
	// left and orders are the state that opEnd requires.
	left   int64
	orders []buyer
}

// sale is the state of one item. It is immutable: each step returns a new one.
type sale struct {
	left, lowest int64 // lowest: the fewest units so far
	control      string
	taken        map[buyer]int64 // units of each order, 0 once they are back
	held         map[string]int64
	restocked    map[string]bool
	limit        int64
}

func saleModel(item *Item) porcupine.Model {
	return porcupine.Model{
		Init: func() any {
			return &sale{left: item.Initial, lowest: item.Initial, limit: item.Limit}
		},
		Step: func(state, input, _ any) (bool, any) {
			s, ok1 := state.(*sale)
			step, ok2 := input.(*saleStep)
			if !ok1 || !ok2 {
				return false, state
			}
			next := s.apply(step)
			return next != nil, next
		},
		Equal: func(a, b any) bool {
			x, ok1 := a.(*sale)
			y, ok2 := b.(*sale)
			return ok1 && ok2 && x.equal(y)
		},
	}
}

func (s *sale) equal(o *sale) bool {
	return s.left == o.left && s.lowest == o.lowest && s.control == o.control &&
		maps.Equal(s.taken, o.taken) && maps.Equal(s.restocked, o.restocked) // held follows from taken
}

// apply returns the state after a step, or nil if the step is impossible. A call of unknown
// outcome is always possible: if it never took effect, it can be placed after everything else.
func (s *sale) apply(step *saleStep) *sale {
	switch step.op {
	case Buy:
		return s.buy(step)
	case opRelease:
		units, there := s.taken[step.buyer]
		if !there || units == 0 {
			return nil
		}
		return s.with(func(n *sale) {
			n.taken[step.buyer] = 0
			n.held[step.buyer.user] -= units
			n.left += units
		})
	case Restock:
		return s.restock(step)
	case Pause, Resume, Close:
		return s.with(func(n *sale) { n.control = step.op })
	case opEnd:
		same := s.left == step.left
		for _, b := range step.orders {
			_, there := s.taken[b]
			same = same && there
		}
		if !same {
			return nil
		}
		return s
	default:
		return nil
	}
}

// buy applies a purchase.
func (s *sale) buy(step *saleStep) *sale {
	c, units := step.call, step.units
	_, known := s.taken[step.buyer]
	shut := s.control == Pause || s.control == Close
	fits := !shut && units <= s.left && s.held[step.buyer.user]+units <= s.limit
	may := func(lawful bool) *sale {
		if !lawful {
			return nil
		}
		return s
	}
	switch {
	case c.Accepted() && (known || c.Replayed):
		// The answer that creates an order is not marked as replayed.
		return may(known && c.Replayed && c.Order == step.order)
	case c.Accepted() && (!fits || c.Order != step.order):
		return nil
	case c.Accepted(), !c.Refused() && !known && fits:
		return s.with(func(n *sale) {
			n.taken[step.buyer] = units
			n.held[step.buyer.user] += units
			n.left -= units
			n.lowest = min(n.lowest, n.left)
		})
	case !c.Refused():
		return s
	case c.Code == "idempotency_key_reused":
		return may(known)
	case c.Code == "sold_out":
		return may(!known && units > s.lowest)
	case c.Code == "user_limit":
		return may(!known && s.held[step.buyer.user]+units > s.limit)
	case c.Code == "sale_paused":
		return may(!known && s.control == Pause)
	case c.Code == "sale_closed":
		return may(!known && s.control == Close)
	default:
		return s // refused before the sale was read
	}
}

// restock applies a change of the stock.
func (s *sale) restock(step *saleStep) *sale {
	key, units := step.call.Key, step.units
	fits := s.left+units >= 0
	switch {
	case step.call.Code == "stock_below_sold":
		if fits {
			return nil
		}
		return s
	case step.call.Refused(), s.restocked[key]:
		return s
	case !fits:
		if step.call.Known() {
			return nil
		}
		return s
	}
	return s.with(func(n *sale) {
		n.restocked[key] = true
		n.left += units
		n.lowest = min(n.lowest, n.left)
	})
}

// with returns a changed copy.
func (s *sale) with(change func(*sale)) *sale {
	n := *s
	n.taken, n.held, n.restocked = copied(s.taken), copied(s.held), copied(s.restocked)
	change(&n)
	return &n
}

func copied[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return make(map[K]V)
	}
	return maps.Clone(m)
}

// saleOperations returns the steps of one item and the interval in which each happened.
func saleOperations(item *Item, calls []Call, final *Final) []porcupine.Operation {
	h := &saleHistory{
		item: item, orders: make(map[buyer]string), began: make(map[buyer]int64), closing: make(map[ending]int64),
		rejected: make(map[buyer]bool), acked: make(map[buyer]int64), made: make(map[buyer]bool),
	}
	h.read(calls, final)
	for i := range calls {
		h.add(&calls[i])
	}
	h.returns(final)
	end := &saleStep{op: opEnd, left: item.Left}
	if !item.Loaded {
		end.left = item.Initial + item.Restocked
		for i := range final.Orders {
			if o := &final.Orders[i]; o.Item == item.ID && o.Holds() {
				end.left -= o.Quantity
			}
		}
	}
	end.orders = slices.Collect(maps.Keys(h.orders))
	h.put(0, h.last+2, h.last+3, end)
	return h.ops
}

// saleHistory collects the operations of one item.
type saleHistory struct {
	item *Item
	ops  []porcupine.Operation
	last int64 // when the last call ended
	// orders is the final order of each key, began the start of the key's first purchase.
	orders map[buyer]string
	began  map[buyer]int64
	// closing is the start of an order's first cancellation or refund that may have succeeded.
	closing map[ending]int64
	// rejected are the keys whose order the database rejected.
	rejected map[buyer]bool
	// acked is when the first acknowledgement of a key had arrived; made are the keys for which
	// an answer said that the call created the order.
	acked map[buyer]int64
	made  map[buyer]bool
}

// read finds the final order of each key. Acknowledgements count too, because of dead letters.
func (h *saleHistory) read(calls []Call, final *Final) {
	for i := range calls {
		c := &calls[i]
		h.last = max(h.last, c.End)
		if c.Item != h.item.ID {
			continue
		}
		switch {
		case c.Op == Buy:
			b := buyer{c.User, c.Key}
			if at, ok := h.began[b]; !ok || c.Start < at {
				h.began[b] = c.Start
			}
			if !c.Accepted() {
				continue
			}
			if at, ok := h.acked[b]; !ok || c.End < at {
				h.acked[b], h.orders[b] = c.End, c.Order
			}
			h.made[b] = h.made[b] || !c.Replayed
		case (c.Op == Cancel || c.Op == Refund) && !c.Refused():
			end := ending{c.Order, Cancelled}
			if c.Op == Refund {
				end.state = Refunded
			}
			if at, ok := h.closing[end]; !ok || c.Start < at {
				h.closing[end] = c.Start
			}
		}
	}
	for i := range final.Orders {
		if o := &final.Orders[i]; o.Item == h.item.ID && o.Key == askedKey(o) {
			h.orders[buyer{o.User, o.Key}] = o.ID
			h.rejected[buyer{o.User, o.Key}] = o.Status == Rejected
		}
	}
}

// add adds a call to the operations. It omits calls that can have had no effect on the final
// state and reveal nothing about the sale, which shortens the search.
func (h *saleHistory) add(c *Call) {
	if c.Item != h.item.ID || c.Refused() && (c.Op != Buy && c.Op != Restock) {
		return
	}
	step := &saleStep{op: c.Op, buyer: buyer{c.User, c.Key}, units: c.Quantity, call: c}
	switch c.Op {
	case Buy:
		step.order = h.orders[step.buyer]
		if !c.Known() && !h.mayHaveMade(c) {
			return
		}
		if c.Refused() && h.rejected[step.buyer] {
			// The database rejected the order: the sale may have accepted it.
			step.call = &Call{Op: Buy}
		}
	case Restock, Pause, Resume, Close:
	default:
		return
	}
	end := c.End
	if !c.Known() {
		end = math.MaxInt64
	}
	h.put(c.Client, c.Start, end, step)
}

// mayHaveMade reports whether a purchase of unknown outcome can be the one that created its
// key's order: no other call got the answer that it created the order, and the order was not
// known before the purchase began.
func (h *saleHistory) mayHaveMade(c *Call) bool {
	b := buyer{c.User, c.Key}
	acked, ok := h.acked[b]
	return h.orders[b] != "" && !h.made[b] && (!ok || c.Start <= acked)
}

// returns adds an operation for the returned units of each closed order.
func (h *saleHistory) returns(final *Final) {
	for i := range final.Orders {
		o := &final.Orders[i]
		b := buyer{o.User, o.Key}
		if o.Item != h.item.ID || o.Holds() || h.orders[b] != o.ID {
			continue
		}
		at := h.began[b]
		if from, ok := h.closing[ending{o.ID, o.Status}]; ok {
			at = from
		}
		h.put(0, at, h.last+1, &saleStep{op: opRelease, buyer: b})
	}
}

func (h *saleHistory) put(client int, from, to int64, step *saleStep) {
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: step, Call: from, Return: to})
}
