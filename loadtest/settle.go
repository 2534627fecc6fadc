package main

import (
	"context"
	"errors"
	"time"
)

// settled is the state of the sale once it is quiet, or when waiting ended.
type settled struct {
	rows   []row
	ledger *ledger       // nil: could not be read
	drain  time.Duration // from the crowd's last answer until every acknowledged order was seen as a row
	all    bool          // every acknowledged order is a row
	notes  []string      // what went wrong on the way
}

// ledgerPatience bounds the wait for the ledger to agree with rows that are complete.
const ledgerPatience = 5 * time.Second

// waitSettled polls until every acknowledged order has a row, and then until the
// ledger agrees with the rows: purchases whose answers were lost may still be on
// their way. Neither is awaited for longer than the timeout; what is missing
// then is missing, and the verdict says so.
func waitSettled(ctx context.Context, o *observations, item string, src source, ledgers *api, timeout time.Duration, live *counters) (*settled, error) {
	want := make(map[string]bool)
	for i := range o.wishes {
		for _, id := range o.wishes[i].orders {
			want[id] = true
		}
	}
	s := new(settled)
	start := time.Now()
	every := 10 * time.Millisecond
	if _, slow := src.(apiSource); slow {
		every = 250 * time.Millisecond
	}
	err := poll(ctx, timeout, every, func() (bool, error) {
		n, err := src.count(ctx, item)
		if err != nil {
			return false, err
		}
		live.persisted.Store(max(n, 0))
		if n >= 0 && n < int64(len(want)) {
			return false, nil
		}
		if s.rows, err = src.rows(ctx, item); err != nil {
			return false, err
		}
		s.all = countPresent(s.rows, want) == len(want)
		return s.all, nil
	})
	s.drain = time.Since(start)
	if err != nil && !errors.Is(err, errPollTimeout) {
		return nil, err
	}
	err = poll(ctx, min(timeout, ledgerPatience), 50*time.Millisecond, func() (bool, error) {
		rows, err := src.rows(ctx, item)
		if err != nil {
			return false, err
		}
		s.rows = rows
		live.persisted.Store(int64(len(rows)))
		l, err := ledgers.ledger(ctx, item)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return false, cause
			}
			s.ledger, s.notes = nil, []string{err.Error()}
			return false, nil // the service may be busy; the timeout bounds this
		}
		s.ledger, s.notes = l, nil
		return l.agrees(o.stock, units(rows)), nil
	})
	if err != nil && !errors.Is(err, errPollTimeout) {
		return nil, err
	}
	return s, nil
}

func countPresent(rows []row, want map[string]bool) int {
	n := 0
	for i := range rows {
		if want[rows[i].ID] {
			n++
		}
	}
	return n
}

// units sums what the rows that are not rejected hold.
func units(rows []row) (n int64) {
	for i := range rows {
		if !rows[i].rejected() {
			n += rows[i].Quantity
		}
	}
	return n
}

// observe gathers what the crowd saw by purchase.
func observe(p *plan, r *result) *observations {
	o := &observations{stock: p.stock, limit: p.limit, quantity: p.quantity, wishes: make([]wish, len(p.purchases))}
	for i := range p.purchases {
		o.wishes[i] = wish{buyer: p.buyers[p.purchases[i].buyer], key: p.purchases[i].key}
	}
	for i := range p.shots {
		w, a := &o.wishes[p.shots[i].purchase], &r.outcomes[i].answer
		switch a.kind {
		case kindAccepted:
			if a.order != "" && (len(w.orders) == 0 || w.orders[0] != a.order) {
				w.orders = append(w.orders, a.order)
			}
		case kindRefused:
			w.refused = a.code
			if w.refused == "" {
				w.refused = "refused"
			}
		case kindBusy, kindUnknown:
			// Given up: nothing is known, and nothing follows from it.
		}
		if a.fault != "" {
			w.fault = a.fault
		}
	}
	return o
}
