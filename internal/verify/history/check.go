package history

import (
	"fmt"
	"math"
	"slices"
)

// The names of the findings.
const (
	// LostConfirmed: a client saw the order committed, but it ends queued, rejected or missing;
	// or a client saw it rejected, and it is missing.
	LostConfirmed = "lost_confirmed"
	// LostAccepted: an order was acknowledged with 202 but is neither a row nor a dead letter.
	LostAccepted = "lost_accepted"
	// Vanished: a later request for an acknowledged order was answered order_not_found.
	Vanished = "vanished"
	// Changed: a client saw a final state, but the row has a different one.
	Changed = "changed"
	// Backwards: a client saw an earlier state after a later one.
	Backwards = "backwards"
	// Unasked: an order ends paid, cancelled or refunded without a call that requested it.
	Unasked = "unasked"
	// Unexplained: a rejected order has no reason.
	Unexplained = "unexplained"
	// Invented: a row matches no purchase.
	Invented = "invented"
	// Contradicted: a row holds or held units although every call with its key was definitively
	// refused.
	Contradicted = "contradicted"
	// Forgotten: a purchase was refused although an earlier one with the same key had been
	// acknowledged.
	Forgotten = "forgotten"
	// Duplicated: two rows have the same key or the same id.
	Duplicated = "duplicated"
	// AnswersDiffer: one key was answered with two different orders.
	AnswersDiffer = "answers_differ"
	// Content: a row does not match the purchase that was acknowledged with its order.
	Content = "content"
	// Malformed: an acknowledgement has no order or an impossible state, or a row has a state
	// that does not exist.
	Malformed = "malformed"
	// Oversold: the rows hold more units than the stock.
	Oversold = "oversold"
	// Unsold: the demand exceeded the stock, but the rows hold fewer units.
	Unsold = "unsold"
	// OverLimit: a buyer's rows hold more units than the item's limit.
	OverLimit = "over_limit"
	// Restocked: the stock changes in the database differ from those that clients saw.
	Restocked = "restocked"
	// LedgerWrong: at the end, the ledger does not balance or does not match the rows.
	LedgerWrong = "ledger"
	// LedgerSampled: a ledger sample taken during the run did not balance.
	LedgerSampled = "ledger_sampled"
	// RedisLeft: at the end, the units left in Redis do not match the rows.
	RedisLeft = "redis_left"
	// FenceFell: a fencing token was lower than an earlier one.
	FenceFell = "fence"
	// Revived: an order listed as discarded is a row.
	Revived = "revived"
	// SoldOutEarly: sold_out was answered before the stock could have run out.
	SoldOutEarly = "sold_out_early"
)

// Check judges a run. Its time is linear in the calls, rows and samples, except for one sort by
// time. It does not modify or retain its arguments.
func Check(calls []Call, final *Final) Verdict {
	j := newJudge(voided(calls, final.Discarded), final)
	j.discarded()
	j.answers()
	j.rows()
	j.keys()
	j.orders()
	j.later()
	j.shares()
	j.stock()
	j.ledgers()
	j.fences()
	j.soldOut()
	return j.verdict()
}

// voided returns the calls with answers about discarded orders removed, which makes their
// outcome unknown, like that of calls without an answer.
func voided(calls []Call, discarded []string) []Call {
	if len(discarded) == 0 {
		return calls
	}
	gone := make(map[string]bool, len(discarded))
	for _, id := range discarded {
		gone[id] = true
	}
	out := slices.Clone(calls)
	for i := range out {
		if c := &out[i]; gone[c.Order] {
			c.Status, c.Code, c.Order, c.State, c.Replayed = 0, "", "", "", false
		}
	}
	return out
}

// discarded checks that no discarded order is a row.
func (j *judge) discarded() {
	gone := make(map[string]bool, len(j.final.Discarded))
	for _, id := range j.final.Discarded {
		gone[id] = true
	}
	for i := range j.final.Orders {
		if o := &j.final.Orders[i]; gone[o.ID] {
			j.find(Revived, 1, "%s: it was discarded", sayRow(o))
		}
	}
}

