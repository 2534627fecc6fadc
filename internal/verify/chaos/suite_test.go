//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"flashsale/internal/verify/history"
)

// tries bounds how often a fault is tried if its runs are void.
const tries = 3

// TestFaults runs each fault, as a subtest with the fault's ID.
func TestFaults(t *testing.T) {
	if err := os.MkdirAll(results, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d; results in %s", options.seed, results)
	defer func() {
		table.mu.Lock()
		defer table.mu.Unlock()
		if len(table.rows) > 0 {
			fmt.Fprintf(os.Stdout, "\n%s\nresults: %s\n\n", render(table.rows), results)
		}
	}()
	binary(t) // here, so that its time does not count for the first fault
	// Not parallel: each fault has the machine for itself.
	ran := 0
	for _, f := range faults {
		if !f.chosen() {
			continue
		}
		t.Run(f.ID, func(t *testing.T) {
			ran++
			for round := range options.rounds {
				f.try(t, round)
			}
		})
	}
	// A -run pattern that matches no fault would pass.
	if ran == 0 {
		t.Error("no fault was run: none of this name is in the chosen set")
	}
}

// chosen reports whether the flags choose the fault. The small set on Postgres has only the faults
// of Postgres itself, because the others are in that of SQLite.
func (f *fault) chosen() bool {
	if f.DB != "" && f.DB != options.db {
		return false
	}
	return !options.small || f.Small && (options.db == "sqlite" || f.DB == options.db)
}

// try runs a fault until a run is not void. Each try of each round has its own seed.
func (f *fault) try(t *testing.T, round int) {
	t.Helper()
	for n := range tries {
		seed := options.seed + uint64(round) + uint64(n)<<32
		verdict := ""
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			verdict = f.once(t, seed, round)
		})
		if verdict != void {
			return
		}
	}
	t.Errorf("%s: void %d times, which is never passed", f.ID, tries)
}

// once makes one run and judges it.
func (f *fault) once(t *testing.T, seed uint64, round int) (verdict string) {
	t.Helper()
	folder := filepath.Join(results, fmt.Sprintf("%s-%d", f.ID, seed))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	o := &outcome{Fault: f.ID, Name: f.Name, Seed: seed, Round: round, Engine: options.engine, DB: options.db, Verdict: failed}
	r := &run{t: t, fault: f, plan: newPlan(f, seed, options.full), codes: make(map[string]int)}
	defer func() {
		// Also if a failure ended the run early.
		verdict = o.Verdict
		r.mu.Lock()
		o.tally, o.Answers = r.tally, r.codes
		o.Void, o.Failures, o.Notes = r.voids, r.failures, r.notes
		r.mu.Unlock()
		o.Took = time.Since(began).Seconds()
		if err := o.write(folder); err != nil {
			t.Errorf("write results: %v", err)
		}
	}()
	text, err := r.plan.text()
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "plan.json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "history.jsonl")
	if r.rec, err = history.Create(path); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wholeRun)
	defer cancel()
	r.shop = openShop(t, f)
	if f.Balanced {
		r.balance = newBalancer(t, r.shop.urls())
	}
	r.createItems(ctx)
	o.SetUp = time.Since(began).Seconds()
	final := r.live(ctx)
	if err := r.rec.Close(); err != nil {
		t.Fatal(err)
	}
	if err := history.WriteFinal(filepath.Join(folder, "final.json"), final); err != nil {
		t.Fatal(err)
	}
	r.judge(ctx, o, path, final)
	return o.Verdict
}

// live runs the fault and reads the final state.
func (r *run) live(ctx context.Context) *history.Final {
	r.t.Helper()
	looking, stop := context.WithCancel(ctx)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		r.sample(looking)
	}()
	defer func() {
		stop()
		<-looked
	}()
	r.load = newLoad(r)
	r.phases(ctx)
	r.drain(ctx)
	stop()
	<-looked
	if r.fault.Redelivers {
		_, r.tally.Redelivered = r.shop.counts(ctx)
	}
	for _, w := range r.watches {
		longest := int64(0)
		for _, at := range w.first {
			longest = max(longest, at-w.since)
		}
		if len(w.first) == w.items {
			r.tally.Recovery = append(r.tally.Recovery, float64(longest)/1e9)
		}
	}
	final, err := r.final(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return final
}

// judge determines the verdict.
func (r *run) judge(ctx context.Context, o *outcome, path string, final *history.Final) {
	r.t.Helper()
	calls, err := history.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	verdict := history.Check(calls, final)
	o.Checker = &verdict
	if r.fault.Expect != nil {
		r.fault.Expect(ctx, r)
	}
	r.expectPostgres(ctx)
	for code, n := range r.codes {
		if code[0] == '5' && code[:3] != "503" {
			r.failf("%d answers %s", n, code)
		}
	}
	if n := r.gaveUp.Load(); n > 0 {
		r.failf("%d buyers never learned what became of their purchase", n)
	}
	if longest, limit := r.tally.longest(), r.fault.RecoversIn; longest > limit.Seconds() {
		r.notef("recovery took longer than %v", limit)
		if options.times {
			r.failf("recovery took %.2f s, promised are %v", longest, limit)
		}
	}
	r.judgeVoid()
	switch {
	case len(r.failures) > 0 || !o.Checker.Passed || r.t.Failed():
		o.Verdict = failed
		r.t.Errorf("%s, seed %d: %q\n%s\n%+v", r.fault.ID, o.Seed, r.failures, o.Checker.Line(), o.Checker.Findings)
	case len(r.voids) > 0:
		o.Verdict = void
		r.t.Logf("void: %q", r.voids)
	default:
		o.Verdict = passed
		r.t.Logf("%s", o.Checker.Line())
	}
}
