package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/runner"
	"flashsale/bench/internal/stats"
	"flashsale/internal/testing/repo"
)

const (
	// amount is a stock above any demand of a measurement.
	amount = 100_000_000
	// leastStock is the smallest sale of a kill run: larger than what the connections have in
	// flight, so that every kill comes in the middle.
	leastStock = 3000
	// killLimit is how many times the length of a phase each part of a kill run may take, on
	// top of killSlack.
	killLimit = 10
	killSlack = time.Minute
)

// speed is one measurement of a contender.
type speed struct{ rate, p50, p99 float64 } // answers with success a second; ms

// result is what was measured of one contender.
type result struct {
	contender contender
	skipped   error // why it was not measured
	speeds    []speed
	kill      killed
}

func (r *result) median(pick func(speed) float64) float64 { return stats.MedianOf(r.speeds, pick) }

func rateOf(s speed) float64 { return s.rate }

// results has those of all contenders, in their order.
type results struct {
	o     options
	empty result
	all   []*result
}

// measure measures every contender in turns, and then kills each during a sale.
func measure(ctx context.Context, o options, all []contender, crowd *load.Crowd, progress io.Writer) (r *results, err error) {
	dir, err := os.MkdirTemp("", "peers-build-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	service := filepath.Join(dir, "flashsale")
	if err := repo.Build(ctx, service); err != nil {
		return nil, err
	}
	r = &results{o: o, empty: result{contender: emptyContender()}}
	runs := []*result{&r.empty}
	for _, c := range all {
		res := &result{contender: c}
		r.all = append(r.all, res)
		if c.missing != nil {
			res.skipped = c.missing()
		}
		if res.skipped != nil {
			fmt.Fprintf(progress, "%s is skipped: %v\n", c.name, res.skipped)
			continue
		}
		runs = append(runs, res)
	}
	for round := range o.rounds {
		for _, res := range runner.Turn(runs, round) {
			s, err := measureSpeed(ctx, o, res.contender, service, crowd)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", res.contender.name, err)
			}
			fmt.Fprintf(progress, "round %d: %-13s %8.0f/s\n", round+1, res.contender.name, s.rate)
			res.speeds = append(res.speeds, s)
		}
	}
	for _, res := range runs[1:] {
		units := max(leastStock, int64(res.median(rateOf)*o.phase.Seconds()))
		plan := sale{units: units, kills: o.kills, connections: o.connections, limit: killLimit*o.phase + killSlack}
		res.kill, err = killRun(ctx, res.contender, service, crowd, plan)
		if err != nil {
			return nil, fmt.Errorf("%s, killed: %w", res.contender.name, err)
		}
		k := res.kill
		fmt.Fprintf(progress, "killed: %-13s %d units, %d successes, %d requests interrupted, %d orders; %s\n",
			res.contender.name, plan.total(), k.answered, k.interrupted, k.rows, k.verdict)
	}
	return r, nil
}

// measureSpeed measures a contender once, with a stock that does not run out.
func measureSpeed(ctx context.Context, o options, c contender, service string, crowd *load.Crowd) (sp speed, err error) {
	s, err := newRig(ctx, c, service)
	if err != nil {
		return sp, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.stock.put(ctx, item, amount); err != nil {
		return sp, err
	}
	p := load.Purchases{Addr: s.addr, Items: []string{item}, Connections: o.connections, Async: c.answer == http.StatusAccepted}
	warm, err := crowd.Buy(ctx, p, min(o.phase/4, time.Second))
	if err != nil {
		return sp, err
	}
	p.First = warm.Next
	b, err := crowd.Buy(ctx, p, o.phase)
	if err != nil {
		return sp, err
	}
	sp = speed{rate: b.Rate(http.StatusCreated, http.StatusAccepted), p50: b.Quantile(50), p99: b.Quantile(99)}
	if sp.rate == 0 {
		return sp, fmt.Errorf("no purchase succeeded, answers %v", b.Codes)
	}
	return sp, nil
}
