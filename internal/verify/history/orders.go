package history

import (
	"slices"
	"strings"
)

// answers checks each answer separately against the contract.
func (j *judge) answers() {
	for i := range j.calls {
		c := &j.calls[i]
		if c.Status == 500 {
			j.counts.Internal++
		}
		if c.Op != Buy || c.Status < 200 || c.Status >= 400 {
			continue
		}
		switch {
		case !c.Accepted():
			j.find(Malformed, 1, "%s: it is no answer to a purchase", say(c))
		case c.Order == "":
			j.find(Malformed, 1, "%s: it names no order", say(c))
		case c.Status == 201 && rank(c.State) < rankCommitted:
			j.find(Malformed, 1, "%s: 201 is an answer for committed orders", say(c))
		case c.Status == 202 && c.State != Queued:
			j.find(Malformed, 1, "%s: 202 is the answer for queued orders", say(c))
		}
	}
}

// rows checks each row separately and finds its purchase.
func (j *judge) rows() {
	known := make(map[string]bool, len(j.final.Orders))
	for i := range j.final.Orders {
		o := &j.final.Orders[i]
		switch {
		case o.Status == Rejected && o.Reason == "":
			j.find(Unexplained, 1, "%s", sayRow(o))
		case (o.Status == Paid || o.Status == Cancelled) && !j.ended[ending{o.ID, o.Status}]:
			j.find(Unasked, 1, "%s", sayRow(o))
		case o.Status == Refunded && !(j.ended[ending{o.ID, Paid}] && j.ended[ending{o.ID, Refunded}]):
			j.find(Unasked, 1, "%s", sayRow(o))
		case o.Status == Rejected, committed(o.Status):
		default:
			j.find(Malformed, 1, "%s: no such state of a row", sayRow(o))
		}
		switch {
		case o.Holds():
			j.counts.Rows++
		case o.Status == Rejected:
			j.counts.Rejected++
		}
		if known[o.ID] {
			j.find(Duplicated, 1, "%s: duplicate id", sayRow(o))
		}
		known[o.ID] = true
		if t := j.byOrder[o.ID]; t != nil {
			t.row = o
		}
		w := j.byKey[purchaseKey{o.User, o.Item, askedKey(o)}]
		if w == nil || j.items[o.Item] == nil {
			j.find(Invented, 1, "%s: no client requested it", sayRow(o))
			continue
		}
		w.rows = append(w.rows, o)
	}
}

// askedKey returns the key of the purchase. The stored key of an order that was rejected
// because its key already had another order has the order's id as a suffix.
func askedKey(o *Order) string {
	if o.Status != Rejected {
		return o.Key
	}
	return strings.TrimSuffix(o.Key, " "+o.ID)
}

// keys checks that each key has one order with one content, and that a refused key has none.
//
// It cannot detect a refused call that created an order if the key also has a call of unknown
// outcome, because that call may have created it.
// unknown outcome: that one may have made it.
func (j *judge) keys() {
	for _, w := range j.purchases {
		var same *Order
		for _, o := range w.rows {
			if o.Key == w.key { // its key has no suffix
				if same != nil {
					j.find(Duplicated, 1, "%s, and %s", sayRow(same), sayRow(o))
				}
				same = o
			}
			if o.Status != Rejected {
				j.madeBy(w, o)
			}
		}
		if len(w.acks) > 1 && !j.mayDiffer(w) {
			j.find(AnswersDiffer, 1, "key %s of %s, item %s, was answered with order %s by client %d and with order %s by client %d",
				w.key, w.user, w.item, w.acks[0].id, w.acks[0].bought.Client, w.acks[1].id, w.acks[1].bought.Client)
		}
	}
}

// madeBy checks that some call can have created the row.
func (j *judge) madeBy(w *purchase, o *Order) {
	switch {
	case len(w.asked) == 0:
		j.find(Contradicted, 1, "%s: each of the %d calls with its key was refused, the first: %s", sayRow(o), w.calls, say(w.first))
	case !slices.Contains(w.asked, o.Quantity):
		j.find(Content, 1, "%s: the calls that can have made it asked for %d", sayRow(o), w.asked)
	}
}

