package figures

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// after returns a moment of the test's clock.
func after(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

// counted is a report of a process that has run for some seconds.
func counted(uptime float64, accepted int64, change ...func(*report)) *report {
	r := &report{Kind: "api", Host: "h:1", Uptime: int64(uptime * 1000), Accepted: accepted, Refused: map[string]int64{}, Answers: map[string][]int64{}}
	for _, f := range change {
		f(r)
	}
	return r
}

// seen is the event that a deployment shows at a moment.
func (d *deployment) seen(t *testing.T, now time.Time) *event {
	t.Helper()
	d.rank(now)
	e := &event{Complete: true}
	e.describe(d, now, 0)
	if _, err := e.encode(); err != nil {
		t.Fatal(err)
	}
	return e
}

// text is a value for messages; null if it is not known.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func wantText(t *testing.T, what string, got any, want string) {
	t.Helper()
	if text(got) != want {
		t.Errorf("%s: %s, want %s", what, text(got), want)
	}
}

// Rates are sums of the processes' own rates, each over the time between its own two reports,
// and a process without a second report makes nothing zero.
func TestDeployment_Rates(t *testing.T) {
	t.Parallel()
	d := newDeployment(start)
	first := d.seen(t, start)
	wantText(t, "rate of nothing", first.Accepted, "null")
	d.observe("a", counted(100, 1000), start, start, 0)
	d.observe("b", counted(200, 500), start, start, 0)
	e := d.seen(t, start)
	wantText(t, "before the second report", e.Accepted, "null")
	if e.Complete || len(e.Processes) != 2 {
		t.Errorf("complete %v, %d processes", e.Complete, len(e.Processes))
	}
	d.observe("a", counted(101, 1300, func(r *report) { r.Refused["sold_out"] = 40; r.Handovers = 7 }), after(1), after(1), 0)
	e = d.seen(t, after(1))
	wantText(t, "with one process that is late", e.Complete, "false")
	d.observe("b", counted(202, 600), after(1), after(1), 0) // 100 in two seconds
	e = d.seen(t, after(1.5))
	wantText(t, "accepted", e.Accepted, "350")
	wantText(t, "refused", e.RefusedByCode, `{"sold_out":40}`)
	wantText(t, "handovers", e.Locks.Handovers, "7")
	wantText(t, "complete", e.Complete, "true")
	wantText(t, "total", e.Totals.Accepted, "400")
	wantText(t, "shares", []*float64{e.Processes[0].AcceptedShare, e.Processes[1].AcceptedShare}, "[0.857,0.143]")
	// The same report again changes nothing.
	d.observe("b", counted(202, 600), after(1), after(2), time.Second)
	wantText(t, "repeated", d.seen(t, after(2)).Totals.Accepted, "400")
	// Redis's clock was set back by an hour.
	d.observe("b", counted(203, 620), after(-3598), after(2), 0)
	wantText(t, "after the clock went back", d.seen(t, after(2)).Totals.Accepted, "420")
}

// A node that several processes cannot reach is one node.
func TestDeployment_BreakersOpen(t *testing.T) {
	t.Parallel()
	d := newDeployment(start)
	for i := range 2 {
		for id, open := range map[string]int64{"a": 1, "b": 2, "c": 0} {
			at := after(float64(i))
			d.observe(id, counted(float64(10+i), 0, func(r *report) { r.Open = open }), at, at, 0)
		}
	}
	wantText(t, "open", d.seen(t, after(1)).Breakers.Open, "2")
}

// A killed process is late, then gone; its counts stay in the totals. Its successor
// begins at zero, and no rate is negative.
func TestDeployment_KilledAndRestarted(t *testing.T) {
	t.Parallel()
	d := newDeployment(start)
	report := func(id string, uptime float64, n int64, at float64) {
		d.observe(id, counted(uptime, n), after(at), after(at), 0)
	}
	report("keeps", 50, 0, 0)
	report("dies", 100, 5000, 0)
	report("keeps", 51, 10, 1)
	report("dies", 101, 5100, 1)
	wantText(t, "both", d.seen(t, after(1)).Accepted, "110")
	report("keeps", 54, 40, 4)
	e := d.seen(t, after(4))
	wantText(t, "while it is late", e.Accepted, "10")
	wantText(t, "its own rate", e.Processes[0].Accepted, "null")
	wantText(t, "complete", e.Complete, "false")
	report("keeps", 58, 80, 8)
	e = d.seen(t, after(8))
	if len(e.Processes) != 1 || !e.Complete {
		t.Errorf("after its end: %s", text(e.Processes))
	}
	wantText(t, "total", e.Totals.Accepted, "180")
	report("follows", 2, 30, 8.5) // has started since, with orders before its first report
	report("keeps", 58.5, 80, 8.5)
	e = d.seen(t, after(8.5))
	wantText(t, "with the successor", e.Accepted, "15")
	wantText(t, "total", e.Totals.Accepted, "210")
	// A report that counts from zero under a known id.
	report("keeps", 1, 3, 9)
	for _, p := range d.seen(t, after(9)).Processes {
		if p.Accepted != nil && *p.Accepted < 0 {
			t.Errorf("negative rate: %s", text(p))
		}
	}
}

