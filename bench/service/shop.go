package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/runner"
	"flashsale/internal/pause"
)

const (
	// The sizes of the filled shop at scale 1: 10 million orders in all.
	shopEnded, shopEndedOrders = 10_000, 900
	shopLive, shopLiveOrders   = 1_000, 1_000
	shopQueued                 = 1_000_000
	// shopDrains is how often the drain rate is measured, each time over shopDrained orders.
	shopDrains, shopDrained = 3, 100_000
	// shopRun is how many consecutive orders in the backlog belong to one sale: a batch of the
	// worker then has about as many sales as in the empty shop.
	shopRun = 1_000
	// shopRounds is how often the two shops take turns.
	shopRounds = 6
	// shopSettle is how long a shop is loaded before each phase counts.
	shopSettle = time.Second
)

// The allowed ratios of the filled shop to the empty one.
const (
	shopRate    = 0.9
	shopLatency = 1.1
)

// twoShops are an empty and a filled shop, each with its own processes, which take turns.
type twoShops struct {
	rotation

	empty, filled *rig
}

// measureShop compares purchases of one item in a shop with 10 million orders, 1,000
// open sales in Redis and 10,000 ended ones with those in a shop that has nothing else:
//
//   - committed: rate and p99 of 201 answers. No backlog, because a purchase waits for
//     its turn behind older orders: behind a million it would be answered 202.
//   - accepted: rate and p99 of 202 answers without a worker, with 1 million orders of
//     all open sales in the filled shop's queue, and only one turn's own in the other.
//   - drained: orders a worker commits per second, from the start with the backlog
//     and with only as many orders as are counted.
func measureShop(ctx context.Context, s *sizes) (err error) {
	h := history.History{
		Ended: s.scaled(shopEnded), EndedOrders: shopEndedOrders,
		Live: s.scaled(shopLive), LiveOrders: shopLiveOrders,
	}
	began := time.Now()
	filled, err := s.newRig(ctx, h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, filled.close()) }()
	s.say("%d orders in %d ended and %d open sales written in %.0f s", h.Orders(), h.Ended, h.Live, time.Since(began).Seconds())
	empty, err := s.newRig(ctx, history.History{Live: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, empty.close()) }()
	t := &twoShops{rotation: rotation{s: s, rigs: []*rig{empty, filled}}, empty: empty, filled: filled}
	// Before the rigs are closed: a stopped process does not react to SIGTERM.
	defer func() { err = errors.Join(err, t.resume()) }()
	queueLimit := strconv.Itoa(10 * shopQueued)
	for _, r := range []*rig{empty, filled} {
		if err := errors.Join(r.serve(ctx, "--queue-limit", queueLimit), r.work(ctx)); err != nil {
			return err
		}
	}
	if err := errors.Join(empty.warm(ctx, history.LiveIDs(1), 1), filled.warm(ctx, history.LiveIDs(h.Live), 4)); err != nil {
		return err
	}
	if err := t.compare(ctx, "committed", false); err != nil {
		return fmt.Errorf("committed: %w", err)
	}
	return t.backlog(ctx, h.Live)
}

// compare lets both shops sell the same item in turn, and prints the ratios over all rounds.
func (t *twoShops) compare(ctx context.Context, name string, async bool) error {
	want := http.StatusCreated
	if async {
		want = http.StatusAccepted
	}
	seen := map[*rig]*load.Bought{t.empty: load.NewBought(), t.filled: load.NewBought()}
	for round := range shopRounds {
		for _, r := range runner.Turn(t.rigs, round) {
			if err := t.turn(ctx, r, async, seen[r]); err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
		}
	}
	if err := t.resume(); err != nil {
		return err
	}
	e, f := seen[t.empty], seen[t.filled]
	if e.Codes[want] == 0 || f.Codes[want] == 0 {
		return fmt.Errorf("no answer %d: empty shop %v, filled shop %v", want, e.Codes, f.Codes)
	}
	for _, v := range []struct {
		name string
		seen *load.Bought
	}{{"empty", e}, {"filled", f}} {
		t.s.say("%s, %s shop: %.0f/s, p50 %.1f ms, p99 %.1f ms, answers %v", name, v.name, v.seen.Rate(want),
			v.seen.Quantile(50), v.seen.Quantile(99), v.seen.Codes)
	}
	t.s.atLeast("shop_"+name+"_rate", f.Rate(want)/e.Rate(want), shopRate)
	t.s.atMost("shop_"+name+"_p99", f.Quantile(99)/e.Quantile(99), shopLatency)
	return nil
}

