package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/runner"
	"flashsale/internal/pause"
	"flashsale/internal/wire"
)

const (
	// item is what every contender sells.
	item = "drop"
	// repeatEvery is which of the accepted purchases are sent a second time, with their key.
	repeatEvery = 16
	// answerLimit bounds the wait for one answer.
	answerLimit = 30 * time.Second
	// backOff is the pause after an answer that is neither a success nor a refusal.
	backOff = 20 * time.Millisecond
	// killWithin is the longest time from the answer that completes the goal to the kill.
	killWithin = 10 * time.Millisecond
	// lookEvery is the pause between two looks at a sale that settles.
	lookEvery = 250 * time.Millisecond
	// settleLimit bounds the wait for a sale to settle while it still changes.
	settleLimit = 10 * time.Minute
)

// killed is the result of a kill run.
type killed struct {
	verdict
	answered    int           // purchases that were answered with success
	interrupted int           // requests without an answer
	rows        int           // orders in the database at the end
	resumed     time.Duration // longest time from a kill until the next success
	settled     time.Duration // from the end of the load until the last change
}

// sale is what a kill run sells.
type sale struct {
	units       int64 // a reserve comes on top; see total
	kills       int   // at equal distances of what is sold
	connections int
	limit       time.Duration // for each part between two kills
}

// total is the stock. Each kill may strand a unit of every connection, and the item must not be
// sold out before the last kill.
func (s sale) total() int64 { return s.units + int64(s.kills*s.connections) }

// killRun sells an item while the contender's processes are killed and restarted. Every second
// buyer whose request was interrupted repeats it with the same key; the others do not return.
// Then it waits until the sale has settled, and judges it.
func killRun(ctx context.Context, c contender, service string, crowd *load.Crowd, plan sale) (k killed, err error) {
	s, err := newRig(ctx, c, service)
	if err != nil {
		return k, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.stock.put(ctx, item, plan.total()); err != nil {
		return k, err
	}
	target, err := wire.ParseTarget("http://" + s.addr)
	if err != nil {
		return k, err
	}
	b := &buyers{
		crowd: crowd, target: target, sale: plan,
		p: load.Purchases{Items: []string{item}, Async: c.answer == http.StatusAccepted},
	}
	for i := range plan.kills {
		if err := b.untilKilled(ctx, plan.units*int64(i+1)/int64(plan.kills+1), s.kill); err != nil {
			return k, err
		}
		k.interrupted += len(b.unanswered)
		k.resumed = max(k.resumed, b.resumed)
		b.killed = time.Now()
		if err := s.start(ctx); err != nil {
			return k, fmt.Errorf("restart: %w", err)
		}
	}
	if err := b.run(ctx); err != nil {
		return k, err
	}
	k.answered, k.resumed = len(b.answers), max(k.resumed, b.resumed)
	err = s.settle(ctx, plan.total(), b.answers, &k)
	return k, err
}

// buyers are a closed loop that remembers every answer.
type buyers struct {
	crowd   *load.Crowd
	target  wire.Target
	p       load.Purchases
	sale    sale
	next    atomic.Int64 // number of the next purchase
	soldOut atomic.Bool

	mu         sync.Mutex
	answers    []answer
	unanswered []int64       // numbers of the purchases without an answer since the last kill
	goal       int           // answers after which kill is called
	kill       func() error  // nil: never
	killed     time.Time     // when the last kill was
	resumed    time.Duration // from then until the next success
}

// untilKilled buys until there are so many answers, and then kills the contender.
func (b *buyers) untilKilled(ctx context.Context, answers int64, kill func() error) error {
	b.goal, b.kill = int(answers), kill
	defer func() { b.kill = nil }()
	err := b.run(ctx)
	switch {
	case err != nil:
		return err
	case len(b.answers) < b.goal:
		return fmt.Errorf("only %d of %d purchases had succeeded when all buyers had stopped", len(b.answers), b.goal)
	case len(b.unanswered) == 0:
		return errors.New("the kill interrupted no request")
	}
	return nil
}

// run repeats every second purchase that is without an answer, and then sends new ones until
// the item is sold out, an exchange fails, or the time is over.
func (b *buyers) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.sale.limit)
	defer cancel()
	repeats := make(chan int64, len(b.unanswered))
	for i, n := range b.unanswered {
		if i%2 == 0 {
			repeats <- n
		}
	}
	close(repeats)
	b.unanswered, b.resumed = nil, 0
	return <-runner.Run(b.sale.connections, func(int) error {
		err := b.buy(ctx, repeats)
		if b.kill != nil && errors.As(err, new(*brokenError)) {
			return nil // the kill is meant to break every exchange
		}
		return err
	})
}

