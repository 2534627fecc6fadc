//go:build chaos && unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/internal/verify/history"
)

const (
	// patience bounds every wait for an expected event.
	patience = 2 * time.Minute
	// lookEvery is the pause between two checks of a condition.
	lookEvery = 10 * time.Millisecond
	// afterwards is the number of orders that must be accepted after the recovery.
	afterwards = 50
)

// errNever means that an expected event did not happen in time.
var errNever = errors.New("chaos: it did not happen in time")

// run is one run of one fault.
type run struct {
	t     *testing.T
	fault *fault
	plan  *plan
	shop  *shop
	load  *load
	rec   *history.Recorder
	// balance is the load balancer between the buyers and the API processes; it may be nil.
	balance *balancer
	// order and user are an order, and its buyer, of which the routes are tried while the
	// database is broken.
	order, user string

	answered atomic.Int64 // calls that were answered, whatever the answer
	accepted atomic.Int64 // purchases that made an order, not repeats of them
	gaveUp   atomic.Int64 // purchases whose outcome their buyer never learned
	rewound  atomic.Int64 // how often Redis has restarted with possibly older data
	stopped  atomic.Int64 // since when every sale is stopped, by now; 0: they are not
	against  atomic.Int64 // purchases that began while they were stopped, and made an order

	mu       sync.Mutex
	spans    []*span // parts of the run whose calls are measured
	tally    tally
	began    int64    // when the first strike happened; 0: not yet
	watches  []*watch // one for each end of a fault
	failures []string // failures beyond the checker's findings
	voids    []string // the reasons why the run is void
	// discarded are orders that the operator has discarded.
	discarded []string
	notes     []string       // remarks for the table
	codes     map[string]int // answers by status and code
	fences    []history.FenceSample
	ledgers   []history.LedgerSample // of faults that read them during the strike
}

// tally counts events by the phase of the run.
type tally struct {
	Calls int64 `json:"calls"`
	// Accepted counts the answers that created an order, without repeats: before the first
	// strike, during the strike, and after it.
	Before int64 `json:"accepted_before"`
	During int64 `json:"accepted_during"`
	After  int64 `json:"accepted_after"`
	// Strikes is how often the fault struck.
	Strikes int64 `json:"strikes"`
	// Unknown is the number of calls whose outcome is unknown.
	Unknown int64 `json:"unknown"`
	// Redelivered is the number of expired leases.
	Redelivered int64 `json:"redelivered"`
	// Recovery holds the times from each end of a fault to the first definite answer on each
	// item, in seconds; of each the longest of the items.
	Recovery []float64 `json:"recovery_s"`

	phase int // 0 before, 1 during, 2 after
}

// watch waits for the first definite answer on each item to a call that began after a given
// moment.
type watch struct {
	since int64
	first map[string]int64
	all   chan struct{} // closed when every item was answered
	items int
}

// now is the run's clock, in nanoseconds since its beginning.
func (r *run) now() int64 { return r.rec.Now() }

// caller returns a client of the shop's API processes.
func (r *run) caller() (*caller, error) {
	c, err := newCaller(r.shop.urls())
	if err == nil {
		c.balance = r.balance
	}
	return c, err
}

// saw adds a call to the history and the counts.
func (r *run) saw(h *history.Call) {
	r.rec.Record(h)
	r.answered.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.Calls++
	for _, s := range r.spans {
		s.saw(h)
	}
	if h.Status == 0 {
		r.codes["0"]++
	} else {
		r.codes[fmt.Sprintf("%d %s", h.Status, h.Code)]++
	}
	if h.Op != history.Buy {
		return
	}
	if !h.Known() {
		r.tally.Unknown++
	}
	if h.Accepted() && !h.Replayed {
		r.accepted.Add(1)
		if since := r.stopped.Load(); since > 0 && h.Start >= since {
			r.against.Add(1)
		}
		switch r.tally.phase {
		case 0:
			r.tally.Before++
		case 1:
			r.tally.During++
		default:
			r.tally.After++
		}
	}
	if !definite(h) {
		return
	}
	for _, w := range r.watches {
		if _, seen := w.first[h.Item]; seen || h.Start < w.since {
			continue
		}
		w.first[h.Item] = h.End
		if len(w.first) == w.items {
			close(w.all)
		}
	}
}

