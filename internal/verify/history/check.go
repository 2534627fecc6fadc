package history

import (
	"fmt"
	"math"
	"slices"
)

// The names of the findings.
const (
	// LostConfirmed: a client saw the order committed, and it ends queued or
	// rejected, or is not there at the end; or saw it rejected, and it is not there.
	LostConfirmed = "lost_confirmed"
	// LostAccepted: an order was acknowledged by 202 and is neither a row nor a
	// dead letter.
	LostAccepted = "lost_accepted"
	// Vanished: an order that was acknowledged was later answered order_not_found.
	Vanished = "vanished"
	// Changed: a client saw a final state, and the row has another.
	Changed = "changed"
	// Backwards: a client saw a state after a later one had been seen.
	Backwards = "backwards"
	// Unasked: an order ends paid, cancelled or refunded, and no call asked for that.
	Unasked = "unasked"
	// Unexplained: an order is rejected and does not say why.
	Unexplained = "unexplained"
	// Invented: a row matches no purchase.
	Invented = "invented"
	// Contradicted: a row holds units, or held them, although each call with its
	// key was refused for good.
	Contradicted = "contradicted"
	// Forgotten: a purchase was refused although an earlier one with its key had
	// been acknowledged.
	Forgotten = "forgotten"
	// Duplicated: two rows have one key, or one id.
	Duplicated = "duplicated"
	// AnswersDiffer: one key was answered with two orders.
	AnswersDiffer = "answers_differ"
	// Content: a row is for something else than what its order's acknowledgement
	// was for.
	Content = "content"
	// Malformed: an acknowledgement without an order, or with a state that it
	// cannot have; a row with a state that does not exist.
	Malformed = "malformed"
	// Oversold: the rows hold more units than the stock.
	Oversold = "oversold"
	// Unsold: the demand exceeded the stock, and the rows hold less.
	Unsold = "unsold"
	// OverLimit: a buyer's rows hold more units than the item's limit.
	OverLimit = "over_limit"
	// Restocked: the changes of stock in the database are not those that the
	// clients were told of.
	Restocked = "restocked"
	// LedgerWrong: when quiet, the ledger does not balance, or is not what the rows say.
	LedgerWrong = "ledger"
	// LedgerSampled: a look at the ledger during the run did not balance.
	LedgerSampled = "ledger_sampled"
	// RedisLeft: when quiet, Redis has other units left than the rows leave.
	RedisLeft = "redis_left"
	// FenceFell: a fencing token was lower than one seen before.
	FenceFell = "fence"
	// Revived: an order that was listed as discarded is a row.
	Revived = "revived"
	// SoldOutEarly: sold_out was answered before the stock could have run out.
	SoldOutEarly = "sold_out_early"
)

// Check judges a run. Its time is linear in the calls, rows and samples, but
// for one sort of them by time. It reads what it is given and keeps nothing.
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

// voided are the calls without what they say of discarded orders: their outcome is
// as unknown as that of calls without an answer.
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

// discarded holds that no discarded order is a row.
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

// wishKey is what P4 promises one order for.
type wishKey struct{ user, item, key string }

// wish is one purchase: all calls and rows with its key.
type wish struct {
	wishKey
	calls int
	first *Call
	// acks are the distinct orders that were acknowledged, in the order of the
	// history; nearly always one.
	acks []*told
	// ackEnd is when the first acknowledgement had arrived.
	ackEnd int64
	// rows are those of this key, refused ones included.
	rows []*Order
	// asked are the distinct quantities of the calls that may have taken units,
	// which were acknowledged or have an unknown outcome; takeStart is the start of
	// the first of them.
	asked     []int64
	takeStart int64
}

// told is what the clients were told of one order.
type told struct {
	id     string
	first  *Call // the first to name it
	bought *Call // the first purchase that was answered with it
	row    *Order
	// A seen is the first call of the history that saw the order so far, and
	// the time from which every later call must see it so.
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

// before reports whether it was seen so before c began.
func (s *seen) before(c *Call) bool { return s.call != nil && s.end < c.Start }

// judge holds the indexes that the rules share. Slices stand beside the maps,
// so that the examples are the same for the same history.
type judge struct {
	calls  []Call
	final  *Final
	found  map[string]*Finding
	order  []string // names of the findings, as they were found
	counts Counts

	wishes   []*wish
	byKey    map[wishKey]*wish
	told     []*told
	byOrder  map[string]*told
	items    map[string]*Item
	dead     map[string]bool
	ended    map[ending]bool  // the ends that some call asked for
	smallest map[string]int64 // by item: the fewest units one purchase asked for
	largest  int64            // the most units one purchase asked for
	held     map[string]*share
	doubt    int64     // units that may be held, and nobody knows of which item
	restocks []*change // nil until they were looked for
}

// ending is an end that an order may have, by its buyer's or the shop's will.
type ending struct{ order, state string }

func newJudge(calls []Call, final *Final) *judge {
	j := &judge{
		calls: calls, final: final, found: make(map[string]*Finding),
		byKey: make(map[wishKey]*wish, len(calls)), byOrder: make(map[string]*told, len(final.Orders)),
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
	// The path of a refused call names an order too, of which nobody has told.
	if c.Order != "" && c.Status >= 200 && c.Status < 300 {
		t := j.tell(c)
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
	k := wishKey{c.User, c.Item, c.Key}
	w := j.byKey[k]
	if w == nil {
		w = &wish{wishKey: k, first: c}
		j.byKey[k] = w
		j.wishes = append(j.wishes, w)
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
	t := j.tell(c)
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

// tell is what was told of the order that a call names.
func (j *judge) tell(c *Call) *told {
	t := j.byOrder[c.Order]
	if t == nil {
		t = &told{id: c.Order, first: c}
		j.byOrder[c.Order] = t
		j.told = append(j.told, t)
	}
	return t
}

// Ranks of the states: an order never goes back.
const (
	rankNone = iota
	rankQueued
	rankCommitted
	rankFinal
	rankRefunded // the one state behind a final one, which is Paid
)

// committed reports whether an order of that state is, or was, confirmed.
func committed(state string) bool {
	switch state {
	case Confirmed, Paid, Refunded, Cancelled, Expired:
		return true
	default:
		return false
	}
}

// rank tells how far in its life an order of that state is.
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

// find adds n cases to a finding, and one example.
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

// say names a call for a person who looks it up in the history.
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

// sayRow names a row.
func sayRow(o *Order) string {
	s := fmt.Sprintf("order %s of %s, item %s, key %s, %d units, %s", o.ID, o.User, o.Item, o.Key, o.Quantity, o.Status)
	if o.Reason != "" {
		s += " (" + o.Reason + ")"
	}
	return s
}
