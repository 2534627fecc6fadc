package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/freeport"
)

// against runs the load test in-process against the fake.
func against(t *testing.T, f *fake, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	args = append([]string{"--target", f.url, "--jwt-secret", fakeSecret, "--admin-token", fakeAdmin,
		"--buyers", "200", "--stock", "50", "--connections", "16", "--timeout", "30s"}, args...)
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func TestRun_Honest(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		fake *fake
		args []string
		line string
	}{
		{"database", &fake{}, nil, "PASS accepted=50 persisted=50 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"},
		{"duplicates", &fake{}, []string{"--duplicates", "0.5"}, "PASS accepted=50 persisted=50 "},
		{"greedy", &fake{}, []string{"--greedy", "1", "--limit", "4", "--quantity", "2", "--stock", "1000"}, "PASS accepted=400 persisted=800 "},
		{"indivisible stock", &fake{}, []string{"--limit", "3", "--quantity", "3"}, "PASS accepted=16 persisted=48 "},
		{"less demand than stock", &fake{}, []string{"--stock", "500"}, "PASS accepted=200 persisted=200 "},
		{"async", &fake{queued: true}, []string{"--async"}, "PASS accepted=50 persisted=50 "},
		{"a ledger that lags", &fake{slowLedger: 3}, nil, "PASS accepted=50 persisted=50 "},
		{"late rows", &fake{queued: true, late: true}, []string{"--async"}, "PASS accepted=50 persisted=50 "},
		{"late rows of lost answers", &fake{cutFirst: true, late: true}, nil, "PASS accepted=50 persisted=50 "},
		{"busy at first", &fake{first: 503}, nil, "PASS accepted=50 persisted=50 "},
		{"cut connections", &fake{cutFirst: true}, nil, "PASS accepted=50 persisted=50 "},
		{"steady", &fake{}, []string{"--profile", "steady", "--rate", "2000"}, "PASS accepted=50 persisted=50 "},
		{"ramp", &fake{}, []string{"--profile", "ramp", "--rate", "2000"}, "PASS accepted=50 persisted=50 "},
		{"one connection", &fake{}, []string{"--connections", "1"}, "PASS accepted=50 persisted=50 "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := tt.fake.serve(t)
			code, out, errs := against(t, f, append(tt.args, "--db", f.dsn)...)
			if code != exitPassed || !strings.HasPrefix(lastLine(out), tt.line) {
				t.Errorf("exit %d, %s\n%s\n%s", code, lastLine(out), out, errs)
			}
			if !strings.Contains(out, "checked in the database") {
				t.Errorf("does not say where it was checked:\n%s", out)
			}
		})
	}
}

// wantVerdict runs the load test against a fake, checks the exit code and the parts of the verdict line, and
// returns the output. A run waits in vain for orders that the fake loses, so its --timeout is short. On a busy
// machine it may be too short for the purchases; then the run is repeated with a longer one.
func wantVerdict(t *testing.T, f *fake, wantCode int, want []string, args func(*fake) []string) (out string) {
	t.Helper()
	for limit := time.Second; ; limit *= 4 {
		f.serve(t)
		code, out, errs := against(t, f, append(args(f), "--timeout", limit.String())...)
		line := lastLine(out)
		lacks := slices.DeleteFunc(slices.Clone(want), func(part string) bool { return strings.Contains(line+" ", " "+part+" ") })
		if code == wantCode && len(lacks) == 0 {
			return out
		}
		if limit > 10*time.Second {
			t.Fatalf("exit %d, want %d; %s lacks %v\n%s", code, wantCode, line, lacks, errs)
		}
	}
}

