package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"flashsale/internal/plural"
)

// summary is the complete result of a run; as JSON it is the output of --json.
// Times are in milliseconds where the name says so.
type summary struct {
	Pass    bool    `json:"pass"`
	Line    string  `json:"line"`
	Verdict verdict `json:"verdict"`
	// CheckedIn is where the orders were read: the database or the API.
	CheckedIn string   `json:"checked_in"`
	Notes     []string `json:"notes,omitempty"`

	Started time.Time `json:"started_at"`
	// Machine is the one that sent the load.
	Machine machine `json:"machine"`
	// Service is the version of the service; empty: unknown.
	Service string `json:"service_version,omitempty"`

	Load     loadFacts     `json:"load"`
	Answers  []answerCount `json:"answers"`
	Requests int64         `json:"requests"`
	Attempts int64         `json:"attempts"`
	// RetriedBusy counts repeats after 429 or 503, RetriedUnknown those after a missing
	// answer or one with an unknown outcome.
	RetriedBusy    int64 `json:"retried_busy"`
	RetriedUnknown int64 `json:"retried_unknown"`
	// RetriedEarly counts the repeats of purchases that came before the opening.
	RetriedEarly int64 `json:"retried_early,omitempty"`
	GaveUp       int64 `json:"gave_up"`

	ElapsedSeconds    float64 `json:"elapsed_seconds"`
	RequestsPerSecond float64 `json:"requests_per_second"`
	// AcceptedPerSecond is distinct orders over the time to the last of them. With a lobby,
	// both rates count from the opening.
	AcceptedPerSecond float64 `json:"accepted_per_second"`
	// Latency counts from when a request was due, Service from when its last attempt was
	// sent; AcceptedLatency is the Latency of accepted requests.
	Latency         quantiles `json:"latency"`
	AcceptedLatency quantiles `json:"accepted_latency"`
	ServiceTime     quantiles `json:"service_time"`
	// Percentiles are more of the same distributions.
	Percentiles []percentile `json:"percentiles"`
	// Reads are those of the lobby.
	Reads *readResult `json:"reads,omitempty"`
	// DrainMS is the time from the last answer until every acknowledged order
	// had a row; null if that did not happen.
	DrainMS *float64 `json:"drain_ms"`
	Ledger  *ledger  `json:"ledger"`
	// Kills are those of --split.
	Kills  []kill  `json:"kills,omitempty"`
	Series *series `json:"series"`

	latency, accepted *hdrhistogram.Histogram // for the report's plot
}

// loadFacts repeat the options of the run.
type loadFacts struct {
	Target      string  `json:"target"`
	Item        string  `json:"item"`
	Buyers      int     `json:"buyers"`
	Stock       int64   `json:"stock"`
	Limit       int64   `json:"limit"`
	Quantity    int64   `json:"quantity"`
	Profile     string  `json:"profile"`
	Rate        float64 `json:"rate,omitempty"`
	Duplicates  float64 `json:"duplicates"`
	Greedy      float64 `json:"greedy"`
	Connections int     `json:"connections"`
	Async       bool    `json:"async"`
	Seed        uint64  `json:"seed"`

	Flash *flashFacts `json:"flash,omitempty"`
	// Kill and DownMS repeat --kill and --down.
	Kill   []string `json:"kill,omitempty"`
	DownMS float64  `json:"down_ms,omitempty"`
}

// flashFacts are the options of the profile flash.
type flashFacts struct {
	LobbyMS     float64 `json:"lobby_ms"`
	Readers     int     `json:"readers"`
	ReadEveryMS float64 `json:"read_every_ms"`
	Stragglers  float64 `json:"stragglers"`
	TailMS      float64 `json:"tail_ms"`
}

// answerCount counts the attempts that got one answer. Status 0: none came.
type answerCount struct {
	Status int    `json:"status"`
	Code   string `json:"code,omitempty"`
	Count  int64  `json:"count"`
}

// quantiles of a distribution, in milliseconds.
type quantiles struct {
	P50  float64 `json:"p50_ms"`
	P90  float64 `json:"p90_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p999_ms"`
	Max  float64 `json:"max_ms"`
}

