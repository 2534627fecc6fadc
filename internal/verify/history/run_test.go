package history

import (
	"slices"
	"time"
)

// run is a small history with its final state, for tests to modify.
type run struct {
	calls []Call
	final Final
}

const ms = int64(time.Millisecond)

// call appends a purchase of one unit of the lamp with the key k and returns it. from and to
// are in milliseconds.
func (r *run) call(user string, from, to int64) *Call {
	r.calls = append(r.calls, Call{
		Client: len(r.calls), Op: Buy, User: user, Item: "lamp", Quantity: 1, Key: "k", Start: from * ms, End: to * ms,
	})
	return &r.calls[len(r.calls)-1]
}

func (c *Call) answers(status int, order, state string) *Call {
	c.Status, c.Order, c.State, c.Code = status, order, state, ""
	return c
}

func (c *Call) refuses(status int, code string) *Call {
	c.Status, c.Code, c.Order, c.State = status, code, "", ""
	return c
}

// about turns the call into one about an order, by its buyer or, with no user, by the shop.
func (c *Call) about(op, user, order string) *Call {
	c.Op, c.User, c.Order, c.Key, c.Quantity = op, user, order, "", 0
	return c
}

// row appends an order of the lamp with the key k.
func (r *run) row(id, user, status string) *Order {
	r.final.Orders = append(r.final.Orders, Order{ID: id, User: user, Item: "lamp", Quantity: 1, Key: "k", Status: status})
	return &r.final.Orders[len(r.final.Orders)-1]
}

// of finds the row of an order.
func (r *run) of(id string) *Order {
	return &r.final.Orders[slices.IndexFunc(r.final.Orders, func(o Order) bool { return o.ID == id })]
}

func (r *run) drop(id string) {
	r.final.Orders = slices.DeleteFunc(r.final.Orders, func(o Order) bool { return o.ID == id })
}

// lose removes a row, which frees its units.
func (r *run) lose(id string) {
	r.drop(id)
	r.settle()
}

func (r *run) lamp() *Item { return &r.final.Items[0] }

// settle recomputes the counts from the rows, so that a change of rows breaks no rule about
// counts.
func (r *run) settle() {
	for i := range r.final.Items {
		item := &r.final.Items[i]
		var held int64
		for _, o := range r.final.Orders {
			if o.Item == item.ID && o.Holds() {
				held += o.Quantity
			}
		}
		left := item.Initial + item.Restocked - held
		item.Loaded, item.Left, item.Exhausted = true, left, false
		item.Ledger = &Ledger{Initial: item.Initial, Restocked: item.Restocked, Left: left, Sold: held, Balanced: true}
	}
}

// good is a run without any finding: three lamps, four buyers who want one, an unknown outcome,
// repeats, and samples.
func good() *run {
	r := &run{final: Final{
		Items:  []Item{{ID: "lamp", Initial: 3, Limit: 2, Fence: 9, Epoch: "1"}},
		Fences: []FenceSample{{1 * ms, "lamp", SourceLock, 4}, {5 * ms, "lamp", SourceLock, 4}, {9 * ms, "lamp", SourceLock, 9}, {2 * ms, "lamp", SourceSale, 3}},
		Ledgers: []LedgerSample{
			{2 * ms, "lamp", Ledger{Initial: 3, Left: 3, Balanced: true}}, {14 * ms, "lamp", Ledger{Initial: 3, Left: 1, Held: 1, Sold: 1, Balanced: true}},
		},
	}}
	r.call("alice", 0, 10).answers(201, "a", Confirmed)
	r.call("bob", 1, 12).answers(202, "b", Queued).Async = true
	r.call("bob", 20, 30).answers(201, "b", Confirmed).Replayed = true
	r.call("carol", 5, 40).Err = "connection reset"
	r.call("carol", 50, 60).answers(201, "c", Confirmed).Replayed = true
	r.call("dave", 70, 75).refuses(409, "sold_out")
	r.call("dave", 80, 85).refuses(429, "rate_limited")
	r.row("a", "alice", Confirmed)
	r.row("b", "bob", Confirmed)
	r.row("c", "carol", Confirmed)
	r.settle()
	r.lamp().Exhausted = true
	return r
}