// mayDiffer reports whether two orders of one key are explained: one was lost with Redis's
// data, or was rejected because Redis had lost the other.
func (j *judge) mayDiffer(w *purchase) bool {
	if !j.final.AcceptedMayBeLost {
		return false
	}
	standing := 0
	for _, t := range w.acks {
		if t.committed.call != nil || t.row != nil && t.row.Status != Rejected {
			standing++
		}
	}
	return standing <= 1
}

// orders checks that every order named in an answer exists.
func (j *judge) orders() {
	for _, t := range j.records {
		if t.committed.call != nil {
			j.counts.Confirmed++
		}
		switch c := t.committed.call; {
		case t.row == nil && t.kept.call != nil:
			j.find(LostConfirmed, 1, "%s: it is not there", say(t.kept.call))
		case t.row == nil && j.dead[t.id]:
			j.counts.Dead++
		case t.row == nil && j.final.AcceptedMayBeLost:
			j.counts.LostAccepted++
		case t.row == nil:
			j.find(LostAccepted, 1, "%s: it is not there", say(t.first))
		case c != nil && !committed(t.row.Status):
			j.find(LostConfirmed, 1, "%s: it ended as %s", say(c), sayRow(t.row))
		}
	}
}

// later checks each call against what was known when it began, and against the final state: an
// order that was named in an answer is found from then on, never returns to an earlier state,
// and a repeat of its purchase is not refused.
func (j *judge) later() {
	for i := range j.calls {
		c := &j.calls[i]
		if c.Op == Buy && c.Refused() {
			j.forgotten(c)
		}
		t := j.byOrder[c.Order]
		if t == nil || c.Order == "" {
			continue
		}
		if c.Refused() {
			j.vanished(c, t)
		}
		if c.Status < 200 || c.Status >= 300 {
			continue
		}
		at := rank(c.State)
		if at == rankQueued && t.committed.before(c) {
			j.find(Backwards, 1, "%s, after %s", say(c), say(t.committed.call))
		} else if at != rankNone && at < rankFinal && t.final.before(c) {
			j.find(Backwards, 1, "%s, after %s", say(c), say(t.final.call))
		} else if at == rankFinal && t.refunded.before(c) {
			j.find(Backwards, 1, "%s, after %s", say(c), say(t.refunded.call))
		}
		if t.row == nil {
			continue
		}
		if at >= rankFinal && c.State != t.row.Status && (c.State != Paid || t.row.Status != Refunded) {
			j.find(Changed, 1, "%s: it ended as %s", say(c), sayRow(t.row))
		}
		if !describes(c, t.row) {
			j.find(Content, 1, "%s, but it is %s", say(c), sayRow(t.row))
		}
	}
}

// describes reports whether a row matches the call that was answered with it.
func describes(c *Call, o *Order) bool {
	if c.User != "" && c.User != o.User || c.Item != "" && c.Item != o.Item {
		return false
	}
	return c.Op != Buy || c.Quantity == o.Quantity && c.Key == askedKey(o)
}

// vanished finds acknowledged orders that a client with access to them did not find later.
func (j *judge) vanished(c *Call, t *orderRecord) {
	if c.Code != "order_not_found" {
		return
	}
	if c.User != "" && (t.bought == nil || t.bought.User != c.User) {
		return
	}
	switch {
	case t.kept.before(c):
		j.find(Vanished, 1, "%s, after %s", say(c), say(t.kept.call))
	case t.named.before(c) && !j.final.AcceptedMayBeLost:
		j.find(Vanished, 1, "%s, after %s", say(c), say(t.named.call))
	}
}

// forgotten finds refused repeats of acknowledged purchases. A repeat may be refused if the
// database rejects the order in the end.
func (j *judge) forgotten(c *Call) {
	w := j.byKey[purchaseKey{c.User, c.Item, c.Key}]
	if len(w.acks) == 0 || w.ackEnd >= c.Start || w.acks[0].bought.Quantity != c.Quantity {
		return
	}
	switch c.Code {
	case "sold_out", "user_limit", "sale_closed", "sale_paused", "sale_not_open", "idempotency_key_reused":
	default:
		return // refused before the key was read
	}
	if slices.ContainsFunc(w.rows, func(o *Order) bool { return o.Status == Rejected }) {
		return
	}
	if j.final.AcceptedMayBeLost {
		j.counts.Forgotten++
		return
	}
	j.find(Forgotten, 1, "%s, after %s", say(c), say(w.acks[0].bought))
}