// newHistogram records microseconds up to two hours with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (2 * time.Hour).Microseconds(), 3)
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	us := min(max(d.Microseconds(), 1), h.HighestTrackableValue())
	if err := h.RecordValue(us); err != nil {
		panic(fmt.Sprintf("loadtest: histogram refuses %d us within its bounds: %v", us, err))
	}
}

func quantilesOf(h *hdrhistogram.Histogram) quantiles {
	at := func(p float64) float64 { return float64(h.ValueAtQuantile(p)) / 1000 }
	return quantiles{at(50), at(90), at(99), at(99.9), float64(h.Max()) / 1000}
}

// summarize counts the crowd's answers.
func summarize(o *options, p *plan, r *result) *summary {
	s := &summary{
		Load: loadFacts{
			Item: p.item, Buyers: o.Buyers, Stock: o.Stock, Limit: o.Limit, Quantity: o.Quantity, Profile: o.Profile,
			Duplicates: o.Duplicates, Greedy: o.Greedy, Connections: o.Connections, Async: o.Async, Seed: o.Seed,
		},
		Requests: int64(len(p.shots)), RetriedBusy: r.retriedBusy, RetriedUnknown: r.retriedUnknown,
		RetriedEarly:   r.retriedEarly,
		ElapsedSeconds: r.elapsed.Seconds(),
		latency:        newHistogram(), accepted: newHistogram(),
	}
	switch o.Profile {
	case profileRamp, profileSteady:
		s.Load.Rate = o.Rate
	case profileFlash:
		s.Load.Flash = &flashFacts{millis(o.Lobby), o.Readers, millis(o.ReadEvery), o.Stragglers, millis(o.Tail)}
		s.Reads = &r.reads
	}
	if len(o.Kill) > 0 {
		s.Load.Kill, s.Load.DownMS = o.Kill, millis(o.Down)
	}
	service := newHistogram()
	orders := make(map[string]time.Duration) // when each order was first acknowledged
	for i := range r.outcomes {
		out := &r.outcomes[i]
		record(s.latency, out.latency)
		record(service, out.service)
		switch out.answer.kind {
		case kindAccepted:
			if at, known := orders[out.answer.order]; !known || out.done < at {
				orders[out.answer.order] = out.done
			}
			record(s.accepted, out.latency)
		case kindBusy, kindUnknown:
			s.GaveUp++
		case kindRefused:
			// Counted with the answers.
		}
	}
	s.Latency, s.AcceptedLatency, s.ServiceTime = quantilesOf(s.latency), quantilesOf(s.accepted), quantilesOf(service)
	s.Percentiles = percentilesOf(s.latency, s.accepted)
	s.RequestsPerSecond = rate(s.Requests, r.elapsed)
	var lastOrder time.Duration
	for _, at := range orders {
		lastOrder = max(lastOrder, at)
	}
	s.AcceptedPerSecond = rate(int64(len(orders)), lastOrder-p.opening)
	s.Answers = r.counts()
	for _, a := range s.Answers {
		s.Attempts += a.Count
	}
	return s
}

// counts returns the answers in order.
func (r *result) counts() []answerCount {
	counts := make([]answerCount, 0, len(r.answers))
	for k, n := range r.answers {
		counts = append(counts, answerCount{k.status, k.code, n})
	}
	slices.SortFunc(counts, func(a, b answerCount) int {
		return cmp.Or(cmp.Compare(a.Status, b.Status), cmp.Compare(a.Code, b.Code))
	})
	return counts
}

