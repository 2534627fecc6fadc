package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"flashsale/internal/plural"
)

// observations are the crowd's purchases and the answers to them.
type observations struct {
	stock    int64
	limit    int64 // units a buyer may have
	quantity int64 // units of each purchase
	wishes   []wish
	answers  []answerCount // of all attempts
}

// wish is one purchase and all answers to the requests for it.
type wish struct {
	buyer   string
	key     string
	orders  []string // distinct ids of acknowledged orders
	refused string   // code of a definite refusal, or empty
	fault   string   // what was wrong with an acknowledgement, or empty
	// unanswered is the last answer to a request whose outcome stayed unknown, or empty.
	unanswered string
}

// row is one order as the service stores it.
type row struct {
	ID       string `json:"id"`
	UserID   string `json:"user_id"`
	Quantity int64  `json:"quantity"`
	Price    int64  `json:"unit_price_minor"`
	Status   string `json:"status"`
	// Key is empty if the rows were read through the API, which does not return it.
	Key string `json:"-"`
}

func (r *row) rejected() bool { return r.Status == "rejected" }

// ledger is the item's conservation equation as the service states it.
type ledger struct {
	Initial   int64 `json:"initial"`
	Restocked int64 `json:"restocked"`
	Left      int64 `json:"left"`
	Held      int64 `json:"held"`
	Sold      int64 `json:"sold"`
	Balanced  bool  `json:"balanced"`
}

// agrees reports whether the ledger balances and agrees with the rows.
func (l *ledger) agrees(stock, persisted int64) bool {
	return l.Balanced && l.Left >= 0 && l.Held >= 0 && l.Sold >= 0 && l.Initial+l.Restocked == l.Left+l.Held+l.Sold &&
		l.Initial+l.Restocked == stock && l.Held+l.Sold == persisted
}

// failure is one broken promise.
type failure struct {
	Name     string   `json:"name"`
	Count    int64    `json:"count"`
	Examples []string `json:"examples,omitempty"`
}

// verdict is the judgement of a run. The counts of the line are:
type verdict struct {
	Accepted   int64 `json:"accepted"`   // orders acknowledged by 201 or 202, distinct ids
	Persisted  int64 `json:"persisted"`  // units of the rows that are not rejected
	Oversold   int64 `json:"oversold"`   // units persisted beyond the stock
	Lost       int64 `json:"lost"`       // acknowledged orders without a row, or whose row is rejected
	Duplicated int64 `json:"duplicated"` // keys with more than one row, or answered with more than one id
	OverLimit  int64 `json:"over_limit"` // buyers with more units than the limit
	Unsold     int64 `json:"unsold"`     // units left that buyers wanted
	// Failures are the promises broken; none: passed.
	Failures []failure `json:"failures"`
}

func (v *verdict) passed() bool { return len(v.Failures) == 0 }

// line is the verdict in one line: PASS or FAIL, the counts of every run, and the other
// broken promises.
func (v *verdict) line() string {
	word := "PASS"
	if !v.passed() {
		word = "FAIL"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s accepted=%d persisted=%d oversold=%d lost=%d duplicated=%d over_limit=%d unsold=%d",
		word, v.Accepted, v.Persisted, v.Oversold, v.Lost, v.Duplicated, v.OverLimit, v.Unsold)
	for _, f := range v.Failures {
		switch f.Name {
		case "oversold", "lost", "duplicated", "over_limit", "unsold":
		case "ledger":
			b.WriteString(" ledger=unbalanced")
		default:
			fmt.Fprintf(&b, " %s=%d", f.Name, f.Count)
		}
	}
	return b.String()
}

