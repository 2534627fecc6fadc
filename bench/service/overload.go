package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/targets"
	"flashsale/bench/internal/world"
	"flashsale/internal/pause"
)

const (
	// overloadTimes is how many times the top rate is offered.
	overloadTimes = 5
	// overloadBar is the part of the top rate that has to remain under overload.
	overloadBar = 0.9
	// overloadWarm is how long the overload lasts before it is measured: the queue fills up
	// meanwhile, and accepts more orders than are committed.
	overloadWarm = 3 * time.Second
	// hinderHolds and hinderRests are how long the database is locked, and how long free.
	hinderHolds, hinderRests = 6 * time.Millisecond, 3 * time.Millisecond
	// overloadConnections bounds the requests in flight. A request that finds no free
	// connection counts from when it was due.
	overloadConnections = 2000
)

// measureOverload measures whether the service keeps its throughput under overload. The worker
// is throttled: one order a transaction, on a database that others lock for writing most of
// the time. So the database is the bottleneck, and not the processors, which the load shares.
// The top rate is the rate of commits in a closed loop. Then several times that rate is
// offered, in an open loop, with a queue for one second's orders.
func measureOverload(ctx context.Context, m *meter) (err error) {
	w := m.world
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hindered := make(chan error, 1)
	defer func() {
		cancel()
		if herr := <-hindered; !errors.Is(herr, context.Canceled) {
			err = errors.Join(err, herr)
		}
	}()
	go func() { hindered <- hinder(ctx, m) }()
	if err := errors.Join(w.Worker.Stop(), w.API.Stop()); err != nil {
		return err
	}
	const item = "overload"
	if err := throttled(ctx, w, 1_000_000); err != nil {
		return err
	}
	if err := m.createItem(ctx, item, stock, 0); err != nil {
		return err
	}
	top, err := m.phase(ctx, "top", w.API.Addr, item, false, http.StatusCreated)
	if err != nil {
		return err
	}
	if err := errors.Join(w.Worker.Stop(), w.API.Stop()); err != nil {
		return err
	}
	if err := throttled(ctx, w, max(100, int(top))); err != nil {
		return err
	}
	seen, err := offer(ctx, m, item, overloadTimes*top)
	if err != nil {
		return err
	}
	slices.Sort(seen.admitted)
	slices.Sort(seen.refused)
	good := float64(len(seen.admitted)) / m.o.phase.Seconds()
	fmt.Fprintf(m.out, "overload      %8.0f/s offered, %.0f/s admitted, answers %v, unanswered %d\n", overloadTimes*top, good, seen.codes, seen.failed)
	fmt.Fprintf(m.out, "              admitted p50 %v p99 %v, refused p50 %v p99 %v\n",
		quantile(seen.admitted, 50), quantile(seen.admitted, 99), quantile(seen.refused, 50), quantile(seen.refused, 99))
	targets.AtLeast(m.out, "overload_good/top", good/top, overloadBar)
	targets.AtMost(m.out, "overload_admitted_p99_s", quantile(seen.admitted, 99).Seconds(), 3)
	return nil
}

// hinder locks the database for writing, most of the time, until ctx ends.
func hinder(ctx context.Context, m *meter) (err error) {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(m.world.Dir, "bench.db")+"?_busy_timeout=60000&_txlock=immediate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for {
		tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
		if err != nil {
			return err
		}
		err = pause.OrCause(ctx, hinderHolds)
		if err := errors.Join(err, tx.Rollback(), pause.OrCause(ctx, hinderRests)); err != nil {
			return err
		}
	}
}

func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)*percent/100].Round(100 * time.Microsecond)
}

// throttled starts an API and a worker that commits one order at a time.
func throttled(ctx context.Context, w *world.World, room int) (err error) {
	limit := strconv.Itoa(room)
	addr, ops, workOps := process.FreeAddr(), process.FreeAddr(), process.FreeAddr()
	w.API, err = w.Launch(ctx, "api", w.Binary, addr, ops,
		append([]string{"api", "--addr", addr, "--ops-addr", ops, "--rate-buyer", "-1", "--queue-limit", limit}, w.Common...)...)
	if err != nil {
		return err
	}
	w.Worker, err = w.Launch(ctx, "worker", w.Binary, "", workOps,
		append([]string{"worker", "--ops-addr", workOps, "--batch", "1", "--linger", "0", "--queue-limit", limit}, w.Common...)...)
	if err != nil {
		return err
	}
	return w.API.Ready(ctx)
}

// offered has the answers of an open loop after its warm-up.
type offered struct {
	codes             map[int]int
	failed            int // exchanges without an answer
	admitted, refused []time.Duration
}

// offer sends purchases at a rate, whatever the answers. Latencies count from when a request
// was due.
func offer(ctx context.Context, m *meter, item string, perSecond float64) (*offered, error) {
	until := overloadWarm + m.o.phase
	sum := &offered{codes: make(map[int]int)}
	var mu sync.Mutex
	// From the middle of the crowd: the buyers at its beginning have bought at the top rate.
	p := load.Purchases{Addr: m.world.API.Addr, Items: []string{item}, Connections: overloadConnections, First: load.Buyers / 2}
	err := m.crowd.Offer(ctx, p, load.Even(perSecond, until), func(a *load.Answer) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case a.Err != nil:
			sum.failed++
		case a.Done < overloadWarm || a.Done > until:
		case a.Status == http.StatusCreated || a.Status == http.StatusAccepted:
			sum.codes[a.Status]++
			sum.admitted = append(sum.admitted, a.Latency())
		default:
			sum.codes[a.Status]++
			sum.refused = append(sum.refused, a.Latency())
		}
	})
	return sum, err
}