// purchaseKey identifies a purchase: promise P4 allows one order for each.
type purchaseKey struct{ user, item, key string }

// purchase is one purchase: all calls and rows with its key.
type purchase struct {
	purchaseKey
	calls int
	first *Call
	// acks are the distinct orders that were acknowledged, in the order of the history. There
	// is almost always one.
	acks []*orderRecord
	// ackEnd is when the first acknowledgement had arrived.
	ackEnd int64
	// rows are the rows with this key, rejected ones included.
	rows []*Order
	// asked are the distinct quantities of the calls that may have taken units: those that were
	// acknowledged or have an unknown outcome. takeStart is the start of the first of them.
	asked     []int64
	takeStart int64
}

// orderRecord is what clients have seen of one order.
type orderRecord struct {
	id     string
	first  *Call // the first that names it
	bought *Call // the first purchase that was answered with it
	row    *Order
	// Each seen is the first call in the history that saw the order in that state, and the time
	// from which every later call must see it.
	named, kept, committed, final, refunded seen // kept: in the database, refused or not
}

type seen struct {
	call *Call
	end  int64
}

func (s *seen) note(c *Call) {
	if s.call == nil {
		s.call, s.end = c, c.End
	}
	s.end = min(s.end, c.End)
}

// before reports whether the state was seen before c began.
func (s *seen) before(c *Call) bool { return s.call != nil && s.end < c.Start }

// judge holds the indexes that the rules share. It keeps slices in addition to the maps, so
// that one history always gives the same examples.
type judge struct {
	calls  []Call
	final  *Final
	found  map[string]*Finding
	order  []string // names of the findings, in the order of their discovery
	counts Counts

	purchases []*purchase
	byKey     map[purchaseKey]*purchase
	records   []*orderRecord
	byOrder   map[string]*orderRecord
	items     map[string]*Item
	dead      map[string]bool
	ended     map[ending]bool  // the final states that some call requested
	smallest  map[string]int64 // by item: the fewest units requested by one purchase
	largest   int64            // the most units requested by one purchase
	held      map[string]*share
	doubt     int64     // units that may be held of an unknown item
	restocks  []*change // nil until changes computes them
}

// ending is a final state of an order that its buyer or the shop requested.
type ending struct{ order, state string }

func newJudge(calls []Call, final *Final) *judge {
	j := &judge{
		calls: calls, final: final, found: make(map[string]*Finding),
		byKey: make(map[purchaseKey]*purchase, len(calls)), byOrder: make(map[string]*orderRecord, len(final.Orders)),
		items: make(map[string]*Item, len(final.Items)), dead: make(map[string]bool, len(final.Dead)), ended: make(map[ending]bool),
		smallest: make(map[string]int64, len(final.Items)),
	}
	for i := range final.Items {
		j.items[final.Items[i].ID] = &final.Items[i]
	}
	for _, id := range final.Dead {
		j.dead[id] = true
	}
	for i := range calls {
		j.add(&calls[i])
	}
	return j
}

// add puts a call into the indexes.
func (j *judge) add(c *Call) {
	j.counts.Calls++
	if !c.Known() {
		j.counts.Unknown++
	}
	switch c.Op {
	case Buy:
		j.addBuy(c)
	case Pay:
		j.ended[ending{c.Order, Paid}] = true
	case Cancel:
		j.ended[ending{c.Order, Cancelled}] = true
	case Refund:
		j.ended[ending{c.Order, Refunded}] = true
	}
	// The path of a refused call names an order too, but no answer has confirmed it.
	if c.Order != "" && c.Status >= 200 && c.Status < 300 {
		t := j.record(c)
		t.named.note(c)
		if rank(c.State) >= rankCommitted {
			t.kept.note(c)
		}
		if committed(c.State) {
			t.committed.note(c)
		}
		if rank(c.State) >= rankFinal {
			t.final.note(c)
		}
		if rank(c.State) == rankRefunded {
			t.refunded.note(c)
		}
	}
}

