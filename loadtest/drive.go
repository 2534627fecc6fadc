package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/wire"
)

const (
	// answerTimeout bounds one attempt. The service waits at most 10 s for a commit.
	answerTimeout = 15 * time.Second
	// maxRetries bounds how often one request is sent again.
	maxRetries = 20
	firstPause = 50 * time.Millisecond // before a retry where the service states no time
	longPause  = 2 * time.Second
	// staleAfter is how long a connection may idle before it is replaced: a server may close
	// an idle connection just as a request leaves on it. The service gives the first request
	// of a connection 4 s.
	staleAfter = 3 * time.Second
)

// outcome is the result of one shot.
type outcome struct {
	answer   answer        // the last attempt's
	attempts int           // 0: never sent
	latency  time.Duration // from the due time to the end of the last answer
	service  time.Duration // from sending the last attempt to the end of its answer
	done     time.Duration // end of the last answer, after the start
}

// answerKey groups answers for the count.
type answerKey struct {
	status int
	code   string
}

// result has the answers that the crowd received.
type result struct {
	outcomes       []outcome // by shot
	answers        map[answerKey]int64
	retriedBusy    int64 // attempts repeated after 429 or 503
	retriedUnknown int64 // attempts repeated because the outcome was unknown
	retriedEarly   int64 // attempts repeated because the sale was not open yet
	elapsed        time.Duration
	reads          readResult
}

// driver sends a plan's requests.
type driver struct {
	plan *plan
	// targets are the service's addresses. The connections are spread over them,
	// and one that fails is replaced by one to the next.
	targets []wire.Target
	tokens  []string // by buyer
	async   bool
	timeout time.Duration
	live    *counters
	// victims are killed while the crowd buys so many orders.
	victims []victim
	orders  int
	// opens is when the sale opens, if the plan has a lobby.
	opens time.Time
	rec   *recorder // nil: drive makes one

	plannedKills   *plannedKills
	sched          *schedule
	outcomes       []outcome
	retriedBusy    atomic.Int64
	retriedUnknown atomic.Int64
	retriedEarly   atomic.Int64
}

// drive opens the connections, sends everything, and returns when each request has its
// final outcome. When the context ends it returns the outcomes so far, with the context's
// error.
func (d *driver) drive(ctx context.Context, connections int) (*result, error) {
	workers := make([]*worker, min(connections, len(d.plan.shots)))
	for i := range workers {
		workers[i] = &worker{
			d: d, route: "/v1/items/" + d.plan.item + "/orders",
			body:   fmt.Appendf(nil, `{"quantity":%d}`, d.plan.quantity),
			counts: make(map[answerKey]int64), at: i % len(d.targets),
		}
	}
	defer func() {
		for _, w := range workers {
			w.hangUp()
		}
	}()
	d.outcomes = make([]outcome, len(d.plan.shots))
	d.plannedKills = newPlannedKills(d.victims, d.orders, len(workers), len(d.targets))
	if d.rec == nil {
		d.rec = newRecorder(d.plan)
	}
	lobby := new(lobby)
	if d.plan.opening > 0 {
		d.begin(d.opens.Add(-d.plan.opening))
		lobby = d.openLobby(ctx)
		defer lobby.leave()
		opened := time.AfterFunc(time.Until(d.opens), func() { d.live.enter("buying") })
		defer opened.Stop()
		if err := untilConnect(ctx, d.opens); err != nil {
			return nil, err
		}
	}
	if err := connect(ctx, workers); err != nil {
		return nil, err
	}
	if d.plan.opening == 0 {
		d.begin(time.Now())
	}
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.work(ctx) })
	}
	wg.Wait()
	r := &result{
		outcomes: d.outcomes, answers: make(map[answerKey]int64), elapsed: time.Since(d.sched.start) - d.plan.opening,
		retriedBusy: d.retriedBusy.Load(), retriedUnknown: d.retriedUnknown.Load(), retriedEarly: d.retriedEarly.Load(),
	}
	for _, w := range workers {
		for k, n := range w.counts {
			r.answers[k] += n
		}
	}
	r.reads = lobby.leave()
	return r, context.Cause(ctx)
}

// begin sets the start of the run.
func (d *driver) begin(start time.Time) {
	d.sched = newSchedule(start, d.plan.shots)
	d.rec.begin(start)
	d.plannedKills.begin(start, d.live)
}

// connect opens every worker's connection before the start, as a proxy in front
// of a shop would have them open. A few at a time, so that the listener's
// backlog does not overflow.
func connect(ctx context.Context, workers []*worker) error {
	const together = 32
	errs := make([]error, len(workers))
	slots := make(chan struct{}, together)
	var wg sync.WaitGroup
	for i, w := range workers {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = w.dial(ctx)
			<-slots
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("open connection %d of %d: %w", i+1, len(workers), err)
		}
	}
	return nil
}

// worker owns one connection.
type worker struct {
	d      *driver
	route  string
	body   []byte
	counts map[answerKey]int64

	q      wire.Request
	at     int // index of the target
	conn   *wire.Conn
	unhook func() bool // ends the watch that closes conn with the context
	used   time.Time
	// written is when the present attempt's request was written, if it was and there
	// are victims.
	written time.Time
}

