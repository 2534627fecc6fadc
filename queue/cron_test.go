package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"pgregory.net/rapid"
)

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return t
}

func ats(texts ...string) []time.Time {
	ticks := make([]time.Time, len(texts))
	for i := range texts {
		ticks[i] = at(texts[i])
	}
	return ticks
}

func mustParse(t testing.TB, spec string) schedule {
	t.Helper()
	s, err := parseSpec(spec, at("2026-01-01T00:00:00Z"))
	if err != nil {
		t.Fatalf("%q: %v", spec, err)
	}
	return s
}

// TestParseSpec: the first ticks of what is accepted.
func TestParseSpec(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string][2]string{
		"* * * * *":                        {"2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"},
		"15 14 1 * *":                      {"2026-01-01T14:15:00Z", "2026-02-01T14:15:00Z"},
		"0 22 * * 1-5":                     {"2026-01-01T22:00:00Z", "2026-01-02T22:00:00Z"},
		"0 0 29 feb ?":                     {"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"},
		"0 0 13 * fri":                     {"2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z"},
		"@daily":                           {"2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"},
		"@every 90s":                       {"2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"},
		"CRON_TZ=Asia/Tokyo 0 6 * * *":     {"2026-01-01T21:00:00Z", "2026-01-02T21:00:00Z"},
		"TZ=Europe/Berlin @midnight":       {"2026-01-01T23:00:00Z", "2026-01-02T23:00:00Z"},
		"CRON_TZ=Asia/Kathmandu 0 * * * *": {"2026-01-01T00:15:00Z", "2026-01-01T01:15:00Z"},
		"CRON_TZ=Asia/Tokyo @every 1m":     {"2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"},
	} {
		s := mustParse(t, spec)
		first := s.Next(at("2026-01-01T00:00:00Z"))
		if got := [2]time.Time{first, s.Next(first)}; got != [2]time.Time(ats(want[0], want[1])) {
			t.Errorf("%q: %v, want %v", spec, got, want)
		}
	}
}

func TestParseSpec_Refused(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{
		"", " ", "* * * *", "* * * * * *", "60 * * * *", "* * * * 7", "*/0 * * * *", "5-1 * * * *", "x * * * *", "@often",
		"0 0 30 2 *", ", * * * *", // never
		"@every", "@every ", "@every x", "@every 0s", "@every -1m", "@every 500ms", "@every 1500ms",
		"CRON_TZ=Europe/Berlin", "TZ=", "CRON_TZ=Nowhere/Atall * * * * *", "CRON_TZ=Local * * * * *", "TZ=Local * * * * *",
		"CRON_TZ=UTC\t* * * * *", "CRON_TZ=UTC @every 1ms",
	} {
		if s, err := parseSpec(spec, at("2026-01-01T00:00:00Z")); err == nil {
			t.Errorf("%q was accepted as %+v", spec, s)
		}
	}
}

// FuzzParseSpec: no text makes the parser panic, and what it accepts moves on.
func FuzzParseSpec(f *testing.F) {
	for _, spec := range []string{"* * * * *", "@every 1s", "CRON_TZ=Europe/Berlin 30 2 * * *", "TZ=", "*/7,3-9/2 1 ? jan-dec sun", "CRON_TZ= @daily", ","} {
		f.Add(spec)
	}
	now := at("2026-03-28T12:00:00.5Z")
	f.Fuzz(func(t *testing.T, spec string) {
		s, err := parseSpec(spec, now)
		if err != nil {
			return
		}
		first := after(s, now, now)
		if second := after(s, first, first); !first.After(now) || !second.IsZero() && !second.After(first) {
			t.Errorf("%q: %v, then %v", spec, first, second)
		}
	})
}