// A process whose report is gone has left.
func TestDeployment_Absent(t *testing.T) {
	t.Parallel()
	d := newDeployment(start)
	for i := range 2 {
		at := after(float64(i))
		d.absent()
		d.observe("a", counted(10+float64(i), int64(i)), at, at, 0)
		d.observe("b", counted(10+float64(i), int64(i)), at, at, 0)
	}
	wantText(t, "two", d.seen(t, after(1)).Accepted, "2")
	d.absent()
	d.observe("a", counted(12, 2), after(2), after(2), 0)
	e := d.seen(t, after(2))
	wantText(t, "one", e.Accepted, "1")
	if len(e.Processes) != 1 || !e.Complete {
		t.Errorf("%s", text(e))
	}
	// It comes back, after a long stop, with what it did meanwhile.
	d.observe("a", counted(40, 30), after(30), after(30), 0)
	d.observe("b", counted(40, 101), after(30), after(30), 0)
	wantText(t, "total", d.seen(t, after(30)).Totals.Accepted, "131")
}

// The busiest items are listed by rank, which fades slowly. If a report was cut, an item that is
// in none is unknown and not idle.
func TestDeployment_Items(t *testing.T) {
	t.Parallel()
	d := newDeployment(start)
	at := start
	sold := func(items map[string]int64, cut bool) *event {
		at = at.Add(time.Second)
		d.observe("a", counted(at.Sub(start).Seconds()+10, 0, func(r *report) { r.Items, r.ItemsCut = items, cut }), at, at, 0)
		return d.seen(t, at)
	}
	sold(nil, false)
	e := sold(map[string]int64{"x": 5, "y": 50}, false)
	wantText(t, "busiest", d.busiest(MaxItems), `["y","x"]`)
	wantText(t, "active", e.ItemsActive, "2")
	wantText(t, "rate", d.rateOf("x"), "5")
	wantText(t, "rate of another", d.rateOf("z"), "0")
	e = sold(map[string]int64{"z": 1}, true)
	wantText(t, "busiest, a second later", d.busiest(MaxItems), `["y","x","z"]`)
	wantText(t, "cut", d.rateOf("x"), "null")
	wantText(t, "active, cut", e.ItemsActive, "null")
	for range 200 {
		sold(nil, false)
	}
	if all := d.busiest(MaxItems); len(all) != 0 {
		t.Errorf("after a long pause: %v", all)
	}
	many := map[string]int64{}
	for i := range rankedItems + 100 {
		many[fmt.Sprintf("i%03d", i)] = int64(i + 1)
	}
	sold(many, false)
	if len(d.ranks) != rankedItems || len(d.busiest(MaxItems)) != MaxItems || d.busiest(1)[0] != "i599" {
		t.Errorf("%d ranked, first %v", len(d.ranks), d.busiest(1))
	}
}

// Items are counted while the figures are published, and only the busiest are reported.
func TestCounters_Items(t *testing.T) {
	t.Parallel()
	c := NewCounters([]string{"sold_out"})
	c.Accepted("early", 3)
	c.countItems(true)
	for i := range reportedItems + 1 {
		c.Accepted(fmt.Sprintf("i%03d", i), i+1)
	}
	c.Refused("sold_out")
	c.Refused("never heard of")
	r := c.report(&Process{State: func() State { return State{} }}, time.Second)
	if len(r.Items) != reportedItems || !r.ItemsCut || r.Items["i000"] != 0 || r.Items["i200"] != 201 {
		t.Errorf("%d items, cut %v", len(r.Items), r.ItemsCut)
	}
	if want := map[string]int64{"sold_out": 1, otherCode: 1}; !maps.Equal(r.Refused, want) {
		t.Errorf("refused %v", r.Refused)
	}
	if want := int64(3 + (reportedItems+1)*(reportedItems+2)/2); r.Accepted != want {
		t.Errorf("accepted %d, want %d", r.Accepted, want)
	}
	c.Accepted("i000", 1)
	if items, cut := c.takeItems(); len(items) != 1 || cut {
		t.Errorf("then %v", items)
	}
	c.countItems(false)
	c.Accepted("late", 1)
	if items, _ := c.takeItems(); items != nil {
		t.Errorf("at the end %v", items)
	}
}

// Counting a purchase allocates nothing while no client watches.
func TestCounters_Allocations(t *testing.T) {
	c := NewCounters([]string{"sold_out"})
	count := func() {
		c.Accepted("item", 1)
		c.Answered(201, time.Millisecond)
		c.Answered(202, time.Millisecond)
		c.Refused("sold_out")
	}
	if n := testing.AllocsPerRun(100, count); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