func TestRun_Dishonest(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		fake *fake
		args []string
		want []string // parts of the verdict line
	}{
		{"overselling", &fake{oversell: 5}, nil, []string{"persisted=55", "oversold=5", "lost=0"}},
		{"losing", &fake{loseEvery: 10}, nil, []string{"accepted=50", "persisted=45", "lost=5", "unsold=5"}},
		{"rejecting afterwards", &fake{rejectEvery: 10}, nil, []string{"accepted=50", "lost=5"}},
		{"two rows for a key", &fake{twoRows: true}, []string{"--buyers", "20"}, []string{"accepted=20", "duplicated=20", "over_limit=20"}},
		{"two answers for a key", &fake{twoIDs: true}, []string{"--duplicates", "1", "--buyers", "20"}, []string{"accepted=40", "duplicated=20", "over_limit=20"}},
		{"no limit", &fake{noLimit: true}, []string{"--greedy", "1", "--buyers", "20"}, []string{"accepted=40", "over_limit=20", "unsold=0"}},
		{"leaving units unsold", &fake{stopAt: 45}, nil, []string{"persisted=45", "unsold=5", "oversold=0"}},
		{"unbalanced ledger", &fake{badLedger: true}, nil, []string{"persisted=50", "ledger=unbalanced"}},
		{"another buyer's order", &fake{wrongBuyer: true}, nil, []string{"malformed=50"}},
		{"another price", &fake{cheap: true}, nil, []string{"malformed=50"}},
		{"another price in the database", &fake{cheapRows: true}, nil, []string{"persisted=50", "invented=50"}},
		{"failing at first", &fake{first: 500}, nil, []string{"persisted=50", "unexpected=200"}},
		{"forbidding", &fake{forbid: true}, nil, []string{"persisted=50", "unexpected=150"}},
		{"not answering", &fake{mute: true}, nil, []string{"persisted=50", "unanswered=150"}},
		{"refusing a replay", &fake{refuseAgain: true}, []string{"--duplicates", "1", "--buyers", "20"}, []string{"accepted=20", "contradicted=20"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out := wantVerdict(t, tt.fake, exitFailed, tt.want, func(f *fake) []string { return append(tt.args, "--db", f.dsn) })
			if line := lastLine(out); !strings.HasPrefix(line, "FAIL ") {
				t.Errorf("the verdict is %s", line)
			}
		})
	}
}

// Without the database the service's own lists must show the same failures.
func TestRun_ThroughTheAPI(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		fake *fake
		code int
		want []string
	}{
		{"honest", &fake{}, exitPassed, []string{"accepted=50", "persisted=50"}},
		{"overselling", &fake{oversell: 5}, exitFailed, []string{"oversold=5"}},
		{"losing", &fake{loseEvery: 10}, exitFailed, []string{"lost=5"}},
		{"two rows for a key", &fake{twoRows: true}, exitFailed, []string{"duplicated=50"}},
		{"another price", &fake{cheapRows: true}, exitFailed, []string{"invented=50"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out := wantVerdict(t, tt.fake, tt.code, tt.want, func(*fake) []string { return nil })
			if !strings.Contains(out, "checked in the API") {
				t.Errorf("does not say where it was checked:\n%s", out)
			}
		})
	}
}

func TestRun_DevelopmentTokens(t *testing.T) {
	t.Setenv(secretEnv, "") // the key must not come from outside
	f := (&fake{devTokens: true}).serve(t)
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--target", f.url, "--db", f.dsn, "--buyers", "40", "--stock", "10", "--connections", "4"}, &out, &errs)
	if code != exitPassed || !strings.HasPrefix(lastLine(out.String()), "PASS accepted=10 persisted=10 ") {
		t.Errorf("exit %d\n%s\n%s", code, out.String(), errs.String())
	}

	f = (&fake{}).serve(t)
	out.Reset()
	code = run(t.Context(), []string{"--target", f.url, "--buyers", "1"}, &out, &errs)
	if code != exitFailed || !strings.Contains(errs.String(), secretEnv) || out.Len() > 0 {
		t.Errorf("no way to get tokens: exit %d, must name %s\n%s\n%s", code, secretEnv, out.String(), errs.String())
	}
}

