package history

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// patience bounds a search. It only delays a failure.
const patience = 2 * time.Minute

// linearCases are small histories. Most of them pass a check of only keys and sums.
var linearCases = []struct {
	name string
	make func(r *run)
	ok   bool
}{
	{"nothing is wrong", func(*run) {}, true},
	{"a buyer without units is refused by the limit", func(r *run) { r.call("frank", 90, 95).refuses(409, "user_limit") }, false},
	{"a buyer at the limit is refused", func(r *run) {
		r.call("alice", 90, 95).refuses(409, "user_limit").Key = "k2"
		r.lamp().Limit = 1
	}, true},
	{"the limit is refused before it was reached", func(r *run) {
		for i := range r.calls {
			r.calls[i].Start += 5 * ms
			r.calls[i].End += 5 * ms
		}
		r.call("alice", 1, 2).refuses(409, "user_limit").Key = "k2"
		r.lamp().Limit = 1
	}, false},
	{"the limit is refused while it is reached", func(r *run) {
		r.call("alice", 5, 9).refuses(409, "user_limit").Key = "k2"
		r.lamp().Limit = 1
	}, true},
	{"sold out before it can have been", func(r *run) { r.call("frank", 2, 3).refuses(409, "sold_out") }, false},
	{"sold out while the last is sold", func(r *run) { r.call("frank", 2, 7).refuses(409, "sold_out") }, true},
	{"a repeat is not marked as one", func(r *run) { r.call("alice", 90, 95).answers(201, "a", Confirmed) }, false},
	{"a repeat is marked as one", func(r *run) { r.call("alice", 90, 95).answers(201, "a", Confirmed).Replayed = true }, true},
	{"the first is marked as a repeat", func(r *run) { r.calls[0].Replayed = true }, false},
	{"a key is reused", func(r *run) {
		c := r.call("alice", 90, 95).refuses(422, "idempotency_key_reused")
		c.Quantity = 2
	}, true},
	{"a key is reused before it was used", func(r *run) {
		for i := range r.calls {
			r.calls[i].Start += 5 * ms
			r.calls[i].End += 5 * ms
		}
		r.call("alice", 1, 2).refuses(422, "idempotency_key_reused").Quantity = 2
	}, false},
	{"sold while it was paused", func(r *run) {
		r.more(1)
		r.control(Pause, 80, 85)
		r.call("frank", 90, 95).answers(201, "f", Confirmed)
		r.control(Resume, 100, 105)
		r.row("f", "frank", Confirmed)
		r.settle()
	}, false},
	{"sold while it was being resumed", func(r *run) {
		r.more(1)
		r.control(Pause, 80, 85)
		r.call("frank", 90, 101).answers(201, "f", Confirmed)
		r.control(Resume, 100, 105)
		r.row("f", "frank", Confirmed)
		r.settle()
	}, true},
	{"paused while it was not", func(r *run) {
		r.call("frank", 90, 95).refuses(409, "sale_paused")
	}, false},
	{"closed, and told so", func(r *run) {
		r.control(Close, 80, 100)
		r.call("frank", 90, 95).refuses(409, "sale_closed")
	}, true},
	{"a unit was lost", func(r *run) { r.lamp().Left-- }, false},
	{"a call without an answer took a unit", func(r *run) {
		r.more(1)
		r.call("erin", 100, 110)
		r.row("e", "erin", Confirmed)
		r.settle()
	}, true},
	{"a row without a call", func(r *run) {
		r.more(1)
		r.call("erin", 100, 110).refuses(429, "rate_limited")
		r.row("e", "erin", Confirmed)
		r.settle()
	}, false},
	{"a row without a call, and Redis does not have it", func(r *run) {
		r.more(1)
		r.call("erin", 100, 110).refuses(429, "rate_limited")
		r.row("e", "erin", Confirmed)
	}, false},
	{"sold again before it was given back", func(r *run) { cancelled(r, 90, 95, 80, 85) }, false},
	{"sold again once it was given back", func(r *run) { cancelled(r, 90, 95, 100, 105) }, true},
	{"sold again while it is given back", func(r *run) { cancelled(r, 90, 95, 92, 94) }, true},
	{"sold again before its refund", func(r *run) { resold(r, 90, 95, 80, 85, true) }, false},
	{"sold again after its refund", func(r *run) { resold(r, 90, 95, 100, 105, true) }, true},
	{"sold again after a refund without a restock", func(r *run) { resold(r, 90, 95, 100, 105, false) }, false},
	{"the limit is free again once it was given back", func(r *run) {
		r.lamp().Limit = 1
		cancelled(r, 90, 95, 100, 105)
		r.calls[len(r.calls)-1].User, r.calls[len(r.calls)-1].Key = "alice", "k2"
		r.of("f").User, r.of("f").Key = "alice", "k2"
	}, true},
	{"the database refused it, and its unit came back", func(r *run) {
		r.more(1)
		r.call("erin", 100, 110).refuses(409, "sold_out")
		r.row("e", "erin", Rejected).Reason = "sold_out"
		r.call("erin", 120, 121).refuses(409, "sold_out")
		r.settle()
	}, true},
	{"what was never sold is taken back", func(r *run) { r.restock(90, 95, -1).refuses(409, "stock_below_sold") }, true},
	{"units that are there cannot be taken back", func(r *run) {
		r.more(1)
		r.restock(90, 95, -1).refuses(409, "stock_below_sold")
	}, false},
	{"restocked units are sold before they are there", func(r *run) { restocked(r, 90, 95, 80, 85) }, false},
	{"restocked units are sold", func(r *run) { restocked(r, 80, 85, 90, 95) }, true},
	{"Redis has no sale", func(r *run) { r.lamp().Loaded, r.lamp().Left = false, 7 }, true},
}