// brokenError is an exchange without an answer.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// buy sends purchases over one connection, first the repeats, until the item is sold out, ctx
// ends or an exchange fails.
func (b *buyers) buy(ctx context.Context, repeats <-chan int64) (err error) {
	conn, err := wire.Dial(ctx, b.target)
	if err != nil {
		return &brokenError{err}
	}
	conn.Timeout = answerLimit
	defer conn.Close() //nolint:errcheck // every answer on it has been read
	for n := range repeats {
		if _, err := b.one(ctx, conn, n); err != nil {
			return err
		}
	}
	for ctx.Err() == nil && !b.soldOut.Load() {
		n := b.next.Add(1) - 1
		ok, err := b.one(ctx, conn, n)
		if err == nil && ok && n%repeatEvery == 0 {
			_, err = b.one(ctx, conn, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// one sends purchase n once, and reports whether it succeeded.
func (b *buyers) one(ctx context.Context, conn *wire.Conn, n int64) (ok bool, err error) {
	var req bytes.Buffer
	b.crowd.Request(&req, b.target, &b.p, n)
	res, err := conn.Do(req.Bytes())
	if err != nil {
		b.mu.Lock()
		b.unanswered = append(b.unanswered, n)
		b.mu.Unlock()
		return false, &brokenError{fmt.Errorf("purchase %d: %w", n, err)}
	}
	switch res.Status {
	case http.StatusCreated, http.StatusAccepted:
		var order struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(res.Body, &order); err != nil || order.ID == "" {
			return false, fmt.Errorf("purchase %d: answer %.200q without an order: %w", n, res.Body, err)
		}
		return true, b.note(ctx, answer{load.Key(n), order.ID})
	case http.StatusConflict:
		if bytes.Contains(res.Body, []byte("sold_out")) {
			b.soldOut.Store(true)
			return false, nil
		}
	case http.StatusServiceUnavailable:
		pause.For(ctx, backOff)
		return false, nil
	}
	return false, fmt.Errorf("purchase %d: answer %d %.200q", n, res.Status, res.Body)
}

// note remembers a success, and kills the contender soon after it completes the goal. The pause
// makes the moment independent of the purchase that was just answered.
func (b *buyers) note(ctx context.Context, a answer) error {
	b.mu.Lock()
	b.answers = append(b.answers, a)
	if b.resumed == 0 && !b.killed.IsZero() {
		b.resumed = time.Since(b.killed)
	}
	reached := b.kill != nil && len(b.answers) == b.goal
	b.mu.Unlock()
	if reached {
		pause.For(ctx, rand.N(killWithin))
		return b.kill()
	}
	return nil
}

// settle waits until nothing is wrong, or until nothing has changed for the contender's
// patience, and completes k.
func (s *rig) settle(ctx context.Context, total int64, answers []answer, k *killed) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	began := time.Now()
	for first := true; ; first = false {
		v, rows, err := s.verdict(ctx, total, answers)
		if err != nil {
			return err
		}
		now := time.Since(began)
		if first || v != k.verdict || rows != k.rows {
			k.verdict, k.rows, k.settled = v, rows, now
		}
		if v.clean() || now-k.settled > s.contender.patience {
			return nil
		}
		if err := pause.OrCause(ctx, lookEvery); err != nil {
			return fmt.Errorf("still unsettled (%s): %w", v, err)
		}
	}
}

// verdict judges the sale as it is now. The stock is read first: an order that is placed in
// between then counts as stranded for a moment and never as oversold.
func (s *rig) verdict(ctx context.Context, total int64, answers []answer) (verdict, int, error) {
	left, err := s.stock.left(ctx, item)
	if err != nil {
		return verdict{}, 0, err
	}
	rows, err := readRows(ctx, s.db, item)
	if err != nil {
		return verdict{}, 0, err
	}
	return judge(total, left, answers, rows), len(rows), nil
}
