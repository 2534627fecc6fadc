package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/bench/internal/baseline"
	"flashsale/bench/internal/defences"
	"flashsale/bench/internal/targets"
	"flashsale/internal/wire"
)

// someItem is part of every non-empty page of items.
var someItem = []byte(`,"stock_left":`)

// readsBar is how many pages the service serves for each page of an empty handler.
const readsBar = 0.85

// measureReads measures how many times a second an item's page and the first page of the list
// are read, in turn with an empty handler that writes as many bytes. Then it counts the
// database queries that each defence of the cache saves.
func measureReads(ctx context.Context, m *meter) error {
	for i := range 2*baseline.ListedItems + 1 {
		if err := m.createItem(ctx, fmt.Sprintf("reads-%d", i), stock, 0); err != nil {
			return err
		}
	}
	for _, what := range []struct{ name, path, bar string }{
		{"item", "/v1/items/reads-0", "reads/empty"}, {"list", "/v1/items", "list_reads/empty"},
	} {
		var ratios, costs []float64
		for range m.o.reads {
			empty, emptyCost, err := readPhase(ctx, m, "read empty", m.world.Empty.Addr, what.path)
			if err != nil {
				return err
			}
			pages, cost, err := readPhase(ctx, m, "read "+what.name, m.world.API.Addr, what.path)
			if err != nil {
				return err
			}
			ratios, costs = append(ratios, pages/empty), append(costs, cost/emptyCost)
		}
		fmt.Fprintf(m.out, "processor time of the %s's page, in those of the empty handler: %.2f\n", what.name, median(costs))
		targets.AtLeast(m.out, what.bar, median(ratios), readsBar)
	}
	return defences.Print(ctx, m.out, m.world.Redis.Addr)
}

// readPhase reads pages from one server. It returns the reads per second, and the processor
// time of each in microseconds.
func readPhase(ctx context.Context, m *meter, name, addr, path string) (rate, cost float64, err error) {
	before := m.world.API.CPU() + m.world.Empty.CPU()
	n, took, err := readFor(ctx, addr, path, m.o)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", name, err)
	}
	used := m.world.API.CPU() + m.world.Empty.CPU() - before
	rate, cost = float64(n)/took.Seconds(), float64(used.Microseconds())/float64(max(n, 1))
	fmt.Fprintf(m.out, "%-13s %8.0f/s  cpu per request: %.1fus\n", name, rate, cost)
	return rate, cost, nil
}

// readFor reads a page over every connection for the length of a phase, and
// checks each answer.
func readFor(ctx context.Context, addr, path string, o options) (n int64, took time.Duration, err error) {
	target, err := wire.ParseTarget("http://" + addr)
	if err != nil {
		return 0, 0, err
	}
	var q wire.Request
	request, err := q.Start(http.MethodGet, target, path).NoBody()
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.phase)
	defer cancel()
	var all sync.WaitGroup
	var answers atomic.Int64
	failed := make(chan error, o.connections)
	start := time.Now()
	for range o.connections {
		all.Go(func() {
			if err := readOver(ctx, target, request, &answers); err != nil {
				failed <- err
			}
		})
	}
	all.Wait()
	took = time.Since(start)
	select {
	case err = <-failed:
	default:
	}
	return answers.Load(), took, err
}

func readOver(ctx context.Context, t wire.Target, request []byte, answers *atomic.Int64) error {
	conn, err := wire.Dial(context.WithoutCancel(ctx), t)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // every request on it has been answered
	for ctx.Err() == nil {
		res, err := conn.Do(request)
		if err != nil {
			return err
		}
		if res.Status != http.StatusOK || !bytes.Contains(res.Body, someItem) {
			return fmt.Errorf("answer %d %s", res.Status, res.Body)
		}
		answers.Add(1)
	}
	return nil
}