func (w *worker) work(ctx context.Context) {
	for {
		t, ok := w.d.sched.take(ctx)
		if !ok {
			return
		}
		sent := time.Now()
		w.written = time.Time{}
		a := w.send(ctx, t)
		if ctx.Err() != nil {
			return
		}
		end := time.Now()
		w.counts[answerKey{a.status, a.code}]++
		w.d.rec.sent(sent)
		w.d.rec.answered(end, &a)
		w.d.plannedKills.seen(&a, attempt{w.at, sent, w.written, end})
		w.d.note(t, a, sent, end)
		if a.status == 0 {
			w.moveOn()
		}
	}
}

// moveOn makes the next attempt go to the next target.
func (w *worker) moveOn() {
	w.hangUp()
	w.at = (w.at + 1) % len(w.d.targets)
}

// send makes one attempt.
func (w *worker) send(ctx context.Context, t ticket) answer {
	d := w.d
	buy := &d.plan.purchases[d.plan.shots[t.shot].purchase]
	if w.conn == nil || !w.conn.Usable() || time.Since(w.used) > staleAfter {
		if err := w.dial(ctx); err != nil {
			return failed(err)
		}
	}
	q := w.q.Start("POST", d.targets[w.at], w.route).
		Header("Authorization", d.tokens[buy.buyer]).
		Header("Content-Type", "application/json").
		Header("Idempotency-Key", buy.key)
	if d.async {
		q.Header("Prefer", "respond-async")
	}
	req, err := q.Body(w.body)
	if err != nil {
		return failed(err) // checked before the start: see checkTokens
	}
	res, err := w.conn.Do(req)
	w.used = time.Now()
	if err != nil {
		return failed(err)
	}
	a := read(res, expected{d.plan.item, d.plan.buyers[buy.buyer], d.plan.quantity})
	if d.plan.opening > 0 && a.code == codeNotOpen {
		a.kind, a.retryAfter = kindBusy, retryAfter(res.Header("Retry-After"))
	}
	return a
}

// codeNotOpen is the answer to a purchase before the opening. With a lobby, it can come
// when two clocks differ; the buyer then tries again.
const codeNotOpen = "sale_not_open"

// dial replaces the worker's connection.
func (w *worker) dial(ctx context.Context) error {
	w.hangUp()
	bound := min(answerTimeout, w.d.timeout)
	dctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	conn, err := wire.Dial(dctx, w.d.targets[w.at])
	if err != nil {
		return err
	}
	conn.Timeout = bound
	if len(w.d.victims) > 0 {
		conn.OnSent = func() {
			w.written = time.Now()
			w.d.plannedKills.sent(ctx, w.at)
		}
	}
	w.conn, w.used = conn, time.Now()
	// An interrupt ends the attempts in flight immediately.
	w.unhook = context.AfterFunc(ctx, func() { closeQuietly(conn) })
	return nil
}

func (w *worker) hangUp() {
	if w.conn != nil {
		w.unhook()
		closeQuietly(w.conn)
		w.conn = nil
	}
}

// closeQuietly closes what has nothing left to lose: whether closing a
// connection works changes no outcome.
func closeQuietly(c io.Closer) {
	if err := c.Close(); err != nil {
		return
	}
}

// note keeps an attempt's answer, or arranges the next attempt.
func (d *driver) note(t ticket, a answer, sent, end time.Time) {
	done := end.Sub(d.sched.start)
	due := d.plan.shots[t.shot].due
	if a.kind == kindBusy || a.kind == kindUnknown {
		next := done + pause(t.attempt, a.retryAfter)
		if t.attempt < maxRetries && next <= due+d.timeout {
			switch {
			case a.code == codeNotOpen:
				d.retriedEarly.Add(1)
			case a.kind == kindBusy:
				d.retriedBusy.Add(1)
			default:
				d.retriedUnknown.Add(1)
			}
			d.live.retried.Add(1)
			d.sched.again(t, next)
			return
		}
	}
	d.outcomes[t.shot] = outcome{answer: a, attempts: t.attempt + 1, latency: done - due, service: end.Sub(sent), done: done}
	d.rec.settled(end, d.plan.shots[t.shot].purchase, a.kind, done-due)
	d.live.settle(a.kind)
	d.sched.settle()
}

// pause is the time before the next attempt: the time that the service stated, or one that
// doubles. A random part spreads the crowd's retries.
func pause(attempt int, stated time.Duration) time.Duration {
	p := stated
	if p == 0 {
		p = min(longPause, firstPause<<min(attempt, 10))
	}
	return p + rand.N(p/4+1)
}

// checkTokens builds one request per buyer, so that none fails during the run.
func (d *driver) checkTokens() error {
	var q wire.Request
	var errs []error
	for i, token := range d.tokens {
		if _, err := q.Start("POST", d.targets[0], "/").Header("Authorization", token).NoBody(); err != nil {
			errs = append(errs, fmt.Errorf("token of buyer %d: %w", i, err))
			break
		}
	}
	return errors.Join(errs...)
}