func rate(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// conclude adds the judgement.
func (s *summary) conclude(v verdict, end *settled, checkedIn string) {
	s.Verdict, s.Pass, s.Line = v, v.passed(), v.line()
	s.Ledger, s.CheckedIn = end.ledger, checkedIn
	s.Notes = append(s.Notes, end.notes...)
	if end.all {
		ms := math.Round(float64(end.drain.Microseconds())) / 1000
		s.DrainMS = &ms
	}
}

// fail adds a failure to the verdict.
func (s *summary) fail(name string, f finding) {
	s.Verdict.Failures = append(s.Verdict.Failures, failure{name, f.count, f.examples})
	s.Pass, s.Line = false, s.Verdict.line()
}

// expected reports whether the answer is one that a buyer of the sale can get: an order, a refusal, a request to come back
// later, or none, for which the buyer's last attempt decides. Gateways answer 502 and 504 while a process is away.
func (a answerCount) expected() bool {
	switch {
	case a.Status == 0, a.Status >= 200 && a.Status < 300:
		return true
	case a.Status == 409:
		return slices.Contains([]string{"sold_out", "user_limit", "sale_paused", "sale_closed", codeNotOpen}, a.Code)
	}
	return slices.Contains([]int{408, 429, 502, 503, 504}, a.Status)
}

// Name of the answer for people: "201", "409 sold_out", "no answer: timeout".
func (a answerCount) Name() string {
	if a.Status == 0 {
		return "no answer: " + a.Code
	}
	return strings.TrimSpace(strconv.Itoa(a.Status) + " " + a.Code)
}

func (s *summary) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// writeText prints tables and, as the last line, the verdict.
func (s *summary) writeText(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "answer\tcount\tshare\t\n")
	for _, a := range s.Answers {
		fmt.Fprintf(t, "%s\t%d\t%.1f %%\t\n", a.Name(), a.Count, 100*float64(a.Count)/float64(s.Attempts))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	fmt.Fprintf(t, "\nmilliseconds\tp50\tp90\tp99\tp99.9\tmax\t\n")
	for _, l := range s.distributions() {
		q := l.Of
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", l.Name, q.P50, q.P90, q.P99, q.P999, q.Max)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	for _, f := range s.facts() {
		b.WriteString("\n" + f)
	}
	for _, f := range s.Verdict.Failures {
		fmt.Fprintf(&b, "\n%s (%d):", f.Name, f.Count)
		for _, example := range f.Examples {
			b.WriteString("\n  " + example)
		}
	}
	_, err := fmt.Fprintf(w, "%s\n%s\n", b.String(), s.Line)
	if err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
}

// distribution is a line of the latency table.
type distribution struct {
	Name string
	Of   quantiles
}

func (s *summary) distributions() []distribution {
	return []distribution{
		{"latency, from due", s.Latency},
		{"of the accepted", s.AcceptedLatency},
		{"service time", s.ServiceTime},
	}
}

// percentile is one row of the percentiles of both latencies.
type percentile struct {
	Percent  float64  `json:"percent"`
	All      float64  `json:"all_ms"`
	Accepted *float64 `json:"accepted_ms"` // nil: nothing was accepted
}

// percentilesOf returns the percentiles up to the last that has a request beyond it.
func percentilesOf(all, accepted *hdrhistogram.Histogram) (out []percentile) {
	for _, p := range []float64{50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999, 100} {
		if p < 100 && float64(all.TotalCount())*(100-p) < 100 {
			continue
		}
		row := percentile{Percent: p, All: float64(all.ValueAtQuantile(p)) / 1000}
		if accepted.TotalCount() > 0 {
			row.Accepted = new(float64(accepted.ValueAtQuantile(p)) / 1000)
		}
		out = append(out, row)
	}
	return out
}

// facts are the sentences of the summary.
func (s *summary) facts() []string {
	facts := []string{fmt.Sprintf("%s in %.2f s: %.0f requests/s, %.0f accepted/s",
		plural.Count(s.Requests, "request"), s.ElapsedSeconds, s.RequestsPerSecond, s.AcceptedPerSecond)}
	if s.RetriedBusy+s.RetriedUnknown+s.GaveUp > 0 {
		facts = append(facts, fmt.Sprintf("repeated with the same key: %d after 429 or 503, %d after an unknown outcome; given up: %d",
			s.RetriedBusy, s.RetriedUnknown, s.GaveUp))
	}
	if s.RetriedEarly > 0 {
		facts = append(facts, fmt.Sprintf("repeated because the sale was not open yet: %d", s.RetriedEarly))
	}
	if s.Reads != nil {
		facts = append(facts, fmt.Sprintf("%s before the opening, p99 %.1f ms, %d failed", plural.Count(s.Reads.Requests, "read"), s.Reads.Latency.P99, s.Reads.Failures))
	}
	if s.DrainMS != nil {
		facts = append(facts, fmt.Sprintf("every acknowledged order was a row %.0f ms after the last answer", *s.DrainMS))
	} else {
		facts = append(facts, "not every acknowledged order became a row in the time allowed")
	}
	for i := range s.Kills {
		facts = append(facts, s.Kills[i].sentence())
	}
	facts = append(facts, "checked in "+s.CheckedIn)
	return append(facts, s.Notes...)
}
