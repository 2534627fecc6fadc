package history

import (
	"cmp"
	"math"
	"slices"
)

// fences checks that no fencing token is lower than an earlier one. Samples of the same instant
// have no order.
func (j *judge) fences() {
	samples := slices.Clone(j.final.Fences)
	slices.SortStableFunc(samples, func(a, b FenceSample) int { return cmp.Compare(a.At, b.At) })
	// The final token of the sale comes after all samples.
	for i := range j.final.Items {
		if item := &j.final.Items[i]; item.Loaded && item.Fence != 0 {
			last := int64(0)
			if n := len(samples); n > 0 {
				last = samples[n-1].At
			}
			samples = append(samples, FenceSample{At: last + 1, Item: item.ID, Source: SourceSale, Fence: item.Fence})
		}
	}
	type place struct{ item, source string }
	// before is the highest token before the current instant, now the highest within it.
	type highest struct{ before, now *FenceSample }
	high := make(map[place]*highest)
	for i := range samples {
		s := &samples[i]
		h := high[place{s.Item, s.Source}]
		if h == nil {
			h = &highest{before: &FenceSample{Fence: math.MinInt64}, now: s}
			high[place{s.Item, s.Source}] = h
		}
		switch {
		case s.At > h.now.At:
			if h.now.Fence > h.before.Fence {
				h.before = h.now
			}
			h.now = s
		case s.Fence > h.now.Fence:
			h.now = s
		}
		if s.Fence < h.before.Fence {
			j.find(FenceFell, 1, "item %s, token of the %s: %d at %.3f s, after %d at %.3f s",
				s.Item, s.Source, s.Fence, seconds(s.At), h.before.Fence, seconds(h.before.At))
		}
	}
}

// The kinds of events. At one instant, those that take units come first, and those that add
// units last.
const (
	eventTakes = iota
	eventSoldOut
	eventBrings
)

// event changes the units that were certainly left, or asks for them.
type event struct {
	at    int64
	kind  int
	item  string
	units int64
	call  *Call // of eventSoldOut
}

// soldOut checks that no client got sold_out before the stock could have run out: before the
// end of the answer there must be an instant at which fewer units than requested could have
// been left. To be certain, units count as taken from the start of the first call that can have
// taken them, and permanently, even if they returned later; and as restocked only once the
// restock was answered.
//
// It cannot detect a wrong sold_out after the stock could have run out once, neither for
// returned nor for restocked units: the service may answer so from memory for a moment. It also
// cannot detect one that calls of unknown outcome may explain.
func (j *judge) soldOut() {
	events := j.events()
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind))
	})
	// now is the number of units that were certainly left, least the lowest value so far.
	type level struct{ now, least int64 }
	levels := make(map[string]*level, len(j.items))
	for id, item := range j.items {
		levels[id] = &level{item.Initial, item.Initial}
	}
	for i := range events {
		e := &events[i]
		l := levels[e.item]
		switch {
		case l == nil: // not an item of this run
		case e.kind == eventSoldOut:
			if l.least >= e.units {
				j.find(SoldOutEarly, 1, "%s: at least %d units were left all the time until then", say(e.call), l.least)
			}
		case e.kind == eventTakes:
			l.now -= e.units
			l.least = min(l.least, l.now)
		default:
			l.now += e.units
		}
	}
}

func (j *judge) events() []event {
	var events []event
	for i := range j.calls {
		if c := &j.calls[i]; c.Op == Buy && c.Code == "sold_out" {
			events = append(events, event{c.End, eventSoldOut, c.Item, c.Quantity, c})
		}
	}
	if j.final.AcceptedMayBeLost {
		events = j.takenByCalls(events)
	} else {
		events = j.takenByKeys(events)
	}
	for _, r := range j.changes() {
		switch {
		case r.call.Quantity < 0:
			events = append(events, event{r.start, eventTakes, r.call.Item, -r.call.Quantity, nil})
		case r.done:
			events = append(events, event{r.doneEnd, eventBrings, r.call.Item, r.call.Quantity, nil})
		}
	}
	return events
}

// takenByKeys adds the units that purchases can have taken, once per key.
func (j *judge) takenByKeys(events []event) []event {
	for _, w := range j.purchases {
		start, units := w.takeStart, int64(0)
		if len(w.asked) > 0 {
			units = slices.Max(w.asked)
		}
		for _, o := range w.rows {
			// A refused call may have taken the units until the database rejected its order.
			if len(w.asked) == 0 {
				start = w.first.Start
			}
			units = max(units, o.Quantity)
		}
		if units > 0 {
			events = append(events, event{start, eventTakes, w.item, units, nil})
		}
	}
	return events
}

// takenByCalls adds the units that purchases can have taken where Redis may have lost keys:
// each repeat can then have taken units too, until the database rejected it.
func (j *judge) takenByCalls(events []event) []event {
	for i := range j.calls {
		c := &j.calls[i]
		if c.Op != Buy {
			continue
		}
		if !c.Refused() || j.refusedLater(c) {
			events = append(events, event{c.Start, eventTakes, c.Item, c.Quantity, nil})
		}
	}
	return events
}

// refusedLater reports whether the database may have rejected the order of a call.
func (j *judge) refusedLater(c *Call) bool {
	w := j.byKey[purchaseKey{c.User, c.Item, c.Key}]
	return slices.ContainsFunc(w.rows, func(o *Order) bool { return o.Status == Rejected })
}
