package history

import (
	"slices"

	"pgregory.net/rapid"
)

// mutations change one thing in a correct run. alter reports whether there was a place for the
// change; found are the findings, any of which is right.
var mutations = []struct {
	name  string
	alter func(rt *rapid.T, r *run) bool
	found []string
}{
	{"a committed row is dropped", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, r.seenCommitted, func(o *Order) { r.drop(o.ID) })
	}, []string{LostConfirmed}},
	{"an accepted row is dropped", func(rt *rapid.T, r *run) bool {
		r.final.AcceptedMayBeLost = false
		return r.someRow(rt, r.acked, func(o *Order) { r.drop(o.ID) })
	}, []string{LostConfirmed, LostAccepted}},
	{"a committed row is refused", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, r.seenCommitted, func(o *Order) { o.Status, o.Reason = Rejected, "sold_out" })
	}, []string{LostConfirmed}},
	{"a row is queued", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, always, func(o *Order) { o.Status = Queued })
	}, []string{Malformed}},
	{"a refused row has no reason", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, func(o *Order) bool { return o.Status == Rejected }, func(o *Order) { o.Reason = "" })
	}, []string{Unexplained}},
	{"a paid row expires", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, func(o *Order) bool {
			return o.Status == Paid && slices.ContainsFunc(r.calls, func(c Call) bool { return c.Order == o.ID && c.State == Paid })
		}, func(o *Order) { o.Status = Expired })
	}, []string{Changed}},
	{"a stranger has a row", func(_ *rapid.T, r *run) bool {
		r.row("x", "stranger", Confirmed).Item = r.final.Items[0].ID
		return true
	}, []string{Invented}},
	{"a row is another's", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, always, func(o *Order) { o.User = "stranger" })
	}, []string{Invented}},
	{"a row has another key", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, always, func(o *Order) { o.Key = "other" })
	}, []string{Invented}},
	{"a row has another quantity", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, (*Order).Holds, func(o *Order) { o.Quantity += 2 })
	}, []string{Content, LedgerWrong}},
	{"a row occurs twice", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, always, func(o *Order) { r.final.Orders = append(r.final.Orders, *o) })
	}, []string{Duplicated}},
	{"a key has a second row", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, always, func(o *Order) {
			second := *o
			second.ID = "second"
			r.final.Orders = append(r.final.Orders, second)
		})
	}, []string{Duplicated}},
	{"all that asked for a row were refused", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, (*Order).Holds, func(o *Order) {
			for i := range r.calls {
				if c := &r.calls[i]; c.Op == Buy && c.User == o.User && c.Item == o.Item && c.Key == o.Key {
					c.refuses(409, "user_limit")
				}
			}
		})
	}, []string{Contradicted}},
	{"an answer names another order", func(rt *rapid.T, r *run) bool {
		r.final.AcceptedMayBeLost = false
		return r.someCall(rt, (*Call).Accepted, func(c *Call) { c.Order = "other" })
	}, []string{LostConfirmed, LostAccepted}},
	{"an answer names no order", func(rt *rapid.T, r *run) bool {
		return r.someCall(rt, (*Call).Accepted, func(c *Call) { c.Order = "" })
	}, []string{Malformed}},
	{"a repeat is refused", func(rt *rapid.T, r *run) bool {
		if r.final.AcceptedMayBeLost {
			return false
		}
		return r.someCall(rt, func(c *Call) bool { return c.Accepted() && r.byID(c.Order) != nil && r.byID(c.Order).Holds() }, func(c *Call) {
			again := *c
			again.Start = r.end() + 1
			again.End = again.Start + 1
			r.calls = append(r.calls, *again.refuses(409, "sold_out"))
		})
	}, []string{Forgotten}},
	{"a committed order is not found", func(rt *rapid.T, r *run) bool {
		return r.someCall(rt, func(c *Call) bool { return c.Accepted() && c.Status == 201 }, func(c *Call) {
			again := Call{Op: Get, User: c.User, Item: c.Item, Start: r.end() + 1, End: r.end() + 2, Status: 404, Code: "order_not_found", Order: c.Order}
			r.calls = append(r.calls, again)
		})
	}, []string{Vanished}},
	{"the first call is answered sold_out", func(_ *rapid.T, r *run) bool {
		c := Call{Op: Buy, User: "hasty", Item: r.final.Items[0].ID, Quantity: 1, Key: "k"}
		for i := range r.calls {
			r.calls[i].Start++
			r.calls[i].End++
		}
		r.calls = append(r.calls, *c.refuses(409, "sold_out"))
		return true
	}, []string{SoldOutEarly}},
	{"a fence falls", func(rt *rapid.T, r *run) bool {
		if len(r.final.Fences) == 0 {
			return false
		}
		last := r.final.Fences[len(r.final.Fences)-1]
		last.At++
		last.Fence--
		r.final.Fences = append(r.final.Fences, last)
		return true
	}, []string{FenceFell}},
	{"a look does not balance", func(rt *rapid.T, r *run) bool {
		if len(r.final.Ledgers) == 0 {
			return false
		}
		r.final.Ledgers[rapid.IntRange(0, len(r.final.Ledgers)-1).Draw(rt, "look")].Left++
		return true
	}, []string{LedgerSampled}},
	{"the ledger has lost a unit", func(_ *rapid.T, r *run) bool {
		r.final.Items[0].Ledger.Left--
		return true
	}, []string{LedgerWrong}},
	{"the ledger holds another unit", func(_ *rapid.T, r *run) bool {
		if len(r.final.Dead) > 0 {
			return false // it may belong to a dead letter
		}
		r.final.Items[0].Ledger.Left--
		r.final.Items[0].Ledger.Held++
		return true
	}, []string{LedgerWrong}},
	{"Redis has another unit", func(_ *rapid.T, r *run) bool {
		if len(r.final.Dead) > 0 {
			return false // it may belong to a dead letter
		}
		r.final.Items[0].Left++
		return true
	}, []string{RedisLeft}},
	{"the limit is lower", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, (*Order).Holds, func(o *Order) {
			for i := range r.final.Items {
				if r.final.Items[i].ID == o.Item {
					r.final.Items[i].Limit = o.Quantity - 1
				}
			}
		})
	}, []string{OverLimit}},
	{"the stock was lower", func(rt *rapid.T, r *run) bool {
		return r.someRow(rt, (*Order).Holds, func(o *Order) {
			for i := range r.final.Items {
				if it := &r.final.Items[i]; it.ID == o.Item {
					it.Initial = -it.Restocked
				}
			}
		})
	}, []string{Oversold}},
	{"more was wanted than was sold", func(_ *rapid.T, r *run) bool {
		it := &r.final.Items[0]
		if it.Left < 2 || len(r.final.Dead) > 0 || !slices.ContainsFunc(r.calls, func(c Call) bool { return c.Op == Buy && c.Item == it.ID }) {
			return false
		}
		it.Exhausted = true
		return true
	}, []string{Unsold}},
	{"a restock was not made", func(rt *rapid.T, r *run) bool {
		return r.someCall(rt, func(c *Call) bool { return c.Op == Restock && c.Status == 200 }, func(c *Call) {
			for i := range r.final.Items {
				if r.final.Items[i].ID == c.Item {
					r.final.Items[i].Restocked += 100
				}
			}
		})
	}, []string{Restocked}},
}

