package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reported runs the load test against a fake and returns the document and the report.
func reported(t *testing.T, f *fake, wantCode int, args ...string) (summary, []byte) {
	t.Helper()
	f.serve(t)
	path := filepath.Join(t.TempDir(), "report.html")
	code, out, errs := against(t, f, append([]string{"--db", f.dsn, "--json", "--report", path}, args...)...)
	if code != wantCode {
		t.Fatalf("exit %d, want %d\n%s\n%s", code, wantCode, out, errs)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	checkReport(t, page, out)
	var doc summary
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	checkSeries(t, &doc)
	return doc, page
}

// checkSeries compares the sums over the intervals with the counts of the run.
func checkSeries(t *testing.T, s *summary) {
	t.Helper()
	var due, sent, settled, orders, reads int64
	answers := make([]int64, len(s.Series.Answers))
	for i, p := range s.Series.Points {
		due, sent, orders, reads = due+p.Due, sent+p.Sent, orders+p.Orders, reads+p.Reads
		if p.Latency != nil {
			settled += p.Latency.Settled
			if l := p.Latency; l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.Max {
				t.Errorf("point %d: %+v", i, *l)
			}
		}
		for j, n := range p.Answers {
			answers[j] += n
		}
	}
	if due != s.Requests || sent != s.Attempts || settled != s.Requests || orders != s.Verdict.Accepted {
		t.Errorf("%d due, %d sent, %d settled, %d orders; want %d, %d, %d, %d", due, sent, settled, orders, s.Requests, s.Attempts, s.Requests, s.Verdict.Accepted)
	}
	if s.Reads != nil && reads != s.Reads.Requests {
		t.Errorf("%d reads, want %d", reads, s.Reads.Requests)
	}
	for _, a := range s.Answers {
		found := false
		for i, name := range s.Series.Answers {
			if name == (answerCount{Status: a.Status, Code: shorten(a.Code)}).Name() {
				found = answers[i] == a.Count
			}
		}
		if !found {
			t.Errorf("the series %v has other counts than %+v", answers, a)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		fake *fake
		code int
		args []string
		want []string // parts of the page
	}{
		{"one buyer", &fake{}, exitPassed, []string{"--buyers", "1", "--stock", "1"}, []string{"PASS accepted=1", "Nothing was refused."}},
		{"zero accepted", &fake{oversell: -1000}, exitFailed, []string{"--timeout", "1s"}, []string{"FAIL accepted=0", `class="bad">FAILED`, "What broke", "50 units could have been sold, sold: 0"}},
		{"busy", &fake{first: 503}, exitPassed, nil, []string{"503 first", "busy or no answer"}},
		{"cut", &fake{cutFirst: true}, exitPassed, nil, []string{"no answer: connection_cut"}},
		{"steady", &fake{}, exitPassed, []string{"--profile", "steady", "--rate", "2000"}, []string{"2,000 requests/s", "stated by the item&#39;s page"}},
		{"page down", &fake{noPage: true}, exitPassed, nil, []string{noAnswer, "shaded in the charts", `class="down"`, "The service did not state its queue."}},
		{"hostile", &fake{hostile: true}, exitFailed, nil, []string{"&lt;/script&gt;"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, page := reported(t, tt.fake, tt.code, tt.args...)
			for _, want := range tt.want {
				if !bytes.Contains(page, []byte(want)) {
					t.Errorf("report lacks %q", want)
				}
			}
			for _, hostile := range []string{"<b x", "<script>alert"} {
				if bytes.Contains(page, []byte(hostile)) {
					t.Errorf("report has %q", hostile)
				}
			}
		})
	}
}

// The structure of a page: every chart has both drawings, its legend and its table.
func TestReport_Structure(t *testing.T) {
	t.Parallel()
	s := faulty()
	path := filepath.Join(t.TempDir(), "report.html")
	if err := s.writeReport(path); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range strings.Split(string(page), "<figure ")[1:] {
		id, _, _ := strings.Cut(strings.TrimPrefix(f, `id="`), `"`)
		f, _, _ = strings.Cut(f, "</figure>")
		for _, part := range []string{`class="wide"`, `class="narrow"`, `role="img" aria-label=`, "<details>", `<th scope="col">`} {
			if !strings.Contains(f, part) {
				t.Errorf("%s lacks %s", id, part)
			}
		}
		if id != "hdr" && (strings.Count(f, `class="flag"`) != 4 || strings.Count(f, "all workers down") != 2 || !strings.Contains(f, ">all workers killed</text>")) {
			t.Errorf("%s does not mark the fault", id)
		}
		got = append(got, id)
	}
	if want := "rate latency hdr stock queue age refusals reads"; strings.Join(got, " ") != want {
		t.Errorf("charts %v, want %s", got, want)
	}
	for _, part := range []string{"<td>all workers ready again</td>", "1.00 to 2.00 s", "worker@50%, down for 1 s", "flashsale v9", "10 readers for 100 ms, each about every 10 ms", "<td>a CPU</td>", "<td>3</td>"} {
		if !strings.Contains(string(page), part) {
			t.Errorf("page lacks %q", part)
		}
	}
	if strings.Contains(string(page), "&amp;lt;") || bytes.Contains(page, []byte("<em>")) {
		t.Error("a text is escaped twice, or not at all")
	}
}

// faulty is the result of a run with everything: a lobby, a kill, a hostile name.
func faulty() *summary {
	r, start := recorded(shot{}, shot{due: time.Second}, shot{due: 2500 * time.Millisecond})
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for i, ms := range []int{10, 1100, 2600} {
		r.sent(at(ms))
		r.answered(at(ms+10), &answer{status: []int{201, 409, 503}[i], code: []string{"", "<em>", "overloaded"}[i]})
		r.settled(at(ms+10), i, []kind{kindAccepted, kindRefused, kindBusy}[i], 10*time.Millisecond)
		r.read(at(ms), true)
		r.saw(at(ms), sighting{stock: new(int64(3 - i)), queued: new(int64(i)), oldest: time.Duration(i) * time.Second})
	}
	r.down("all workers down", at(1000), at(2000))
	s := &summary{
		Started: start, Machine: machine{CPU: "a CPU", Cores: 3, OS: "a system", Arch: "x", Go: "go1"}, Service: "v9",
		Load: loadFacts{
			Item: "<em>", Stock: 3, Quantity: 1, Profile: profileFlash, Flash: &flashFacts{100, 10, 10, 0.1, 1000},
			Kill: []string{"worker@50%"}, DownMS: 1000,
		},
		Reads: &readResult{Requests: 3}, Kills: []kill{{Process: "all workers", At: 1, Back: new(2.0)}},
		latency: newHistogram(), accepted: newHistogram(),
	}
	record(s.latency, 10*time.Millisecond)
	record(s.accepted, 10*time.Millisecond)
	s.Series = r.finish([]mark{{1, "all workers killed"}, {2, "all workers ready again"}})
	return s
}

func TestSummary_Checks(t *testing.T) {
	t.Parallel()
	s := &summary{Verdict: verdict{Failures: []failure{{Name: "lost", Count: 2}, {Name: "void", Count: 1}}}}
	checks := s.checks()
	if n := len(checks); n != len(checkMeanings)+1 || checks[n-1].Name != "void" || checks[n-1].Passed {
		t.Errorf("checks %+v", checks)
	}
	for _, c := range checks[:len(checkMeanings)] {
		if c.Passed != (c.Name != "lost") || c.Count != map[bool]int64{true: 0, false: 2}[c.Passed] {
			t.Errorf("check %+v", c)
		}
	}
}
