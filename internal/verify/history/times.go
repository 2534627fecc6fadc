package history

import (
	"cmp"
	"math"
	"slices"
)

// fences holds that no fencing token is lower than one that was seen before it.
// Samples of one instant have no order.
func (j *judge) fences() {
	samples := slices.Clone(j.final.Fences)
	slices.SortStableFunc(samples, func(a, b FenceSample) int { return cmp.Compare(a.At, b.At) })
	// The sale's token of the end comes after all samples.
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
	// What was highest before the present instant, and what is within it.
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

// The kinds of an event, in the order in which those of one instant count: what
// takes units comes first, and what brings some last.
const (
	eventTakes = iota
	eventSoldOut
	eventBrings
)

// event is what moves the units that were left for sure, or asks for them.
type event struct {
	at    int64
	kind  int
	item  string
	units int64
	call  *Call // of eventSoldOut
}

// soldOut holds that nobody heard sold_out before the stock could have run out:
// that up to the answer's end there was an instant at which fewer units than
// asked for could have been left. To be sure, units count as taken from the start
// of the first call that can have taken them, for ever, whether they came back or
// not, and as restocked only once that was answered.
//
// So it does not see a sold_out that comes after the stock could once have run
// out: neither of units that came back, nor of restocked ones. The service may
// answer so for a moment, from memory. Nor does it see one that calls of unknown
// outcome excuse.
func (j *judge) soldOut() {
	events := j.events()
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind))
	})
	// What was left for sure, and the least of that so far.
	type level struct{ now, least int64 }
	levels := make(map[string]*level, len(j.items))
	for id, item := range j.items {
		levels[id] = &level{item.Initial, item.Initial}
	}
	for i := range events {
		e := &events[i]
		l := levels[e.item]
		switch {
		case l == nil: // no item of this run
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

// takenByKeys adds what the purchases can have taken, each once.
func (j *judge) takenByKeys(events []event) []event {
	for _, w := range j.wishes {
		start, units := w.takeStart, int64(0)
		if len(w.asked) > 0 {
			units = slices.Max(w.asked)
		}
		for _, o := range w.rows {
			// A call that was refused may have taken them until the database
			// refused its order.
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

// takenByCalls adds what the purchases can have taken where Redis may have
// forgotten keys: then each repeat can have taken units too, until the database
// refused it.
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

// refusedLater reports whether the database may have refused what a call took.
func (j *judge) refusedLater(c *Call) bool {
	w := j.byKey[wishKey{c.User, c.Item, c.Key}]
	return slices.ContainsFunc(w.rows, func(o *Order) bool { return o.Status == Rejected })
}
