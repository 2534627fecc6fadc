package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/bench/internal/targets"
	"flashsale/internal/pause"
	"flashsale/internal/wire"
)

const (
	// pagesBar is the part of the throughput that open shop pages must leave.
	pagesBar = 0.95
	// pagesPairs is the number of pairs of phases, without and with the pages.
	pagesPairs = 7
	// pagesInterval is the mean interval at which the module of an open item's page reads the item,
	// and pagesJitter the part by which it differs (web/assets/shop-item.js).
	pagesInterval = 3 * time.Second
	pagesJitter   = 0.25
)

// measurePages measures how many purchases a second are accepted while shop pages of the item are
// open, each on a connection of its own, and how many without them. The browsers' side of the pages
// runs on the same machine and counts against that ratio. The second ratio compares the processor time
// that only the API uses for each accepted purchase.
func measurePages(ctx context.Context, m *meter) error {
	var ratios, costs []float64
	for i := range pagesPairs {
		rates, cost := map[bool]float64{}, map[bool]float64{}
		for _, open := range []bool{i%2 == 0, i%2 != 0} { // each is first in every second pair
			item := fmt.Sprintf("pages-%d-%t", i, open)
			err := m.createItem(ctx, item, stock, 0)
			if err != nil {
				return err
			}
			if rates[open], cost[open], err = m.pagesPhase(ctx, item, open); err != nil {
				return err
			}
			if _, err := m.waitDrained(ctx); err != nil {
				return err
			}
		}
		ratios, costs = append(ratios, rates[true]/rates[false]), append(costs, cost[true]/cost[false])
	}
	targets.AtLeast(m.out, "open_pages/none", median(ratios), pagesBar)
	targets.AtMost(m.out, "open_pages_api_cpu/none", median(costs), 1/pagesBar)
	return nil
}

// pagesPhase returns the rate of accepted purchases, with the pages open or without, and the API's
// processor time for each.
func (m *meter) pagesPhase(ctx context.Context, item string, open bool) (rate, cost float64, err error) {
	if !open {
		return m.costlyPhase(ctx, "no pages", item)
	}
	readers, stop := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	var reads atomic.Int64
	defer all.Wait()
	defer stop(nil)
	for range m.o.pages {
		all.Go(func() {
			if err := openPage(readers, m.world.API.Addr, item, &reads); err != nil {
				stop(err)
			}
		})
	}
	if err := pause.OrCause(readers, pagesInterval); err != nil { // until all are connected
		return 0, 0, err
	}
	before := reads.Load()
	rate, cost, err = m.costlyPhase(readers, fmt.Sprintf("%d pages", m.o.pages), item)
	if cause := context.Cause(readers); cause != nil {
		return 0, 0, fmt.Errorf("open pages: %w", cause)
	}
	fmt.Fprintf(m.out, "              %.0f reads of the item a second\n", float64(reads.Load()-before)/m.o.phase.Seconds())
	return rate, cost, err
}

// costlyPhase is a phase of accepted purchases, with the API's processor time for each.
func (m *meter) costlyPhase(ctx context.Context, name, item string) (rate, cost float64, err error) {
	before := m.world.API.CPU()
	rate, err = m.phase(ctx, name, m.world.API.Addr, item, true, http.StatusAccepted)
	return rate, float64(m.world.API.CPU()-before) / rate, err
}

// openPage reads the item as an open page does, until ctx ends.
func openPage(ctx context.Context, addr, item string, reads *atomic.Int64) error {
	target, err := wire.ParseTarget("http://" + addr)
	if err != nil {
		return err
	}
	var q wire.Request
	request, err := q.Start(http.MethodGet, target, "/v1/items/"+item).NoBody()
	if err != nil {
		return err
	}
	if pause.OrCause(ctx, rand.N(pagesInterval)) != nil {
		return nil
	}
	conn, err := wire.Dial(context.WithoutCancel(ctx), target)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // every request on it has been answered
	for {
		res, err := conn.Do(request)
		if err != nil {
			return err
		}
		if res.Status != http.StatusOK {
			return fmt.Errorf("answer %d %s", res.Status, res.Body)
		}
		reads.Add(1)
		wait := time.Duration(float64(pagesInterval) * (1 - pagesJitter + 2*pagesJitter*rand.Float64()))
		if pause.OrCause(ctx, wait) != nil {
			return nil // the phase is over
		}
	}
}