func (j *judge) addBuy(c *Call) {
	k := purchaseKey{c.User, c.Item, c.Key}
	w := j.byKey[k]
	if w == nil {
		w = &purchase{purchaseKey: k, first: c}
		j.byKey[k] = w
		j.purchases = append(j.purchases, w)
	}
	w.calls++
	if w.calls > 1 {
		j.counts.Replays++
	}
	if c.Code == "sold_out" {
		j.counts.SoldOut++
	}
	j.largest = max(j.largest, c.Quantity)
	if least, ok := j.smallest[c.Item]; !ok || c.Quantity < least {
		j.smallest[c.Item] = c.Quantity
	}
	if !c.Refused() {
		if len(w.asked) == 0 {
			w.takeStart = c.Start
		}
		w.takeStart = min(w.takeStart, c.Start)
		if !slices.Contains(w.asked, c.Quantity) {
			w.asked = append(w.asked, c.Quantity)
		}
	}
	if !c.Accepted() || c.Order == "" {
		return
	}
	t := j.record(c)
	if t.bought == nil {
		t.bought = c
		j.counts.Accepted++
	}
	if len(w.acks) == 0 {
		w.ackEnd = c.End
	}
	w.ackEnd = min(w.ackEnd, c.End)
	if !slices.Contains(w.acks, t) {
		w.acks = append(w.acks, t)
	}
}

// record returns the record of the order that a call names.
func (j *judge) record(c *Call) *orderRecord {
	t := j.byOrder[c.Order]
	if t == nil {
		t = &orderRecord{id: c.Order, first: c}
		j.byOrder[c.Order] = t
		j.records = append(j.records, t)
	}
	return t
}

// Ranks of the states: an order never returns to a lower rank.
const (
	rankNone = iota
	rankQueued
	rankCommitted
	rankFinal
	rankRefunded // the only state after a final one, which is Paid
)

// committed reports whether an order in that state is or was confirmed.
func committed(state string) bool {
	switch state {
	case Confirmed, Paid, Refunded, Cancelled, Expired:
		return true
	default:
		return false
	}
}

// rank returns how far an order in that state has come.
func rank(state string) int {
	switch state {
	case Queued:
		return rankQueued
	case Confirmed:
		return rankCommitted
	case Paid, Cancelled, Expired, Rejected:
		return rankFinal
	case Refunded:
		return rankRefunded
	default:
		return rankNone
	}
}

// maxExamples bounds the cases that a finding names.
const maxExamples = 3

// find counts n cases of a finding and records one example.
func (j *judge) find(name string, n int64, format string, args ...any) {
	f := j.found[name]
	if f == nil {
		f = &Finding{Name: name}
		j.found[name] = f
		j.order = append(j.order, name)
	}
	f.Count += n
	if len(f.Examples) < maxExamples {
		f.Examples = append(f.Examples, fmt.Sprintf(format, args...))
	}
}

func (j *judge) verdict() Verdict {
	v := Verdict{Passed: len(j.order) == 0, Findings: []Finding{}, Counts: j.counts}
	for _, name := range j.order {
		v.Findings = append(v.Findings, *j.found[name])
	}
	return v
}

// say describes a call so that a reader can find it in the history.
func say(c *Call) string {
	s := fmt.Sprintf("client %d %s item %s", c.Client, c.Op, c.Item)
	if c.User != "" {
		s += " user " + c.User
	}
	if c.Key != "" {
		s += " key " + c.Key
	}
	if c.Order != "" {
		s += " order " + c.Order
	}
	switch {
	case c.Status == 0:
		s += ": no answer"
	case c.Code != "":
		s += fmt.Sprintf(": %d %s", c.Status, c.Code)
	default:
		s += fmt.Sprintf(": %d %s", c.Status, c.State)
	}
	return s + fmt.Sprintf(" (%.3f s to %.3f s)", seconds(c.Start), seconds(c.End))
}

func seconds(ns int64) float64 { return math.Round(float64(ns)/1e6) / 1e3 }

// sayRow describes a row.
func sayRow(o *Order) string {
	s := fmt.Sprintf("order %s of %s, item %s, key %s, %d units, %s", o.ID, o.User, o.Item, o.Key, o.Quantity, o.Status)
	if o.Reason != "" {
		s += " (" + o.Reason + ")"
	}
	return s
}
