package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
)

const (
	// latencySettle is how long a rate lasts before it is measured.
	latencySettle = time.Second
	// latencyConnections is how many connections the open loop has for each one of the closed
	// loop. A request that finds none free counts from when it was due.
	latencyConnections = 4
	// latencySeed makes the requests of every run arrive at the same distances.
	latencySeed = 1
	// latencyHalf is the part of the peak, in percent, that has a target.
	latencyHalf = 50
)

// latencyParts are the rates that are offered, in percent of the peak.
var latencyParts = []int{25, latencyHalf, 75, 90}

// latencyKinds are the answers that are measured, and the targets for the p99 at half the peak,
// in milliseconds.
var latencyKinds = []struct {
	answer int
	target float64
}{{http.StatusAccepted, 15}, {http.StatusCreated, 30}}

// measureLatency measures the latency of purchases that arrive at a fixed rate, as those of
// independent buyers do, at parts of the highest rate of a closed loop. The latency counts from
// when a request was due, so a service that stalls cannot delay the requests that would show it.
func measureLatency(ctx context.Context, s *sizes) (err error) {
	r, err := s.newRig(ctx, history.History{Live: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.warm(ctx, history.LiveIDs(1), 1); err != nil {
		return err
	}
	s.say("answer  of peak  offered/s  answered/s  p50 ms  p99 ms  p99.9 ms  max ms  sent late by p99 ms  others")
	p := load.Purchases{Addr: r.world.API.Addr, Items: history.LiveIDs(1)}
	half := make(map[int]float64) // p99 by answer
	for _, kind := range latencyKinds {
		p.Async = kind.answer == http.StatusAccepted
		p.Connections = s.o.connections
		b, err := s.crowd.Measure(ctx, p, min(latencySettle, s.o.phase), s.o.phase)
		if err != nil {
			return err
		}
		p.First = b.Next
		peak := b.Rate(kind.answer)
		if peak == 0 {
			return fmt.Errorf("no answer %d: %v", kind.answer, b.Codes)
		}
		s.printLatency(kind.answer, "closed", "-", b, "-")
		p.Connections *= latencyConnections
		for _, percent := range latencyParts {
			if _, err := r.waitDrained(ctx); err != nil {
				return err
			}
			rate := peak * float64(percent) / 100
			o, err := offerRate(ctx, s.crowd, &p, rate, s.o.phase)
			if err != nil {
				return fmt.Errorf("%d%% of %.0f/s: %w", percent, peak, err)
			}
			s.printLatency(kind.answer, fmt.Sprintf("%d%%", percent), fmt.Sprintf("%.0f", rate), o.seen, fmt.Sprintf("%.1f", o.late.Quantile(99)))
			if percent == latencyHalf {
				half[kind.answer] = o.seen.Quantile(99)
			}
		}
		if _, err := r.waitDrained(ctx); err != nil {
			return err
		}
	}
	for _, kind := range latencyKinds {
		s.atMost(fmt.Sprintf("open_loop_p99_half_peak_%d_ms", kind.answer), half[kind.answer], kind.target)
	}
	return nil
}

// printLatency prints a row of the table.
func (s *sizes) printLatency(answer int, part, offered string, seen *load.Bought, late string) {
	others := 0
	for code, n := range seen.Codes {
		if code != answer {
			others += n
		}
	}
	s.say("%6d  %7s  %9s  %10.0f  %6.1f  %6.1f  %8.1f  %6.1f  %19s  %6d", answer, part, offered, seen.Rate(answer),
		seen.Quantile(50), seen.Quantile(99), seen.Quantile(99.9), seen.Quantile(100), late, others)
}

// offeredRate has the answers to the requests that were due after latencySettle.
type offeredRate struct {
	seen, late *load.Bought // latencies; how late the requests were sent
	failed     error        // of the first exchange that failed
}

// offerRate sends purchases at a rate for the length of a phase, and moves p.First past them.
func offerRate(ctx context.Context, crowd *load.Crowd, p *load.Purchases, rate float64, phase time.Duration) (*offeredRate, error) {
	settle := min(latencySettle, phase)
	due := load.Poisson(rate, settle+phase, latencySeed)
	o := &offeredRate{seen: load.NewBought(), late: load.NewBought()}
	var mu sync.Mutex
	err := crowd.Offer(ctx, *p, due, func(a *load.Answer) {
		mu.Lock()
		defer mu.Unlock()
		o.add(a, settle)
	})
	p.First += int64(len(due))
	o.seen.Took, o.late.Took = phase, phase
	return o, errors.Join(err, o.failed)
}

// add counts an answer, unless its request was due before settle.
func (o *offeredRate) add(a *load.Answer, settle time.Duration) {
	switch {
	case a.Err != nil:
		if o.failed == nil {
			o.failed = a.Err
		}
	case a.Due >= settle:
		o.seen.Add(a.Status, a.Latency())
		o.late.Add(a.Status, a.Late())
	}
}
