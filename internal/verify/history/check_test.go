package history

import (
	"slices"
	"strings"
	"testing"
)

// cases break one rule each, or almost break it.
var cases = []struct {
	name string
	make func(r *run)
	want string // the findings, usually one; "" if there are none
}{
	{"nothing is wrong", func(*run) {}, ""},

	{"an order answered 202 is missing", func(r *run) { erin(r, 202, Queued); r.lose("e") }, LostAccepted},
	{"an order answered 202 is missing, which may be", func(r *run) {
		erin(r, 202, Queued)
		r.lose("e")
		r.final.AcceptedMayBeLost = true
	}, ""},
	{"an order answered 202 is a dead letter", func(r *run) {
		erin(r, 202, Queued)
		r.bury("e")
	}, ""},
	{"an order answered 202 was refused with a reason", func(r *run) { erin(r, 202, Queued); reject(r, "e", "sold_out") }, ""},
	{"an order answered 202 was refused without a reason", func(r *run) { erin(r, 202, Queued); reject(r, "e", "") }, Unexplained},

	{"an order answered 201 is missing", func(r *run) { erin(r, 201, Confirmed); r.lose("e") }, LostConfirmed},
	{"an order answered 201 is missing where a 202 may be", func(r *run) {
		erin(r, 201, Confirmed)
		r.lose("e")
		r.final.AcceptedMayBeLost = true
	}, LostConfirmed},
	{"an order answered 201 is a dead letter", func(r *run) {
		erin(r, 201, Confirmed)
		r.bury("e")
	}, LostConfirmed},
	{"an order answered 201 was refused", func(r *run) { erin(r, 201, Confirmed); reject(r, "e", "sold_out") }, LostConfirmed},
	{"an order seen committed was refused", func(r *run) {
		erin(r, 202, Queued)
		reject(r, "e", "sold_out")
		r.call("", 120, 121).about(Get, "erin", "e").answers(200, "e", Confirmed)
	}, LostConfirmed},
	{"an order answered 201 as refused was refused", func(r *run) { erin(r, 201, Rejected); reject(r, "e", "failed") }, ""},
	{"an order seen refused is missing", func(r *run) { erin(r, 201, Rejected); r.lose("e"); r.final.AcceptedMayBeLost = true }, LostConfirmed},
	{"an order answered 201 was paid", func(r *run) {
		erin(r, 201, Confirmed).Status = Paid
		r.call("", 120, 121).about(Pay, "", "e") // without an answer
	}, ""},
	{"an order answered 201 was cancelled", func(r *run) {
		erin(r, 201, Confirmed).Status = Cancelled
		r.settle()
		r.call("", 120, 121).about(Cancel, "erin", "e").answers(200, "e", Cancelled)
	}, ""},
	{"an order answered 201 was paid without a call", func(r *run) { erin(r, 201, Confirmed).Status = Paid }, Unasked},
	{"an order answered 201 was cancelled without a call", func(r *run) {
		erin(r, 201, Confirmed).Status = Cancelled
		r.settle()
	}, Unasked},
	{"an order answered 201 was paid and is cancelled", func(r *run) {
		erin(r, 201, Confirmed).Status = Cancelled
		r.settle()
		r.call("", 120, 121).about(Pay, "", "e")
	}, Unasked},
	{"an order answered 201 expired", func(r *run) { erin(r, 201, Confirmed).Status = Expired; r.settle() }, ""},
	{"a row is queued", func(r *run) {
		r.call("erin", 100, 110).Status = 503
		r.row("e", "erin", Queued)
		r.settle()
	}, Malformed},

	{"an acknowledged order is not found later", func(r *run) {
		erin(r, 202, Queued)
		r.call("", 120, 121).about(Get, "erin", "e").refuses(404, "order_not_found").Order = "e"
	}, Vanished},
	{"an acknowledged order is not found, which may be", func(r *run) {
		erin(r, 202, Queued)
		r.call("", 120, 121).about(Get, "erin", "e").refuses(404, "order_not_found").Order = "e"
		r.final.AcceptedMayBeLost = true
	}, ""},
	{"a committed order is not found where a queued one may be missing", func(r *run) {
		erin(r, 201, Confirmed)
		r.call("", 120, 121).about(Pay, "", "e").refuses(404, "order_not_found").Order = "e"
		r.final.AcceptedMayBeLost = true
	}, Vanished},
	{"an order is not found while it is acknowledged", func(r *run) {
		erin(r, 201, Confirmed)
		r.call("", 105, 121).about(Get, "erin", "e").refuses(404, "order_not_found").Order = "e"
	}, ""},
	{"another's order is not found", func(r *run) {
		erin(r, 201, Confirmed)
		r.call("", 120, 121).about(Get, "alice", "e").refuses(404, "order_not_found").Order = "e"
	}, ""},

	{"a payment was answered and the order expired", func(r *run) {
		erin(r, 201, Confirmed).Status = Expired
		r.settle()
		r.call("", 120, 121).about(Pay, "", "e").answers(200, "e", Paid)
	}, Changed},
	{"a payment was answered and the order is paid", func(r *run) {
		erin(r, 201, Confirmed).Status = Paid
		r.call("", 120, 121).about(Pay, "", "e").answers(200, "e", Paid)
	}, ""},
	{"a payment was answered and the order was refunded", func(r *run) { refunded(r, "e", 122, 123, false) }, ""},
	{"a payment was answered and the order was refunded with a restock", func(r *run) { refunded(r, "e", 122, 123, true) }, ""},
	{"an order is refunded without a call", func(r *run) {
		refunded(r, "e", 122, 123, true)
		r.calls[len(r.calls)-1].Op = Get
	}, Unasked},
	{"an order is refunded without a payment", func(r *run) {
		refunded(r, "e", 122, 123, true)
		r.calls[len(r.calls)-2].Op = Get
	}, Unasked},
	{"a refund was answered and the order is paid", func(r *run) {
		refunded(r, "e", 122, 123, false)
		r.of("e").Status = Paid
	}, Changed},
	{"a refunded order is paid again", func(r *run) {
		refunded(r, "e", 122, 123, false)
		r.call("", 124, 125).about(Get, "erin", "e").answers(200, "e", Paid)
	}, Backwards},
	{"a refunded order's units are on sale without a restock", func(r *run) {
		refunded(r, "e", 122, 123, true)
		r.of("e").Restocked = false
		r.lamp().Loaded = false
	}, LedgerWrong},
	{"a committed order is queued again", func(r *run) {
		erin(r, 201, Confirmed)
		r.call("", 120, 121).about(Get, "erin", "e").answers(200, "e", Queued)
	}, Backwards},
	{"an order is queued while it is committed", func(r *run) {
		erin(r, 201, Confirmed)
		r.call("", 105, 121).about(Get, "erin", "e").answers(200, "e", Queued)
	}, ""},
	{"a cancelled order is confirmed again", func(r *run) {
		erin(r, 201, Confirmed).Status = Cancelled
		r.settle()
		r.call("", 120, 121).about(Cancel, "erin", "e").answers(200, "e", Cancelled)
		r.call("", 122, 123).about(Get, "erin", "e").answers(200, "e", Confirmed)
	}, Backwards},

	{"a row without a call", func(r *run) { r.more(1); r.row("x", "mallory", Confirmed); r.settle() }, Invented},
	{"a row under another key", func(r *run) { r.more(1); r.row("x", "bob", Confirmed).Key = "other"; r.settle() }, Invented},
	{"a refused row without a call", func(r *run) { r.row("x", "mallory", Rejected).Reason = "sold_out" }, Invented},
	{"a row of a call without an answer", func(r *run) {
		r.more(1)
		r.call("erin", 100, 110)
		r.row("e", "erin", Confirmed)
		r.settle()
	}, ""},
	{"a row of a call answered 503", func(r *run) {
		r.more(1)
		r.call("erin", 100, 110).refuses(503, "unavailable")
		r.row("e", "erin", Confirmed)
		r.settle()
	}, ""},
	{"a row of a refused call", func(r *run) {
		r.more(1)
		r.call("erin", 100, 110).refuses(409, "user_limit")
		r.row("e", "erin", Confirmed)
		r.settle()
	}, Contradicted},
	{"a row of a refused call that was cancelled", func(r *run) {
		r.call("erin", 100, 110).refuses(409, "user_limit")
		r.row("e", "erin", Expired)
	}, Contradicted},
	{"a refused row of a refused call", func(r *run) {
		r.call("erin", 100, 110).refuses(409, "sold_out")
		r.row("e", "erin", Rejected).Reason = "sold_out"
	}, ""},
	{"a row of a refused call that has another without an answer", func(r *run) {
		r.call("erin", 90, 95)
		r.call("erin", 100, 110).refuses(409, "user_limit")
		r.row("e", "erin", Expired)
	}, ""},

	{"an acknowledged purchase is refused", func(r *run) { r.call("alice", 90, 95).refuses(409, "sold_out") }, Forgotten},
	{"an acknowledged purchase is refused, which may be", func(r *run) {
		r.call("alice", 90, 95).refuses(409, "sold_out")
		r.final.AcceptedMayBeLost = true
	}, ""},
	{"an acknowledged purchase is refused for another quantity", func(r *run) {
		r.call("alice", 90, 95).refuses(422, "idempotency_key_reused").Quantity = 2
	}, ""},
	{"an acknowledged purchase is refused as another", func(r *run) { r.call("alice", 90, 95).refuses(422, "idempotency_key_reused") }, Forgotten},
	{"an acknowledged purchase is sent too often", func(r *run) { r.call("alice", 90, 95).refuses(429, "rate_limited") }, ""},
	{"a purchase is refused while its twin is acknowledged", func(r *run) {
		r.call("alice", 9, 95).refuses(409, "sold_out")
	}, ""},
	{"a purchase that ended refused is refused", func(r *run) {
		erin(r, 202, Queued)
		reject(r, "e", "sold_out")
		r.call("erin", 120, 121).refuses(409, "sold_out")
	}, ""},

	{"two rows of one key", func(r *run) {
		r.more(1)
		r.row("a2", "alice", Confirmed)
		r.settle()
	}, Duplicated},
	{"two rows of one key, one expired", func(r *run) { r.row("a2", "alice", Expired) }, Duplicated},
	{"two rows of one key, one refused under the same key", func(r *run) { r.row("a2", "alice", Rejected).Reason = "sold_out" }, Duplicated},
	{"a second order of a key was refused for it", func(r *run) {
		o := r.row("a2", "alice", Rejected)
		o.Key, o.Reason = "k a2", "idempotency_key_reused"
	}, ""},
	{"a row occurs twice", func(r *run) {
		r.final.Orders = append(r.final.Orders, *r.of("a"))
		r.of("a").Status = Expired
		r.of("a").Quantity = 1
	}, Duplicated},

	{"two buyers have rows with the same id", func(r *run) {
		r.call("erin", 2, 9) // without an answer
		other := Order{ID: "a", User: "erin", Item: "lamp", Quantity: 1, Key: "k", Status: Expired}
		r.final.Orders = slices.Insert(r.final.Orders, 0, other)
	}, Duplicated},

	{"two orders of one key exist, where one may be lost", func(r *run) {
		r.more(1)
		r.call("alice", 90, 95).answers(202, "a2", Queued)
		r.row("a2", "alice", Confirmed)
		r.settle()
		r.final.AcceptedMayBeLost = true
	}, Duplicated + " " + AnswersDiffer},
	{"a repeat got another order", func(r *run) {
		r.call("alice", 90, 95).answers(202, "a2", Queued)
		o := r.row("a2", "alice", Rejected)
		o.Key, o.Reason = "k a2", "idempotency_key_reused"
	}, AnswersDiffer},
	{"a repeat got another order, which Redis had forgotten", func(r *run) {
		r.call("alice", 90, 95).answers(202, "a2", Queued)
		o := r.row("a2", "alice", Rejected)
		o.Key, o.Reason = "k a2", "idempotency_key_reused"
		r.final.AcceptedMayBeLost = true
	}, ""},
	{"a repeat of a lost order got another", func(r *run) {
		r.call("erin", 90, 95).answers(202, "e1", Queued)
		erin(r, 202, Queued)
		r.final.AcceptedMayBeLost = true
	}, ""},

	{"a row is for another quantity than acknowledged", func(r *run) {
		r.more(1)
		r.of("a").Quantity = 2
		r.call("alice", 2, 9).Quantity = 2 // without an answer
		r.settle()
	}, Content},
	{"a row is for another quantity than its call without an answer", func(r *run) {
		r.call("erin", 100, 110)
		r.row("e", "erin", Expired).Quantity = 2
	}, Content},
	{"an order was acknowledged for two keys", func(r *run) { r.call("frank", 90, 95).answers(201, "a", Confirmed) }, Content},
	{"an order was shown to a stranger", func(r *run) {
		r.call("", 90, 95).about(Get, "bob", "a").answers(200, "a", Confirmed)
	}, Content},

	{"an acknowledgement without an order", func(r *run) { r.call("erin", 90, 95).answers(201, "", Confirmed) }, Malformed},
	{"an order answered 201 without a state", func(r *run) { r.call("bob", 90, 95).answers(201, "b", "") }, Malformed},
	{"a queued order answered 201", func(r *run) { r.call("erin", 0, 95).answers(201, "b", Queued).User = "bob" }, Malformed},
	{"a committed order answered 202", func(r *run) { r.call("bob", 90, 95).answers(202, "b", Confirmed) }, Malformed},
	{"a purchase answered 200", func(r *run) { r.call("bob", 90, 95).answers(200, "b", Confirmed) }, Malformed},

	{"more is held than there was", func(r *run) {
		erin(r, 201, Confirmed)
		r.lamp().Initial = 3
		r.settle()
	}, Oversold + " " + LedgerWrong}, // the ledger cannot balance then
	{"less is held than was wanted", func(r *run) { r.lose("b"); r.deafen("bob"); r.lamp().Exhausted = true }, Unsold},
	{"less is held than was wanted, by less than a purchase", func(r *run) {
		r.final = Final{Items: []Item{{ID: "lamp", Initial: 3, Limit: 2}}}
		r.calls = nil
		r.call("alice", 1, 2).answers(201, "a", Confirmed).Quantity = 2
		r.call("bob", 3, 4).refuses(409, "sold_out").Quantity = 2
		r.row("a", "alice", Confirmed).Quantity = 2
		r.settle()
		r.lamp().Exhausted = true
	}, ""},
	{"less is held than the stock, without demand for it", func(r *run) { r.lose("b"); r.deafen("bob") }, ""},
	{"less is held than was wanted, for a dead letter of a purchase without an answer", func(r *run) {
		r.drop("b")
		r.deafen("bob")
		r.call("bob", 1, 2)
		r.final.Dead = []string{"b"}
	}, ""},

	{"a buyer has more than the limit", func(r *run) {
		r.more(2)
		r.of("a").Quantity, r.calls[0].Quantity = 3, 3
		r.settle()
	}, OverLimit},
	{"a buyer has the limit in two orders", func(r *run) {
		r.more(1)
		r.call("alice", 2, 9).answers(201, "a2", Confirmed).Key = "k2"
		r.row("a2", "alice", Confirmed).Key = "k2"
		r.settle()
	}, ""},

	{"a restock is not in the database", func(r *run) { r.restock(90, 95, 2).Status = 200 }, Restocked},
	{"a restock was refused", func(r *run) { r.restock(90, 95, -2).refuses(409, "stock_below_sold") }, ""},
	{"a refused restock is in the database", func(r *run) {
		r.restock(90, 95, 2).refuses(409, "stock_below_sold")
		r.lamp().Restocked = 2
		r.settle()
	}, Restocked},
	{"a restock without an answer is in the database", func(r *run) { r.restock(90, 95, 2); r.lamp().Restocked = 2; r.settle() }, ""},
	{"a restock without an answer is not in the database", func(r *run) { r.restock(90, 95, 2) }, ""},
	{"a restock was repeated", func(r *run) {
		r.restock(90, 95, 2)
		r.restock(96, 97, 2).Status = 200
		r.restock(98, 99, 2).Status = 200
		r.lamp().Restocked = 2
		r.settle()
	}, ""},

	{"the ledger could not be read", func(r *run) { r.lamp().Ledger = nil }, LedgerWrong},
	{"the ledger does not balance", func(r *run) { r.lamp().Ledger.Balanced = false }, LedgerWrong},
	{"the ledger's parts are not the whole", func(r *run) { r.lamp().Ledger.Left++ }, LedgerWrong},
	{"the ledger's whole is another", func(r *run) { r.lamp().Ledger.Initial++; r.lamp().Ledger.Left++ }, LedgerWrong},
	{"the ledger's restocks are others", func(r *run) { r.lamp().Ledger.Restocked++; r.lamp().Ledger.Left++ }, LedgerWrong},
	{"the ledger holds less than the orders", func(r *run) { r.lamp().Ledger.Left++; r.lamp().Ledger.Sold-- }, LedgerWrong},
	{"the ledger has a negative part", func(r *run) { r.lamp().Ledger.Left--; r.lamp().Ledger.Sold++ }, LedgerWrong},
	{"a ledger of the run does not balance", func(r *run) { r.final.Ledgers[1].Balanced = false }, LedgerSampled},
	{"a ledger of the run has lost a unit", func(r *run) { r.final.Ledgers[1].Left-- }, LedgerSampled},

	{"Redis has more left than the orders leave", func(r *run) { r.lamp().Left++ }, RedisLeft},
	{"Redis has less left than the orders leave", func(r *run) { r.lamp().Left-- }, RedisLeft},
	{"Redis has no sale", func(r *run) { r.lamp().Loaded, r.lamp().Left = false, 7 }, ""},

	{"a fence fell", func(r *run) {
		r.final.Fences = append(r.final.Fences, FenceSample{20 * ms, "lamp", SourceLock, 8})
	}, FenceFell},
	{"a fence fell and rose again", func(r *run) {
		r.final.Fences = append(r.final.Fences, FenceSample{8 * ms, "lamp", SourceLock, 3})
	}, FenceFell},
	{"the sale's fence fell at the end", func(r *run) { r.lamp().Fence = 2 }, FenceFell},
	{"fences were seen in one instant", func(r *run) {
		r.final.Fences = append(r.final.Fences, FenceSample{9 * ms, "lamp", SourceLock, 5}, FenceSample{9 * ms, "lamp", SourceLock, 7})
	}, ""},
	{"a fence fell within an instant below the one before", func(r *run) {
		r.final.Fences = append(r.final.Fences, FenceSample{9 * ms, "lamp", SourceLock, 3})
	}, FenceFell},
	{"a fence fell below the highest of an instant", func(r *run) {
		r.final.Fences = append(r.final.Fences, FenceSample{9 * ms, "lamp", SourceLock, 12}, FenceSample{20 * ms, "lamp", SourceLock, 10})
	}, FenceFell},
	{"another item's fence is lower", func(r *run) {
		r.final.Fences = append(r.final.Fences, FenceSample{20 * ms, "vase", SourceLock, 1})
	}, ""},

	{"sold out before it can have been", func(r *run) { r.call("frank", 2, 3).refuses(409, "sold_out") }, SoldOutEarly},
	{"sold out for a purchase that began in time", func(r *run) { r.call("frank", 2, 5).refuses(409, "sold_out") }, ""},
	{"sold out for two where one was left", func(r *run) {
		r.call("frank", 2, 3).refuses(409, "sold_out").Quantity = 2
	}, ""},
	{"sold out although a restock was answered", func(r *run) {
		r.restock(0, 1, 2).Status = 200
		r.lamp().Restocked = 2
		r.settle()
	}, SoldOutEarly},
	{"sold out although a restock was on its way", func(r *run) {
		r.restock(0, 80, 2).Status = 200
		r.lamp().Restocked = 2
		r.settle()
	}, ""},
	{"sold out because units were taken back", func(r *run) {
		r.restock(1, 100, -1).Status = 200
		r.call("frank", 2, 3).refuses(409, "sold_out")
		r.lamp().Restocked = -1
		r.lamp().Initial = 4 // of which three can be sold
		r.final.Ledgers = nil
		r.call("grace", 0, 1) // without an answer
		r.settle()
	}, ""},
	{"sold out again after the stock came back", func(r *run) {
		r.of("a").Status = Cancelled
		r.settle()
		r.call("", 90, 91).about(Cancel, "alice", "a").answers(200, "a", Cancelled)
		r.call("frank", 92, 93).refuses(409, "sold_out")
	}, ""},
	{"sold out by what the database refused", func(r *run) {
		r.call("frank", 2, 3).refuses(409, "sold_out")
		r.call("erin", 2, 3).refuses(409, "sold_out")
		r.row("e", "erin", Rejected).Reason = "sold_out"
	}, ""},
	{"sold out by what the database refused, where Redis had forgotten something", func(r *run) {
		r.call("frank", 2, 3).refuses(409, "sold_out")
		r.call("erin", 2, 3).refuses(409, "sold_out")
		r.row("e", "erin", Rejected).Reason = "sold_out"
		r.final.AcceptedMayBeLost = true
	}, ""},
	{"sold out before the database refused anything", func(r *run) {
		r.call("frank", 2, 3).refuses(409, "sold_out")
		r.call("erin", 50, 51).refuses(409, "sold_out")
		r.row("e", "erin", Rejected).Reason = "sold_out"
	}, SoldOutEarly},
	{"sold out again after a restock", func(r *run) {
		r.restock(76, 77, 2).Status = 200
		r.call("erin", 80, 81).answers(201, "e", Confirmed)
		r.row("e", "erin", Confirmed)
		r.call("frank", 82, 83).refuses(409, "sold_out")
		r.lamp().Restocked = 2
		r.settle()
	}, ""},
	{"sold out by a repeat that Redis had forgotten", func(r *run) {
		r.lamp().Initial = 4
		r.final.Ledgers = nil
		r.settle()
		r.final.AcceptedMayBeLost = true
	}, ""},
	{"sold out by a repeat that Redis cannot have forgotten", func(r *run) {
		r.lamp().Initial = 4
		r.final.Ledgers = nil
		r.settle()
	}, SoldOutEarly},
}

