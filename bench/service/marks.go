package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
)

const (
	// marksOrders is how many orders the sale has accepted at scale 1.
	marksOrders = 1_000_000
	// marksRounds is how often the quiet phase and the one with returning units take turns.
	marksRounds = 3
	// marksEvery is the time between two units that return.
	marksEvery = 100 * time.Millisecond
	// marksSellLimit bounds the time until everything is sold.
	marksSellLimit = 10 * time.Minute
	// marksRate is the least part of the quiet rate that has to remain, and marksShare the
	// largest part of its time that Redis may spend on marks.
	marksRate  = 0.85
	marksShare = 0.05
)

// marksCommands are the commands that purchase scripts run for marks. The queue uses STRLEN and
// HLEN too; all of their time counts here.
var marksCommands = []string{"append", "getrange", "strlen", "hlen", "hscan"}

// returning is a sold-out sale of which units return.
type returning struct {
	*rig

	item   string
	orders []string // unpaid, to be cancelled one after the other
	holder int      // the buyer of the first of them
	next   int64    // number of the next purchase
}

// measureMarks compares the rate of sold-out answers while a unit returns every 100 ms with the
// rate while none does, on 1 and on 4 API processes that share the load.
func measureMarks(ctx context.Context, s *sizes) (err error) {
	r, err := s.newRig(ctx, history.History{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	sale := &returning{rig: r, item: "returning"}
	if err := sale.sellOut(ctx, s); err != nil {
		return fmt.Errorf("sell out: %w", err)
	}
	procs := []*process.Process{r.world.API}
	defer func() {
		for _, p := range procs[1:] { // the first is the rig's
			err = errors.Join(err, p.Stop())
		}
	}()
	for _, n := range []int{1, 4} {
		for len(procs) < n {
			p, err := r.world.Another(ctx)
			if err != nil {
				return err
			}
			procs = append(procs, p)
		}
		if err := sale.compare(ctx, s, procs); err != nil {
			return fmt.Errorf("%d processes: %w", n, err)
		}
	}
	return nil
}

// sellOut sells the whole sale. The orders that are cancelled later are bought first.
func (r *returning) sellOut(ctx context.Context, s *sizes) (err error) {
	units := s.scaled(marksOrders)
	// One more than needed: a buyer at the limit gets user_limit, which Redis answers.
	if err := r.createLimitedItem(ctx, r.item, int64(units), 3600, int64(units/load.Buyers+2)); err != nil {
		return err
	}
	spare := 2 * marksRounds * int(s.o.phase/marksEvery+10)
	if r.orders, err = r.unpaid(ctx, r.world.API.Addr, r.item, min(spare, units)); err != nil {
		return err
	}
	for began := time.Now(); ; {
		b, err := r.crowd.Buy(ctx, load.Purchases{
			Addr: r.world.API.Addr, Items: []string{r.item}, Connections: s.o.connections, Async: true, First: r.next,
		}, time.Second)
		if err != nil {
			return err
		}
		r.next = b.Next
		if b.Codes[http.StatusConflict] > 0 {
			break
		}
		if time.Since(began) > marksSellLimit {
			return fmt.Errorf("units are left after %v", marksSellLimit)
		}
	}
	if _, err := r.waitDrained(ctx); err != nil {
		return err
	}
	return r.checkSoldOut(ctx)
}

// checkSoldOut fails unless nothing is left: a refusal may have other reasons.
func (r *returning) checkSoldOut(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.world.API.Addr+"/v1/items/"+r.item, http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	var item struct {
		Left *int64 `json:"stock_left"`
	}
	err = errors.Join(json.NewDecoder(res.Body).Decode(&item), res.Body.Close())
	if err == nil && (item.Left == nil || *item.Left != 0) {
		err = fmt.Errorf("units are left: %s", res.Status)
	}
	return err
}

// compare measures the phases in turn and prints the medians of the rounds' ratios.
func (r *returning) compare(ctx context.Context, s *sizes, procs []*process.Process) error {
	var ratios, shares []float64
	for range marksRounds {
		quiet, err := r.phase(ctx, s, procs)
		if err != nil {
			return err
		}
		stop := r.giveBack(ctx)
		busy, err := r.phase(ctx, s, procs)
		returned, failed := stop()
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		s.say("%d processes, quiet: %s", len(procs), quiet)
		s.say("%d processes, %d units returned: %s", len(procs), returned, busy)
		ratios, shares = append(ratios, busy.rate/quiet.rate), append(shares, busy.share)
	}
	s.atLeast(fmt.Sprintf("sold_out_returning/quiet_%d", len(procs)), median(ratios), marksRate)
	s.atMost(fmt.Sprintf("redis_marks_share_%d", len(procs)), median(shares), marksShare)
	return nil
}

// soldOutPhase is the result of one phase.
type soldOutPhase struct {
	rate       float64 // refusals a second
	share      float64 // part of its time that Redis spent on marks
	asked      float64 // part of the purchases that went to Redis
	api, redis float64 // processor time in us per purchase
}

func (p *soldOutPhase) String() string {
	return fmt.Sprintf("%.0f/s, of which %.2f%% asked Redis; cpu per purchase: api %.1f us, redis %.1f us; %.2f%% of Redis's time for marks",
		p.rate, 100*p.asked, p.api, p.redis, 100*p.share)
}

// phase sends purchases to all processes for a time.
func (r *returning) phase(ctx context.Context, s *sizes, procs []*process.Process) (*soldOutPhase, error) {
	_, asked, err := batches(ctx, procs)
	if err := errors.Join(err, r.redis.ConfigResetStat(ctx).Err()); err != nil {
		return nil, err
	}
	api, redis := -used(procs...), -used(r.world.Redis)
	began := time.Now()
	loads, errs := make([]*load.Bought, len(procs)), make([]error, len(procs))
	const apart = 1 << 40 // each process has keys of its own
	var all sync.WaitGroup
	for i, p := range procs {
		all.Go(func() {
			loads[i], errs[i] = r.crowd.Buy(ctx, load.Purchases{
				Addr: p.Addr, Items: []string{r.item}, Connections: max(1, s.o.connections/len(procs)), First: r.next + int64(i)*apart,
			}, s.o.phase)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	took := time.Since(began)
	api, redis = api+used(procs...), redis+used(r.world.Redis)
	_, askedNow, err := batches(ctx, procs)
	if err != nil {
		return nil, err
	}
	phase := &soldOutPhase{}
	next, sent := r.next, int64(0)
	for i, b := range loads {
		phase.rate += b.Rate(http.StatusConflict)
		end := b.Next - int64(i)*apart
		sent += end - r.next
		next = max(next, end)
	}
	r.next = next
	spent, err := r.spent(ctx)
	if err != nil {
		return nil, err
	}
	phase.share = spent.Seconds() / took.Seconds()
	phase.asked = (askedNow - asked) / float64(sent)
	phase.api = float64(api.Microseconds()) / float64(sent)
	phase.redis = float64(redis.Microseconds()) / float64(sent)
	return phase, nil
}

// used is the processor time that processes have used so far.
func used(procs ...*process.Process) (sum time.Duration) {
	for _, p := range procs {
		sum += p.CPU()
	}
	return sum
}

// spent is the time that Redis has spent on the commands for marks since the statistics were reset.
func (r *returning) spent(ctx context.Context) (time.Duration, error) {
	text, err := r.redis.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for line := range strings.Lines(text) {
		for _, name := range marksCommands {
			var calls, usec int64
			figures, ok := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_"+name+":")
			if !ok {
				continue
			}
			if _, err := fmt.Sscanf(figures, "calls=%d,usec=%d", &calls, &usec); err != nil {
				return 0, fmt.Errorf("read %q: %w", line, err)
			}
			sum += time.Duration(usec) * time.Microsecond
		}
	}
	return sum, nil
}

// giveBack cancels an order at each tick until stop is called, which returns how many were.
func (r *returning) giveBack(ctx context.Context) (stop func() (int, error)) {
	ctx, cancel := context.WithCancel(ctx)
	type ended struct {
		n   int
		err error
	}
	done := make(chan ended, 1)
	go func() {
		tick := time.NewTicker(marksEvery)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				done <- ended{n, nil}
				return
			case <-tick.C:
			}
			if len(r.orders) == 0 {
				done <- ended{n, errors.New("all orders are cancelled")}
				return
			}
			err := r.cancel(context.WithoutCancel(ctx), r.world.API.Addr, r.orders[0], r.holder)
			if err != nil {
				done <- ended{n, err}
				return
			}
			r.orders = r.orders[1:]
			r.holder++
		}
	}()
	return func() (int, error) {
		cancel()
		e := <-done
		return e.n, e.err
	}
}