// struck records a strike of the fault and logs what.
func (r *run) struck(what string) {
	r.t.Helper()
	at := r.now()
	r.t.Logf("%8.3f s: %s", float64(at)/1e9, what)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tally.Strikes++; r.tally.Strikes == 1 {
		r.began, r.tally.phase = at, 1
	}
}

// over records that the fault has ended. The recovery time starts here.
func (r *run) over() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watches = append(r.watches, &watch{
		since: r.now(), first: make(map[string]int64), all: make(chan struct{}), items: len(r.plan.Items),
	})
}

// recovered waits until each item has had a definite answer to a call that began after the last
// over.
func (r *run) recovered(ctx context.Context) {
	r.t.Helper()
	r.mu.Lock()
	if len(r.watches) == 0 {
		r.mu.Unlock()
		return
	}
	w := r.watches[len(r.watches)-1]
	r.mu.Unlock()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-w.all:
	case <-limit.C:
		r.t.Fatalf("%v: no definite answer on every item after the fault", errNever)
	case <-ctx.Done():
		r.t.Fatal(context.Cause(ctx))
	}
}

// answers waits for n more answers of any kind.
func (r *run) answers(ctx context.Context, n int) {
	r.t.Helper()
	want := r.answered.Load() + int64(n)
	r.eventually(ctx, fmt.Sprintf("%d more answers", n), func() bool { return r.answered.Load() >= want })
}

// eventually waits for a condition, and fails the test if it does not become true in time.
func (r *run) eventually(ctx context.Context, what string, ok func() bool) {
	r.t.Helper()
	if err := r.await(ctx, patience, ok); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

// await waits up to within for a condition. Errors: errNever, and the cause of ctx's end.
func (r *run) await(ctx context.Context, within time.Duration, ok func() bool) error {
	limit := time.NewTimer(within)
	defer limit.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			return fmt.Errorf("%w: %v", errNever, within)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// lasts waits for the duration of the fault.
func (r *run) lasts(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// failf records a failure beyond the checker's findings.
func (r *run) failf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// voidf records why the run is void.
func (r *run) voidf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.voids = append(r.voids, fmt.Sprintf(format, args...))
}

// notef adds a remark to the table.
func (r *run) notef(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// count is the number of answers with this status and code.
func (r *run) count(status int, code string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.codes[fmt.Sprintf("%d %s", status, code)]
}

// phases runs the purchases from the first to the last.
func (r *run) phases(ctx context.Context) {
	r.t.Helper()
	p, l := r.plan, r.load
	l.start(ctx)
	defer l.stop()
	l.open(p.Baseline, 0)
	r.eventually(ctx, "the baseline's purchases", func() bool { return l.next.Load() >= int64(p.Baseline) })
	r.answers(ctx, buyersAtOnce)

	lasts := r.fault.Lasts.Seconds() * float64(max(1, len(p.Points)))
	l.open(p.Strike, time.Duration(lasts/float64(p.Strike-p.Baseline)*1e9))
	r.fault.Strike(ctx, r)
	if r.t.Failed() {
		return
	}
	r.mu.Lock()
	r.tally.phase = 2
	r.mu.Unlock()
	r.recovered(ctx)

	l.open(p.Purchases, 0)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-l.done:
	case <-limit.C:
		r.t.Fatalf("%v: the buyers were not all served", errNever)
	case <-ctx.Done():
		r.t.Fatal(context.Cause(ctx))
	}
}

// judgeVoid records why the run is void, if it is.
func (r *run) judgeVoid() {
	c := r.tally
	if c.Strikes == 0 {
		r.voidf("the fault never struck")
	}
	if c.Before == 0 {
		r.voidf("nothing was accepted before the fault")
	}
	if c.During == 0 && !r.fault.Shuts {
		r.voidf("nothing was accepted during the fault")
	}
	if c.After < afterwards {
		r.voidf("only %d orders were accepted after the fault", c.After)
	}
	if r.fault.Redelivers && c.Redelivered == 0 {
		r.voidf("no order was delivered again")
	}
}