func always(*Order) bool { return true }

// someRow changes a row that fits.
func (r *run) someRow(rt *rapid.T, fits func(*Order) bool, alter func(*Order)) bool {
	var at []int
	for i := range r.final.Orders {
		if fits(&r.final.Orders[i]) {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return false
	}
	alter(&r.final.Orders[rapid.SampledFrom(at).Draw(rt, "row")])
	return true
}

// someCall changes a call that fits.
func (r *run) someCall(rt *rapid.T, fits func(*Call) bool, alter func(*Call)) bool {
	var at []int
	for i := range r.calls {
		if fits(&r.calls[i]) {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return false
	}
	alter(&r.calls[rapid.SampledFrom(at).Draw(rt, "call")])
	return true
}

func (r *run) acked(o *Order) bool {
	return slices.ContainsFunc(r.calls, func(c Call) bool { return c.Accepted() && c.Order == o.ID })
}

func (r *run) seenCommitted(o *Order) bool {
	return slices.ContainsFunc(r.calls, func(c Call) bool { return c.Status < 300 && c.Order == o.ID && committed(c.State) })
}

func (r *run) byID(id string) *Order {
	for i := range r.final.Orders {
		if r.final.Orders[i].ID == id {
			return &r.final.Orders[i]
		}
	}
	return nil
}

// end is the end of the last call.
func (r *run) end() (last int64) {
	for i := range r.calls {
		last = max(last, r.calls[i].End)
	}
	return last
}
