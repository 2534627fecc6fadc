package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/world"
)

// embeddedRig starts API and worker in one process, r.world.API, on the embedded engine. It has no
// redis-server.
func (g *growth) embeddedRig(ctx context.Context, h history.History) (r *rig, err error) {
	began := time.Now()
	dir, err := os.MkdirTemp(g.s.dir, "rig-")
	if err != nil {
		return nil, err
	}
	db, addr, ops := filepath.Join(dir, "bench.db"), process.FreeAddr(), process.FreeAddr()
	w := &world.World{Dir: dir, Binary: g.s.binary, Common: []string{"--db", "sqlite:" + db, "--data-dir", dir, "--log-level", "warn"}}
	r = &rig{meter: &meter{world: w, crowd: g.s.crowd, o: g.s.o, out: g.s.out}}
	g.rigs = append(g.rigs, r)
	if err := w.Once(ctx, w.Binary, append([]string{"migrate", "up"}, w.Common...)...); err != nil {
		return nil, err
	}
	if err := h.Write(ctx, db); err != nil {
		return nil, fmt.Errorf("fill the database: %w", err)
	}
	args := append([]string{"serve", "--redis", "embedded", "--addr", addr, "--ops-addr", ops,
		"--demo=false", "--mock-payments-addr", "off", "--rate-buyer", "-1"}, w.Common...)
	if w.API, err = w.Launch(ctx, "embedded", w.Binary, addr, ops, args...); err != nil {
		return nil, err
	}
	if err := errors.Join(w.API.Ready(ctx), r.warm(ctx, history.LiveIDs(h.Live), 4)); err != nil {
		return nil, err
	}
	g.s.say("ready after %.1f s: items on sale %d, embedded engine", time.Since(began).Seconds(), h.Live)
	return r, nil
}

// embeddedRow is a row that buys the first item of a rig with so many. The embedded engine always answers 201.
func (g *growth) embeddedRow(ctx context.Context, group string, setting, items int) (*growthRow, error) {
	r, err := g.embeddedRig(ctx, history.History{Live: items})
	if err != nil {
		return nil, err
	}
	row := g.row(group, strconv.Itoa(setting), r, 1)
	row.load.Async = false
	return row, nil
}

func openEmbeddedItems(ctx context.Context, g *growth) (rows []*growthRow, err error) {
	for _, n := range g.settings.embeddedItems {
		row, err := g.embeddedRow(ctx, "embedded_items", n, n)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// openEmbeddedOrders opens rigs whose only sale has sold so many units. Every order has another buyer: the second
// order of a buyer costs more.
func openEmbeddedOrders(ctx context.Context, g *growth) (rows []*growthRow, err error) {
	s := *g.s
	g.s = &s
	most := g.settings.embeddedOrders[len(g.settings.embeddedOrders)-1]
	if s.crowd, err = load.NewCrowd(2 * most); err != nil {
		return nil, err
	}
	for _, n := range g.settings.embeddedOrders {
		row, err := g.embeddedRow(ctx, "embedded_orders", n, 1)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(g.only(row.rig), g.sell(ctx, row, n)); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// sell buys until so many units are sold.
func (g *growth) sell(ctx context.Context, row *growthRow, n int) error {
	for sold := 0; sold < n; {
		row.load.First = g.next
		b, err := g.s.crowd.Buy(ctx, row.load, fillStep(n-sold, g.s.o.phase))
		if err != nil {
			return err
		}
		if b.Codes[http.StatusCreated] == 0 {
			return fmt.Errorf("%d of %d units sold: %v", sold, n, b.Codes)
		}
		g.next, sold = b.Next, sold+b.Codes[http.StatusCreated]
	}
	return nil
}
