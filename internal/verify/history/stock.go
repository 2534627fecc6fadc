package history

import (
	"fmt"
	"maps"
)

// share is the units of one item that rows and dead letters hold.
type share struct {
	rows int64 // units of the rows that hold units
	dead int64 // units of the dead letters that have no row
}

// stock checks that the units sold match the stock.
//
// It checks the final state only, and cannot detect that orders exceeded a limit if they were
// cancelled later.
func (j *judge) stock() {
	restocked := j.restocked()
	for i := range j.final.Items {
		item := &j.final.Items[i]
		h, total := j.held[item.ID], item.Initial+item.Restocked
		if h.rows > total {
			j.find(Oversold, h.rows-total, "item %s: %d units are held of %d", item.ID, h.rows, total)
		}
		free := total - h.rows - h.dead
		if item.Exhausted && free-j.doubt >= max(j.smallest[item.ID], 1) {
			j.find(Unsold, free, "item %s: %d units are held of %d, and more were wanted", item.ID, h.rows, total)
		}
		if r := restocked[item.ID]; item.Restocked < r.least || item.Restocked > r.most {
			j.find(Restocked, 1, "item %s was restocked by %d, and its clients got answers for %d to %d", item.ID, item.Restocked, r.least, r.most)
		}
		if item.Loaded && (item.Left > free || item.Left < free-j.doubt) {
			j.find(RedisLeft, 1, "item %s: Redis has %d left, and the orders leave %d of %d", item.ID, item.Left, free, total)
		}
	}
}

// shares sums the units held and finds buyers above their limit.
func (j *judge) shares() {
	j.held = make(map[string]*share, len(j.items))
	for id := range j.items {
		j.held[id] = new(share)
	}
	type holder struct{ item, user string }
	units := make(map[holder]int64, len(j.final.Orders))
	for i := range j.final.Orders {
		o := &j.final.Orders[i]
		item := j.items[o.Item]
		if item == nil || !o.Holds() {
			continue
		}
		j.held[o.Item].rows += o.Quantity
		h := holder{o.Item, o.User}
		before := units[h]
		units[h] = before + o.Quantity
		if before <= item.Limit && units[h] > item.Limit {
			j.find(OverLimit, 1, "%s: with it its buyer has %d, and the limit is %d", sayRow(o), units[h], item.Limit)
		}
	}
	j.countDead()
}

// countDead counts the units of dead letters that have no row. If no answer named a dead letter, its
// quantity and item are unknown: it may hold as many units as the largest purchase, of any
// item.
func (j *judge) countDead() {
	unknown := maps.Clone(j.dead)
	for i := range j.final.Orders {
		delete(unknown, j.final.Orders[i].ID)
	}
	for _, t := range j.records {
		if t.row != nil || !j.dead[t.id] || t.bought == nil {
			continue
		}
		delete(unknown, t.id)
		if s := j.held[t.bought.Item]; s != nil {
			s.dead += t.bought.Quantity
		}
	}
	j.doubt = int64(len(unknown)) * j.largest
}

// span is the range of an item's total stock changes, in units.
type span struct{ least, most int64 }

// change is one restock: all calls with its key.
type change struct {
	call    *Call // the first that may have made it
	start   int64 // of the first that may have made it
	done    bool  // it was definitely made
	doneEnd int64 // when that was first known
}

// changes returns the restocks that were made or may have been made, each once.
func (j *judge) changes() []*change {
	if j.restocks != nil {
		return j.restocks
	}
	type id struct{ item, key string }
	known := make(map[id]*change)
	j.restocks = []*change{}
	for i := range j.calls {
		c := &j.calls[i]
		if c.Op != Restock || c.Refused() {
			continue
		}
		r := known[id{c.Item, c.Key}]
		if r == nil {
			r = &change{call: c, start: c.Start}
			known[id{c.Item, c.Key}] = r
			j.restocks = append(j.restocks, r)
		}
		r.start = min(r.start, c.Start)
		if c.Status >= 200 && c.Status < 300 && (!r.done || c.End < r.doneEnd) {
			r.done, r.doneEnd = true, c.End
		}
	}
	return j.restocks
}

// restocked returns what the clients know of each item's stock changes.
func (j *judge) restocked() map[string]span {
	spans := make(map[string]span, len(j.items))
	for _, r := range j.changes() {
		s, n := spans[r.call.Item], r.call.Quantity
		if r.done || n < 0 {
			s.least += n
		}
		if r.done || n > 0 {
			s.most += n
		}
		spans[r.call.Item] = s
	}
	return spans
}

// ledgers checks that the conservation equation holds in every sample, and that the final
// ledger matches the rows.
func (j *judge) ledgers() {
	for i := range j.final.Ledgers {
		s := &j.final.Ledgers[i]
		if wrong := s.Ledger.wrong(j.items[s.Item]); wrong != "" {
			j.find(LedgerSampled, 1, "item %s at %.3f s: %s: %s", s.Item, seconds(s.At), s.Ledger.say(), wrong)
		}
	}
	for i := range j.final.Items {
		item := &j.final.Items[i]
		l := item.Ledger
		if l == nil {
			j.find(LedgerWrong, 1, "item %s: the ledger could not be read", item.ID)
			continue
		}
		least := j.held[item.ID].rows + j.held[item.ID].dead
		wrong := l.wrong(item)
		switch taken := l.Held + l.Sold; {
		case wrong != "":
		case l.Restocked != item.Restocked:
			wrong = fmt.Sprintf("the database has %d restocked", item.Restocked)
		case taken < least || taken > least+j.doubt:
			wrong = fmt.Sprintf("the orders hold %d", least)
		}
		if wrong != "" {
			j.find(LedgerWrong, 1, "item %s: %s: %s", item.ID, l.say(), wrong)
		}
	}
}

// wrong returns what is wrong with a ledger in isolation. item may be nil.
func (l *Ledger) wrong(item *Item) string {
	switch {
	case item == nil:
		return "no such item"
	case !l.Balanced:
		return "it says that it does not balance"
	case l.Left < 0 || l.Held < 0 || l.Sold < 0:
		return "a part is negative"
	case l.Initial+l.Restocked != l.Left+l.Held+l.Sold:
		return "the parts are not the whole"
	case l.Initial != item.Initial:
		return fmt.Sprintf("the item began with %d", item.Initial)
	default:
		return ""
	}
}

func (l *Ledger) say() string {
	return fmt.Sprintf("initial %d + restocked %d, left %d + held %d + sold %d, balanced %v",
		l.Initial, l.Restocked, l.Left, l.Held, l.Sold, l.Balanced)
}