// turn measures one shop while the other is stopped.
func (t *twoShops) turn(ctx context.Context, r *rig, async bool, into *load.Bought) error {
	if err := t.only(r); err != nil {
		return err
	}
	if _, err := t.buy(ctx, r, async, min(shopSettle, t.s.o.phase)); err != nil {
		return err
	}
	seen, err := t.buy(ctx, r, async, t.s.o.phase)
	if err != nil {
		return err
	}
	into.Merge(seen)
	if async && r == t.empty {
		return r.clear(ctx)
	}
	return nil
}

// buy sells the item that both shops have.
func (t *twoShops) buy(ctx context.Context, r *rig, async bool, d time.Duration) (*load.Bought, error) {
	b, err := t.s.crowd.Buy(ctx, t.load(r, []string{history.LiveID(0)}, async), d)
	if err != nil {
		return nil, err
	}
	t.next = b.Next
	return b, nil
}

func (t *twoShops) load(r *rig, items []string, async bool) load.Purchases {
	return load.Purchases{Addr: r.world.API.Addr, Items: items, Run: shopRun, Connections: t.s.o.connections, Async: async, First: t.next}
}

// backlog compares accepted purchases and the drain, with a backlog in the filled shop.
func (t *twoShops) backlog(ctx context.Context, live int) error {
	if err := errors.Join(t.empty.world.Worker.Stop(), t.filled.world.Worker.Stop()); err != nil {
		return err
	}
	began := time.Now()
	if err := t.fill(ctx, t.filled, t.load(t.filled, history.LiveIDs(live), true), t.s.scaled(shopQueued)); err != nil {
		return fmt.Errorf("fill the queue: %w", err)
	}
	t.s.say("%d orders queued in %.0f s", t.s.scaled(shopQueued), time.Since(began).Seconds())
	if err := t.compare(ctx, "accepted", true); err != nil {
		return fmt.Errorf("accepted: %w", err)
	}
	return t.drains(ctx, t.s.scaled(shopDrained))
}

// drains compares how fast a worker takes n orders from the queue. Both shops' workers
// are stopped before and after.
func (t *twoShops) drains(ctx context.Context, n int) error {
	took := make(map[*rig]time.Duration)
	for round := range shopDrains {
		for _, r := range runner.Turn(t.rigs, round) {
			if err := t.only(r); err != nil {
				return err
			}
			if err := t.fill(ctx, r, t.load(r, []string{history.LiveID(0)}, true), n); err != nil {
				return fmt.Errorf("fill queue: %w", err)
			}
			d, err := r.drain(ctx, n)
			if err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
			took[r] += d
			if err := r.world.Worker.Stop(); err != nil {
				return err
			}
		}
	}
	rate := func(r *rig) float64 { return float64(shopDrains*n) / took[r].Seconds() }
	t.s.say("drained, %d times %d orders: %.0f/s of a short queue, %.0f/s of the backlog", shopDrains, n, rate(t.empty), rate(t.filled))
	t.s.atLeast("shop_drained_rate", rate(t.filled)/rate(t.empty), shopRate)
	return nil
}

// drain starts a worker and returns how long n orders take to leave the queue, from the moment
// when the first ones have left it.
func (r *rig) drain(ctx context.Context, n int) (time.Duration, error) {
	before, err := r.queued(ctx)
	if err != nil {
		return 0, err
	}
	if err := r.work(ctx); err != nil {
		return 0, err
	}
	limit := time.Now().Add(fillLimit)
	var began time.Time
	for {
		queued, err := r.queued(ctx)
		if err != nil {
			return 0, err
		}
		gone := before - queued
		if gone > 0 && began.IsZero() {
			began = time.Now()
		}
		if gone >= int64(n) {
			return max(time.Since(began), time.Millisecond), nil // few orders may leave at once
		}
		if time.Now().After(limit) {
			return 0, fmt.Errorf("%d of %d orders left the queue within %v", gone, n, fillLimit)
		}
		if err := pause.OrCause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}