// TestParseSpec_TimeChange: what happens when a zone changes its time.
func TestParseSpec_TimeChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, spec, from string
		want             []time.Time
	}{
		{"the time is left out: not that day", "CRON_TZ=Europe/Berlin 30 2 * * *", "2026-03-27T12:00:00Z",
			ats("2026-03-28T02:30:00+01:00", "2026-03-30T02:30:00+02:00", "2026-03-31T02:30:00+02:00")},
		{"it comes twice: two ticks", "CRON_TZ=Europe/Berlin 30 2 * * *", "2026-10-24T12:00:00Z",
			ats("2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00")},
		{"every hour, forward", "CRON_TZ=Europe/Berlin @hourly", "2026-03-28T23:30:00Z",
			ats("2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00")},
		{"every hour, back", "CRON_TZ=Europe/Berlin @hourly", "2026-10-24T23:30:00Z",
			ats("2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00")},
		{"a time that exists once", "CRON_TZ=Europe/Berlin 0 9 * * *", "2026-03-28T12:00:00Z",
			ats("2026-03-29T09:00:00+02:00", "2026-03-30T09:00:00+02:00")},
		{"midnight is left out", "CRON_TZ=America/Sao_Paulo @daily", "2018-11-02T12:00:00Z",
			ats("2018-11-03T00:00:00-03:00", "2018-11-05T00:00:00-02:00")},
		{"UTC knows none of it", "30 2 * * *", "2026-03-28T12:00:00Z",
			ats("2026-03-29T02:30:00Z", "2026-03-30T02:30:00Z")},
	} {
		s, last := mustParse(t, c.spec), at(c.from)
		for i, want := range c.want {
			if last = after(s, last, last); !last.Equal(want) {
				t.Errorf("%s: tick %d is %v, want %v", c.what, i, last, want)
			}
		}
	}
}

// TestRecent_Model: the latest ticks are the same as when all are walked through.
func TestRecent_Model(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s schedule
		switch spec := rapid.SampledFrom([]string{"* * * * *", "*/7 8-17 * * *", "@daily", "0 0 1 * *", "CRON_TZ=Europe/Berlin 30 2 * * *", "@every", "own"}).Draw(t, "spec"); spec {
		case "@every":
			s = cron.Every(time.Duration(rapid.IntRange(1, 5000).Draw(t, "period")) * time.Second)
		case "own":
			s = Every(time.Duration(rapid.IntRange(300, 5000).Draw(t, "period")) * time.Millisecond)
		default:
			var err error
			if s, err = parseSpec(spec, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		last := at("2026-03-01T00:00:00Z").Add(time.Duration(rapid.Int64Range(0, int64(60*24*time.Hour)).Draw(t, "last")))
		back := rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour, 30 * time.Hour, 60 * 24 * time.Hour}).Draw(t, "back")
		if _, own := s.(Every); own {
			back = min(back, time.Hour)
		}
		now := last.Add(time.Duration(rapid.Int64Range(-int64(time.Minute), int64(back)).Draw(t, "now")))
		if rapid.Bool().Draw(t, "on a tick") {
			now = s.Next(now)
		}
		n := rapid.IntRange(1, 50).Draw(t, "n")

		var all []time.Time
		for tick := s.Next(last); tick.Before(now); tick = s.Next(tick) {
			all = append(all, tick)
		}
		want := all[max(0, len(all)-n):]
		got, more := recent(s, last, now, n)
		if !slices.EqualFunc(got, want, time.Time.Equal) || more != (len(all) > n) {
			t.Fatalf("%v, more %v; want %v of %d", got, more, want, len(all))
		}
	})
}

// TestRecent_FarPast: what happened since 1970 is not walked through.
func TestRecent_FarPast(t *testing.T) {
	t.Parallel()
	now := at("2300-01-01T00:00:30Z")
	for _, s := range []schedule{cron.Every(time.Second), mustParse(t, "* * * * *"), Every(20 * time.Millisecond)} {
		got, more := recent(s, time.UnixMilli(0), now, 2)
		if len(got) != 2 || !more || now.Sub(got[1]) > 30*time.Second || !got[0].Before(got[1]) {
			t.Errorf("%+v: %v, %v", s, got, more)
		}
	}
	if got, more := recent(mustParse(t, "0 0 29 2 *"), time.UnixMilli(0), at("2027-01-01T00:00:00Z"), 1); more != true || !slices.Equal(got, ats("2024-02-29T00:00:00Z")) {
		t.Errorf("leap days: %v, %v", got, more)
	}
}