// judge compares the answers with the stored rows. A nil ledger could not be read, which
// is a failure too. The verdict depends on nothing else.
func judge(o *observations, rows []row, l *ledger) verdict {
	j := newJudge(o, rows)
	v := verdict{Failures: []failure{}}
	var oversold, unsold finding
	for i := range rows {
		if !rows[i].rejected() {
			v.Persisted += rows[i].Quantity
		}
	}
	if over := v.Persisted - o.stock; over > 0 {
		oversold.add(over, "sold: %s of %d", plural.Count(v.Persisted, "unit"), o.stock)
	}
	if short := j.sellable() - v.Persisted; short > 0 {
		unsold.add(short, "%s could have been sold, sold: %d", plural.Count(j.sellable(), "unit"), v.Persisted)
	}
	var lost finding
	v.Accepted, lost = j.lost()
	duplicated, limit := j.duplicated(), j.overLimit()
	for _, f := range []struct {
		name  string
		found finding
		count *int64
	}{
		{"oversold", oversold, &v.Oversold},
		{"lost", lost, &v.Lost},
		{"duplicated", duplicated, &v.Duplicated},
		{"over_limit", limit, &v.OverLimit},
		{"unsold", unsold, &v.Unsold},
		{"invented", j.invented(), nil},
		{"contradicted", j.contradicted(), nil},
		{"malformed", j.malformed(), nil},
		{"unexpected", j.unexpected(), nil},
		{"unanswered", j.unanswered(), nil},
		{"ledger", ledgerFinding(l, o.stock, v.Persisted), nil},
	} {
		if f.count != nil {
			*f.count = f.found.count
		}
		if f.found.count > 0 {
			v.Failures = append(v.Failures, failure{f.name, f.found.count, f.found.examples})
		}
	}
	return v
}

// finding counts the cases of one failure and keeps a few examples.
type finding struct {
	count    int64
	examples []string
}

const maxExamples = 3

func (f *finding) add(n int64, format string, args ...any) {
	f.count += n
	if len(f.examples) < maxExamples {
		f.examples = append(f.examples, fmt.Sprintf(format, args...))
	}
}

// judgement holds the indexes that the checks share.
type judgement struct {
	o       *observations
	rows    []row
	byID    map[string]*row
	byKey   map[string]*wish // keys are unique over the run
	byOrder map[string]*wish // by acknowledged order
	byBuyer map[string][]*wish
	owned   map[*wish][]*row
	strays  []*row // rows of no wish
}

func newJudge(o *observations, rows []row) *judgement {
	j := &judgement{
		o: o, rows: rows, byID: make(map[string]*row, len(rows)), byKey: make(map[string]*wish, len(o.wishes)),
		byOrder: make(map[string]*wish), byBuyer: make(map[string][]*wish), owned: make(map[*wish][]*row),
	}
	for i := range o.wishes {
		w := &o.wishes[i]
		j.byKey[w.key] = w
		j.byBuyer[w.buyer] = append(j.byBuyer[w.buyer], w)
		for _, id := range w.orders {
			j.byOrder[id] = w
		}
	}
	var orphans []*row
	for i := range rows {
		r := &rows[i]
		j.byID[r.ID] = r
		if w := j.owner(r); w != nil {
			j.owned[w] = append(j.owned[w], r)
		} else {
			orphans = append(orphans, r)
		}
	}
	for _, r := range orphans {
		j.adopt(r)
	}
	return j
}

// owner finds the wish of a row by its key or, if the rows have no keys, by the
// acknowledgement of its id.
func (j *judgement) owner(r *row) *wish {
	w := j.byKey[r.Key]
	if r.Key == "" {
		w = j.byOrder[r.ID]
	}
	if w == nil || w.buyer != r.UserID {
		return nil
	}
	return w
}

// adopt assigns a row without a key and without an acknowledgement to a wish of its buyer:
// one that has no row yet, or else the first, which then has two.
func (j *judgement) adopt(r *row) {
	wishes := j.byBuyer[r.UserID]
	if r.Key != "" || len(wishes) == 0 {
		j.strays = append(j.strays, r)
		return
	}
	w := wishes[0]
	if free := slices.IndexFunc(wishes, func(w *wish) bool { return len(j.owned[w]) == 0 && len(w.orders) == 0 }); free >= 0 {
		w = wishes[free]
	}
	j.owned[w] = append(j.owned[w], r)
}

// sellable is the number of units that the crowd's wishes, the limit and the
// stock allow to be sold.
func (j *judgement) sellable() int64 {
	o := j.o
	var demand int64
	for _, wishes := range j.byBuyer {
		demand += min(int64(len(wishes)), o.limit/o.quantity) * o.quantity
	}
	return min(o.stock/o.quantity*o.quantity, demand)
}

func (j *judgement) lost() (accepted int64, f finding) {
	seen := make(map[string]bool, len(j.byOrder))
	for i := range j.o.wishes {
		w := &j.o.wishes[i]
		for _, id := range w.orders {
			if seen[id] {
				continue
			}
			seen[id] = true
			accepted++
			switch r := j.byID[id]; {
			case r == nil:
				f.add(1, "order %s was acknowledged to %s and is not there", id, w.buyer)
			case r.rejected():
				f.add(1, "order %s was acknowledged to %s and then rejected", id, w.buyer)
			}
		}
	}
	return accepted, f
}

