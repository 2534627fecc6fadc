package figures

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// freshFor is how long the latest rates of a process stay valid. It reports once per
	// second.
	freshFor = 2500 * time.Millisecond
	// forgetAfter is how long the counters of a process that has fallen silent are kept: if it
	// reports again, its counts in between are added to the totals.
	forgetAfter = 5 * time.Minute
	// rankedItems bounds the items that are ranked.
	rankedItems = 500
	// fade is the part of an item's rank that remains after a second without purchases, so that
	// the list of the busiest items does not change between two bursts.
	fade = 0.92
	// faded is the rank at which an item leaves the list.
	faded = 0.01
)

// counts are numbers of events in some time.
type counts struct {
	accepted, committed, handovers, blocked int64
	refused                                 map[string]int64
	answers                                 [answerKinds]buckets
}

// since returns what a process has counted since an earlier report; since its start if before is
// nil.
func (r *report) since(before *report) (c counts) {
	if before == nil {
		before = &report{}
	}
	c.accepted, c.committed = r.Accepted-before.Accepted, r.Committed-before.Committed
	c.handovers, c.blocked = r.Handovers-before.Handovers, r.Blocked-before.Blocked
	c.refused = make(map[string]int64, len(r.Refused))
	for code, n := range r.Refused {
		if n -= before.Refused[code]; n > 0 {
			c.refused[code] = n
		}
	}
	for kind, status := range statusOf {
		now, then := bucketsOf(r.Answers[status]), bucketsOf(before.Answers[status])
		c.answers[kind] = now.since(&then)
	}
	return c
}

// add adds the counts of the same time in another process.
func (c *counts) add(other *counts) {
	c.accepted += other.accepted
	c.committed += other.committed
	c.handovers += other.handovers
	c.blocked += other.blocked
	if c.refused == nil {
		c.refused = make(map[string]int64, len(other.refused))
	}
	for code, n := range other.refused {
		c.refused[code] += n
	}
	for kind := range c.answers {
		c.answers[kind].add(&other.answers[kind])
	}
}

func total(byCode map[string]int64) (n int64) {
	for _, k := range byCode {
		n += k
	}
	return n
}

// peer is a process as far as this one knows it.
type peer struct {
	id      string
	started time.Time // by this host's clock
	last    *report
	stamp   time.Time // of the last report, by its sender's or Redis's clock; only compared
	at      time.Time // of the last report, by this host's clock
	span    time.Duration
	change  *counts // during span; nil: not known yet
	// present says that its report exists. It ends with the process, or with the report's life.
	present bool
}

// seconds is the time to which the rates of the peer refer.
func (p *peer) seconds() float64 { return p.span.Seconds() }

// fresh reports whether the rates of the peer are known and current.
func (p *peer) fresh(now time.Time) bool {
	return p.present && p.change != nil && now.Sub(p.at) <= freshFor
}

// deployment adds up the reports of all processes. Its times are those of this host's clock.
type deployment struct {
	began time.Time
	peers map[string]*peer
	total counts             // since began, of all processes, ended ones included
	ranks map[string]float64 // orders per second of items, fading
	rates map[string]float64 // orders per second of items at present
	cut   bool               // there are items with orders that are not in rates
}

func newDeployment(now time.Time) *deployment {
	return &deployment{began: now, peers: make(map[string]*peer), ranks: make(map[string]float64)}
}

// absent marks all processes as ended, before the reports that exist are observed.
func (d *deployment) absent() {
	for _, p := range d.peers {
		p.present = false
	}
}

// observe takes a report of a process that is age old.
func (d *deployment) observe(id string, r *report, stamp, now time.Time, age time.Duration) {
	p := d.peers[id]
	if p == nil {
		p = &peer{id: id}
		d.peers[id] = p
	}
	p.present = true
	if p.last != nil && stamp.Equal(p.stamp) {
		return // known; an earlier stamp is a new report after Redis's clock was set back
	}
	before := p.last
	p.last, p.stamp, p.at = r, stamp, now.Add(-max(0, age))
	uptime := time.Duration(r.Uptime) * time.Millisecond
	if before == nil {
		p.started = p.at.Add(-uptime)
	}
	switch {
	case before != nil && r.Uptime > before.Uptime:
		c := r.since(before)
		p.change, p.span = &c, uptime-time.Duration(before.Uptime)*time.Millisecond
		d.total.add(&c)
	case before == nil && uptime < p.at.Sub(d.began):
		// It has started since the totals began, so all that it counted belongs to them.
		c := r.since(nil)
		p.change, p.span = &c, uptime
		d.total.add(&c)
	default:
		p.change = nil
	}
}

// live returns the processes that have not ended, by kind and host.
func (d *deployment) live(now time.Time) []*peer {
	var all []*peer
	for id, p := range d.peers {
		switch silent := now.Sub(p.at); {
		case silent > forgetAfter:
			delete(d.peers, id)
		case p.present && silent <= goneAfter:
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *peer) int {
		return cmp.Or(cmp.Compare(a.last.Kind, b.last.Kind), cmp.Compare(a.last.Host, b.last.Host), cmp.Compare(a.id, b.id))
	})
	return all
}

// rank updates the rates and the ranks of the items. It is called once per interval.
func (d *deployment) rank(now time.Time) {
	d.rates, d.cut = make(map[string]float64), false
	for _, p := range d.peers {
		if !p.fresh(now) {
			continue
		}
		d.cut = d.cut || p.last.ItemsCut
		for id, n := range p.last.Items {
			d.rates[id] += float64(n) / p.seconds()
		}
	}
	for id, rank := range d.ranks {
		d.ranks[id] = rank * fade
		if d.ranks[id] < faded {
			delete(d.ranks, id)
		}
	}
	for id, rate := range d.rates {
		d.ranks[id] = max(d.ranks[id], rate)
	}
	if len(d.ranks) > rankedItems {
		for _, id := range d.busiest(len(d.ranks))[rankedItems:] {
			delete(d.ranks, id)
		}
	}
}

// busiest returns up to n items, the busiest first.
func (d *deployment) busiest(n int) []string {
	ids := slices.SortedFunc(maps.Keys(d.ranks), func(a, b string) int {
		return cmp.Or(cmp.Compare(d.ranks[b], d.ranks[a]), cmp.Compare(a, b))
	})
	return ids[:min(n, len(ids))]
}

// rateOf returns the orders per second of an item; nil if no report has it and some were cut.
func (d *deployment) rateOf(id string) *float64 {
	rate, ok := d.rates[id]
	if !ok && d.cut {
		return nil
	}
	return rounded(rate)
}
