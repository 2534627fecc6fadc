package handler

import (
	"errors"
	"math/rand/v2"
	"time"

	"flashsale/inventory"
)

// Admission knows whether the orders that wait leave room for more.
type Admission interface {
	// Admit returns nil when a purchase of the item may come in. With
	// inventory.ErrOverloaded it returns when it is worth trying again. It must cost
	// next to nothing.
	Admit(item string) (wait time.Duration, err error)
	// Late reports that the item's orders are committed so late that a purchase
	// should not wait for it.
	Late(item string) bool
	// Wait estimates when the orders that wait now will be done.
	Wait(item string) time.Duration
}

// gate lets purchases in while there is room. It stands in front of all other
// checks, the token's too: what is refused for want of room should cost as little
// as can be, and whatever else is wrong with it shows when there is room.
func (e *edge) gate(q *call) error {
	if e.MaxInFlight > 0 {
		q.counted = true
		if e.inFlight.Add(1) > e.MaxInFlight {
			return overloadedFor(time.Second)
		}
	}
	if e.Admission != nil {
		switch wait, err := e.Admission.Admit(q.c.Param("item")); {
		case errors.Is(err, inventory.ErrOverloaded):
			return overloadedFor(wait)
		case err != nil:
			return err
		}
	}
	return nil
}

// ungate counts the call out again.
func (e *edge) ungate(q *call) {
	if q.counted {
		q.counted = false
		e.inFlight.Add(-1)
	}
}

// unhurried is the preference as it can be met: who would wait for a commit that
// comes late has its answer at once instead, and does not hold a connection for
// nothing.
func (rs *purchaseRoutes) unhurried(item string, p preference) preference {
	if p.wait > 0 && rs.admission != nil && rs.admission.Late(item) {
		p.wait, p.asked = 0, false
	}
	return p
}

// longestRetry bounds what is asked of who is to come back, in seconds.
const longestRetry = 120

// overloaded are the refusals for want of room, by the seconds after which to come back.
var overloaded = func() (all [longestRetry + 1]*problem) {
	for i := range all {
		all[i] = problemOverloaded.retry(int64(i))
	}
	return all
}()

// overloadedFor is the refusal of who may try again after a time. Everyone is given
// another one, up to twice as long: a crowd that comes back at once is the same crowd.
func overloadedFor(wait time.Duration) *problem {
	n := min(max(1, ceilSeconds(wait)), longestRetry/2)
	return overloaded[n+rand.Int64N(n+1)]
}