// refunded makes erin buy, the shop's backend pay, and then the shop refund.
func refunded(r *run, order string, from, to int64, restocked bool) {
	o := erin(r, 201, Confirmed)
	o.Status, o.Restocked = Refunded, restocked
	r.call("", 120, 121).about(Pay, "", order).answers(200, order, Paid)
	r.call("", from, to).about(Refund, "", order).answers(200, order, Refunded)
	r.settle()
}

// erin makes erin buy a fourth lamp and adds its row.
func erin(r *run, status int, state string) *Order {
	r.more(1)
	r.call("erin", 100, 110).answers(status, "e", state)
	r.row("e", "erin", Confirmed)
	r.settle()
	return r.of("e")
}

// more increases the stock, so that no call was refused because the stock was too low.
func (r *run) more(units int64) {
	r.lamp().Initial += units
	r.final.Ledgers = nil
	r.calls = slices.DeleteFunc(r.calls, func(c Call) bool { return c.Code == "sold_out" })
	r.settle()
}

// bury turns a row into a dead letter, which holds its unit.
func (r *run) bury(id string) {
	r.drop(id)
	r.settle()
	r.final.Dead = append(r.final.Dead, id)
	r.lamp().Left--
	r.lamp().Ledger.Left--
	r.lamp().Ledger.Held++
}