func TestRun_SendsTheSameKeyAgain(t *testing.T) {
	t.Parallel()
	f := (&fake{cutFirst: true}).serve(t)
	code, out, errs := against(t, f, "--db", f.dsn, "--async")
	if code != exitPassed || !strings.Contains(out, "50 after an unknown outcome") {
		t.Errorf("exit %d\n%s\n%s", code, out, errs)
	}
	if f.prefer["respond-async"] != 250 || len(f.prefer) != 1 {
		t.Errorf("Prefer headers seen: %v; want respond-async on all 200 requests and 50 repeats", f.prefer)
	}
	if f.orders != 50 || len(f.seen) != 200 {
		t.Errorf("%d orders of %d keys, want 50 of 200", f.orders, len(f.seen))
	}
}

func TestRun_JSONAndReport(t *testing.T) {
	t.Parallel()
	f := (&fake{}).serve(t)
	path := filepath.Join(t.TempDir(), "report.html")
	code, out, errs := against(t, f, "--db", f.dsn, "--json", "--report", path)
	if code != exitPassed {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	var doc summary
	dec := json.NewDecoder(strings.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil || dec.More() {
		t.Fatalf("not one JSON document: %v\n%s", err, out)
	}
	if !doc.Pass || doc.Verdict.Accepted != 50 || doc.Requests != 200 || doc.DrainMS == nil || doc.Ledger == nil || !strings.HasPrefix(doc.Line, "PASS ") {
		t.Errorf("document: %+v", doc)
	}
	counts := map[string]int64{}
	for _, a := range doc.Answers {
		counts[a.Name()] = a.Count
	}
	if counts["201"] != 50 || counts["409 sold_out"] != 150 {
		t.Errorf("answers: %v", counts)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	checkReport(t, page, out)
	for _, want := range []string{"<polyline", "409 sold_out", doc.Line} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("report lacks %q", want)
		}
	}
}

// checkReport checks what holds for every report: it needs nothing but itself, runs
// nothing, has every section, no number with an exponent on an axis, and holds what --json
// printed.
func checkReport(t *testing.T, page []byte, printed string) {
	t.Helper()
	for _, part := range []string{`id="rate"`, `id="latency"`, `id="hdr"`, `id="stock"`, `id="queue"`, `id="age"`, `id="refusals"`,
		"Events", "Checks", "Settings", "Machine of the load test", "Answers"} {
		if !bytes.Contains(page, []byte(part)) {
			t.Errorf("report lacks %q", part)
		}
	}
	const data = `<script type="application/json" id="result">`
	for _, outside := range []string{"src=", "href=", "url(", "@import", "ZgotmplZ", "NaN", "onload"} {
		if bytes.Contains(page, []byte(outside)) {
			t.Errorf("report has %q", outside)
		}
	}
	if n := bytes.Count(page, []byte("<script")); n != 1 {
		t.Errorf("%d scripts, want the data only", n)
	}
	if bad := regexp.MustCompile(`<text[^>]*>[^<]*\de[+-]?\d[^<]*</text>`).Find(page); bad != nil {
		t.Errorf("a label has an exponent: %s", bad)
	}
	_, rest, _ := bytes.Cut(page, []byte(data))
	embedded, _, _ := bytes.Cut(rest, []byte("</script>"))
	var got, want any
	if err := errors.Join(json.Unmarshal(embedded, &got), json.Unmarshal([]byte(printed), &want)); err != nil {
		t.Fatalf("%v\n%.300s", err, embedded)
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("the data of the report differs from the output of --json")
	}
}

func TestRun_Interrupted(t *testing.T) {
	t.Parallel()
	f := (&fake{}).serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"--target", f.url, "--jwt-secret", fakeSecret, "--buyers", "10"}, &out, &errs)
	if code != exitFailed || out.Len() > 0 || !strings.Contains(errs.String(), context.Canceled.Error()) {
		t.Errorf("exit %d\n%s\n%s", code, out.String(), errs.String())
	}
}

func TestRun_NobodyThere(t *testing.T) {
	t.Parallel()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--target", "http://" + addr, "--jwt-secret", fakeSecret, "--buyers", "10"}, &out, &errs)
	if code != exitFailed || out.Len() > 0 || errs.Len() == 0 {
		t.Errorf("exit %d\n%s\n%s", code, out.String(), errs.String())
	}
}