// show writes a plan down as the minutes and seconds of its ticks and their ends.
func show(todo []planned) string {
	var parts []string
	for _, p := range todo {
		text := p.tick.Format("04:05")
		if !p.till.IsZero() {
			text += "<" + p.till.Format("04:05.000")
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

func TestPlan(t *testing.T) {
	t.Parallel()
	const day = "2026-01-01T"
	for _, c := range []struct {
		spec, last, now string
		missed          Missed
		ahead           time.Duration
		want, next      string
	}{
		// Nothing is due, and then it is, on both ends of the time ahead.
		{"* * * * *", "12:00:00Z", "12:00:30Z", MissedLatest, 5 * time.Second, "", "12:01:00Z"},
		{"* * * * *", "12:00:00Z", "12:00:54.999Z", MissedLatest, 5 * time.Second, "", "12:01:00Z"},
		{"* * * * *", "12:00:00Z", "12:00:55Z", MissedLatest, 5 * time.Second, "01:00<02:00.000", "12:02:00Z"},
		{"* * * * *", "12:00:00Z", "12:01:00Z", MissedLatest, 5 * time.Second, "01:00<02:00.000", "12:02:00Z"},
		{"* * * * *", "12:00:00Z", "12:01:00Z", MissedAll, 5 * time.Second, "01:00", "12:02:00Z"},
		{"* * * * *", "12:00:00Z", "12:01:00Z", MissedSkip, 5 * time.Second, "01:00<01:00.001", "12:02:00Z"},
		{"* * * * *", "12:01:00Z", "12:00:58Z", MissedAll, 5 * time.Second, "", "12:02:00Z"},
		// Ticks were missed.
		{"* * * * *", "12:00:00Z", "12:03:57Z", MissedLatest, 5 * time.Second, "03:00<04:00.000 04:00<05:00.000", "12:05:00Z"},
		{"* * * * *", "12:00:00Z", "12:03:57Z", MissedAll, 5 * time.Second, "01:00 02:00 03:00 04:00", "12:05:00Z"},
		{"* * * * *", "12:00:00Z", "12:03:57Z", MissedSkip, 5 * time.Second, "04:00<04:00.001", "12:05:00Z"},
		{"* * * * *", "12:00:00Z", "12:03:50Z", MissedSkip, 5 * time.Second, "", "12:04:00Z"},
		// A period counts from the last tick, also over those that were missed.
		{"@every 40s", "12:00:10Z", "12:00:20Z", MissedLatest, time.Minute, "00:50<01:30.000", "12:01:30Z"},
		{"@every 40s", "12:00:10Z", "12:03:20Z", MissedLatest, 30 * time.Second, "02:50<03:30.000 03:30<04:10.000", "12:04:10Z"},
		{"@every 40s", "12:00:10Z", "12:02:09.999Z", MissedSkip, time.Second, "02:10<02:10.001", "12:02:50Z"},
		{"@every 1s", "12:00:00.7Z", "12:00:00.7Z", MissedAll, 2 * time.Second, "00:01 00:02", "12:00:03Z"},
		// Redis set its clock back: nothing before the last tick again.
		{"* * * * *", "12:30:00Z", "12:03:57Z", MissedAll, time.Minute, "", "12:31:00Z"},
		{"@every 40s", "12:30:00Z", "12:03:57Z", MissedLatest, time.Minute, "", "12:30:40Z"},
	} {
		todo, next, dropped := plan(mustParse(t, c.spec), c.missed, at(day+c.last), at(day+c.now), c.ahead)
		if got := show(todo); got != c.want || !next.Equal(at(day+c.next)) || dropped {
			t.Errorf("%+v: %s, next %v, dropped %v", c, got, next, dropped)
		}
	}
}

// TestPlan_Dropped: more were missed than are made up for.
func TestPlan_Dropped(t *testing.T) {
	t.Parallel()
	last := at("2026-01-01T00:00:00Z")
	for minutes, want := range map[int]bool{1000: false, 1001: true, 100_000: true} {
		now := last.Add(time.Duration(minutes)*time.Minute + time.Second)
		todo, next, dropped := plan(mustParse(t, "* * * * *"), MissedAll, last, now, time.Second)
		if len(todo) != 1000 || dropped != want || !todo[999].tick.Equal(now.Add(-time.Second)) || !next.Equal(now.Add(59*time.Second)) {
			t.Errorf("%d missed: %d made up for, dropped %v, next %v", minutes, len(todo), dropped, next)
		}
	}
}

// TestPlan_NoMore: a schedule that has come to its end, for now.
func TestPlan_NoMore(t *testing.T) {
	t.Parallel()
	s := mustParse(t, "0 0 29 2 *")
	last := at("2096-02-29T00:00:00Z") // 2100 is no leap year
	if todo, next, _ := plan(s, MissedAll, last, at("2097-01-01T00:00:00Z"), time.Minute); len(todo) != 0 || !next.IsZero() {
		t.Errorf("%v, %v", todo, next)
	}
	todo, next, _ := plan(s, MissedAll, last, at("2104-02-28T23:59:30Z"), time.Minute)
	if fmt.Sprint(todo) != fmt.Sprint([]planned{{tick: at("2104-02-29T00:00:00Z")}}) || !next.Equal(at("2108-02-29T00:00:00Z")) {
		t.Errorf("%v, %v", todo, next)
	}
}