func reject(r *run, id, reason string) {
	o := r.of(id)
	o.Status, o.Reason = Rejected, reason
	r.settle()
}

// deafen removes the answers to a buyer's calls.
func (r *run) deafen(user string) {
	for i := range r.calls {
		if c := &r.calls[i]; c.User == user {
			c.Status, c.Order, c.State, c.Replayed = 0, "", "", false
		}
	}
}

func (r *run) restock(from, to, units int64) *Call {
	c := r.call("", from, to)
	c.Op, c.Quantity, c.Key = Restock, units, "delivery"
	return c
}

// Each token below the highest so far counts, even if it is higher than the one before it.
func TestCheck_FindsEveryLowerFence(t *testing.T) {
	t.Parallel()
	r := good()
	r.final.Fences = append(r.final.Fences, FenceSample{20 * ms, "lamp", SourceLock, 7}, FenceSample{30 * ms, "lamp", SourceLock, 8})
	if v := Check(r.calls, &r.final); len(v.Findings) != 1 || v.Findings[0].Count != 2 {
		t.Errorf("two tokens fell: %s %+v", v.Line(), v.Findings)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := good()
			c.make(r)
			v := Check(r.calls, &r.final)
			if c.want == "" {
				if !v.Passed || len(v.Findings) > 0 {
					t.Errorf("it should pass: %s %+v", v.Line(), v.Findings)
				}
				return
			}
			var names []string
			for _, f := range v.Findings {
				names = append(names, f.Name)
				if f.Count < 1 || len(f.Examples) == 0 || f.Examples[0] == "" {
					t.Errorf("a finding without a case: %+v", f)
				}
			}
			if v.Passed || strings.Join(names, " ") != c.want {
				t.Errorf("want %s: %s %+v", c.want, v.Line(), v.Findings)
			}
		})
	}
}