// resold makes the shop refund alice's order and frank buy its unit.
func resold(r *run, from, to, boughtFrom, boughtTo int64, restocked bool) {
	r.call("", from, to).about(Refund, "", "a").answers(200, "a", Refunded)
	r.of("a").Status, r.of("a").Restocked = Refunded, restocked
	r.call("frank", boughtFrom, boughtTo).answers(201, "f", Confirmed)
	r.row("f", "frank", Confirmed)
	r.settle()
}

// cancelled makes alice cancel her order and frank buy its unit.
func cancelled(r *run, from, to, boughtFrom, boughtTo int64) {
	r.call("", from, to).about(Cancel, "alice", "a").answers(200, "a", Cancelled)
	r.of("a").Status = Cancelled
	r.call("frank", boughtFrom, boughtTo).answers(201, "f", Confirmed)
	r.row("f", "frank", Confirmed)
	r.settle()
}

// restocked adds one lamp, which frank buys.
func restocked(r *run, from, to, boughtFrom, boughtTo int64) {
	r.restock(from, to, 1).Status = 200
	r.lamp().Restocked = 1
	r.call("frank", boughtFrom, boughtTo).answers(201, "f", Confirmed)
	r.row("f", "frank", Confirmed)
	r.settle()
}

func (r *run) control(op string, from, to int64) {
	c := r.call("", from, to)
	c.Op, c.Key, c.Quantity, c.Status = op, "", 0, 200
}

func TestLinearizable(t *testing.T) {
	t.Parallel()
	for _, c := range linearCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := good()
			c.make(r)
			err := Linearizable(r.calls, &r.final, patience)
			if c.ok && err != nil {
				t.Errorf("it should be linearizable: %v", err)
			}
			if !c.ok && !errors.Is(err, ErrNotLinearizable) {
				t.Errorf("it should not be linearizable: %v", err)
			}
		})
	}
}

// A search that takes too long returns ErrUndecided.
func TestLinearizable_Undecided(t *testing.T) {
	t.Parallel()
	r := good()
	if err := Linearizable(r.calls, &r.final, 0); !errors.Is(err, ErrUndecided) {
		t.Errorf("without time: %v", err)
	}
	// Forty buyers may each have taken a unit, and one unit is missing.
	r.more(40)
	for i := range 40 {
		user := fmt.Sprintf("u%d", i)
		r.call(user, 100, 110)
		r.row(user, user, Confirmed)
	}
	r.settle()
	r.lamp().Left--
	if err := Linearizable(r.calls, &r.final, 50*time.Millisecond); !errors.Is(err, ErrUndecided) {
		t.Errorf("with too little time: %v", err)
	}
}

// A history of the model of a correct shop is linearizable. With more units left at its end it
// is not.
func TestLinearizable_Model(t *testing.T) {
	t.Parallel()
	searched := 0
	rapid.Check(t, func(rt *rapid.T) {
		s := newShop(rt)
		s.lossy = false
		r := s.run(rapid.IntRange(5, 40).Draw(rt, "steps"))
		if len(r.final.Dead) > 0 {
			return
		}
		searched++
		if err := Linearizable(r.calls, &r.final, patience); err != nil {
			rt.Fatalf("a right history: %v", err)
		}
		r.final.Items[0].Left += 1000 // more than unanswered restocks can have added
		if err := Linearizable(r.calls, &r.final, patience); !errors.Is(err, ErrNotLinearizable) {
			rt.Fatalf("with units too many: %v", err)
		}
	})
	if searched == 0 {
		t.Error("no history without a dead letter")
	}
}