func (j *judgement) duplicated() (f finding) {
	for i := range j.o.wishes {
		w := &j.o.wishes[i]
		ids := slices.Clone(w.orders)
		for _, r := range j.owned[w] {
			if !slices.Contains(ids, r.ID) {
				ids = append(ids, r.ID)
			}
		}
		// An acknowledged id and a different stored one are two orders as well.
		if len(ids) > 1 || len(j.owned[w]) > 1 {
			f.add(1, "key %s has orders %s", w.key, strings.Join(ids, ", "))
		}
	}
	return f
}

func (j *judgement) overLimit() (f finding) {
	units := make(map[string]int64)
	for i := range j.rows {
		if r := &j.rows[i]; !r.rejected() {
			units[r.UserID] += r.Quantity
		}
	}
	for _, buyer := range sortedKeys(units) {
		if units[buyer] > j.o.limit {
			f.add(1, "buyer %s has %s, the limit is %d", buyer, plural.Count(units[buyer], "unit"), j.o.limit)
		}
	}
	return f
}

// invented finds rows that belong to no purchase, or have another quantity or price.
func (j *judgement) invented() (f finding) {
	for _, r := range j.strays {
		f.add(1, "order %s of %s matches no purchase", r.ID, r.UserID)
	}
	for i := range j.o.wishes {
		for _, r := range j.owned[&j.o.wishes[i]] {
			if r.Quantity != j.o.quantity {
				f.add(1, "order %s of %s is for %s, asked were %d", r.ID, r.UserID, plural.Count(r.Quantity, "unit"), j.o.quantity)
			} else if r.Price != priceMinor {
				f.add(1, "order %s of %s has the price %d, the item's is %d", r.ID, r.UserID, r.Price, priceMinor)
			}
		}
	}
	return f
}

// contradicted finds keys that were definitely refused and yet have an order.
func (j *judgement) contradicted() (f finding) {
	for i := range j.o.wishes {
		w := &j.o.wishes[i]
		if w.refused == "" {
			continue
		}
		if len(w.orders) > 0 {
			f.add(1, "key %s was answered %s and also with order %s", w.key, w.refused, w.orders[0])
			continue
		}
		for _, r := range j.owned[w] {
			if !r.rejected() {
				f.add(1, "key %s was answered %s and has order %s", w.key, w.refused, r.ID)
				break
			}
		}
	}
	return f
}

// malformed finds acknowledgements that do not match the purchase.
func (j *judgement) malformed() (f finding) {
	for i := range j.o.wishes {
		w := &j.o.wishes[i]
		if w.fault != "" {
			f.add(1, "key %s: %s", w.key, w.fault)
		}
		for _, id := range w.orders {
			if other := j.byOrder[id]; other != w {
				f.add(1, "order %s was acknowledged for key %s and for key %s", id, w.key, other.key)
			}
		}
	}
	return f
}

// unexpected finds answers that no buyer of an open sale should get.
func (j *judgement) unexpected() (f finding) {
	for _, a := range j.o.answers {
		if !a.expected() {
			f.add(a.Count, "answered %s: %s", a.Name(), plural.Count(a.Count, "request"))
		}
	}
	return f
}

// unanswered finds purchases whose buyers gave up without an order or a refusal. A buyer whose last answer was 429 or
// 503 has one.
func (j *judgement) unanswered() (f finding) {
	for i := range j.o.wishes {
		if w := &j.o.wishes[i]; w.unanswered != "" {
			f.add(1, "buyer %s gave up key %s; the last attempt: %s", w.buyer, w.key, w.unanswered)
		}
	}
	return f
}

func ledgerFinding(l *ledger, stock, persisted int64) (f finding) {
	switch {
	case l == nil:
		f.add(1, "the ledger could not be read")
	case !l.agrees(stock, persisted):
		f.add(1, "initial %d + restocked %d, left %d + held %d + sold %d, balanced %v; on sale were %d units and the orders hold %d",
			l.Initial, l.Restocked, l.Left, l.Held, l.Sold, l.Balanced, stock, persisted)
	}
	return f
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
