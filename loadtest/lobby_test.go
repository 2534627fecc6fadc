package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNewPlan_Flash(t *testing.T) {
	t.Parallel()
	o := options4test(t, "--profile", "flash", "--buyers", "1000", "--duplicates", "0.2", "--stragglers", "0.25", "--tail", "4s", "--lobby", "3s", "--readers", "50", "--read-every", "500ms")
	p := newPlan(o, "r")
	burst, late := 0, map[int]time.Duration{}
	for i, s := range p.shots {
		switch after := s.due - p.opening; {
		case after == reaction:
			burst++
		case after > reaction && after <= reaction+4*time.Second:
			if first, known := late[s.purchase]; known && first != s.due {
				t.Errorf("a repeat is due at %s, its original at %s", s.due, first)
			}
			late[s.purchase] = s.due
		default:
			t.Errorf("shot %d is due %s after the opening", i, after)
		}
	}
	if !slices.IsSortedFunc(p.shots, func(a, b shot) int { return int(a.due - b.due) }) {
		t.Error("not in the order of due times")
	}
	if p.opening != 3*time.Second || len(late) != 250 || len(p.purchases) != 1000 || len(p.shots) != 1200 || burst < 750 {
		t.Errorf("opening %s, %d late, %d purchases, %d shots, %d in the burst", p.opening, len(late), len(p.purchases), len(p.shots), burst)
	}
	// The rate falls: half of the stragglers come within 1-1/sqrt(2) of the tail.
	soon := 0
	for _, due := range late {
		if due-p.opening < reaction+1172*time.Millisecond {
			soon++
		}
	}
	if soon < 120 || soon > 130 {
		t.Errorf("%d of 250 stragglers come in the first 29 %% of the tail", soon)
	}
	// 50 readers for 3 s, each every half second on average.
	if n := len(p.reads); n < 280 || n > 330 || !slices.IsSorted(p.reads) || p.reads[n-1] >= p.opening {
		t.Errorf("%d reads, the last at %s", n, p.reads[n-1])
	}
	if again := newPlan(o, "r"); !slices.Equal(again.reads, p.reads) || !slices.Equal(again.shots, p.shots) {
		t.Error("the same seed made two plans")
	}
}

func TestNewPlan_FlashWithoutStragglersOrReaders(t *testing.T) {
	t.Parallel()
	for args, late := range map[string]int{"--stragglers 0 --readers 0": 0, "--stragglers 1 --tail 0s": 0, "--stragglers 1 --readers 1": 10} {
		p := newPlan(options4test(t, append(strings.Fields(args), "--profile", "flash", "--buyers", "10")...), "r")
		n := 0
		for _, s := range p.shots {
			if s.due > p.opening+reaction {
				n++
			}
		}
		if n != late {
			t.Errorf("%s: %d late, want %d", args, n, late)
		}
	}
}

var shortFlash = []string{"--profile", "flash", "--lobby", "300ms", "--readers", "20", "--read-every", "50ms", "--tail", "200ms", "--stragglers", "0.2"}

func TestRun_Flash(t *testing.T) {
	t.Parallel()
	doc, page := reported(t, &fake{}, exitPassed, append(shortFlash, "--duplicates", "0.1")...)
	if doc.Verdict.Accepted != 50 || doc.Reads == nil || doc.Reads.Requests < 60 || doc.Reads.Failures != 0 || doc.RetriedEarly != 0 {
		t.Errorf("%s, reads %+v", doc.Line, doc.Reads)
	}
	if m := doc.Series.Marks; len(m) == 0 || m[0].What != "opening" || m[0].At != 0.3 {
		t.Errorf("marks %v", m)
	}
	for _, p := range doc.Series.Points {
		if p.At+doc.Series.IntervalMS/1000 <= 0.3 && (p.Sent > 0 || p.Due > 0) {
			t.Errorf("a purchase before the opening: %+v", p)
		}
	}
	if f := doc.Load.Flash; f == nil || f.LobbyMS != 300 || f.Readers != 20 {
		t.Errorf("settings %+v", f)
	}
	if !strings.Contains(string(page), "Reads of the item&#39;s page") {
		t.Error("the report has no chart of the lobby")
	}
}

// A sale that opens a little later than it said costs no order, and a page that fails costs
// no verdict.
func TestRun_FlashFaults(t *testing.T) {
	t.Parallel()
	doc, _ := reported(t, &fake{tooSlow: true}, exitPassed, shortFlash...)
	if doc.RetriedEarly == 0 || doc.Verdict.Accepted != 50 || doc.RetriedBusy != 0 {
		t.Errorf("%s, %d repeated early", doc.Line, doc.RetriedEarly)
	}
	doc, _ = reported(t, &fake{noPage: true}, exitPassed, shortFlash...)
	if doc.Reads.Failures == 0 || doc.Reads.Failures != doc.Reads.Requests || len(doc.Series.Outages) == 0 {
		t.Errorf("reads %+v, outages %v", doc.Reads, doc.Series.Outages)
	}
}
