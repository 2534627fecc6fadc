package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/targets"
	"flashsale/handler/auth"
	"flashsale/internal/pause"
)

const (
	// inspectRounds is how many ledgers and reconciliations are measured.
	inspectRounds = 50
	// inspectBar is how long an inspection may block a purchase, in milliseconds.
	inspectBar = 20
	// inspectShare is the share of a core, in percent, that one reconciliation of all
	// items per minute may use.
	inspectShare = 1
)

// measureInspect measures inspections of a sale of ten million orders.
func measureInspect(ctx context.Context, s *sizes) (err error) {
	n := max(int(10_000_000*s.o.size.scale), 1)
	r, err := s.newRig(ctx, history.History{Live: 1, LiveOrders: n})
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
	return r.inspection(ctx, history.LiveID(0), n)
}

// inspection measures what a ledger and a reconciliation cost a loaded sale that has
// sold n orders: by how much they raise the p99 of its purchases, made one after the
// other, and the CPU time of the API and Redis per reconciliation of all items.
func (m *meter) inspection(ctx context.Context, item string, n int) error {
	next := 1
	quiet, err := m.buyWhile(ctx, item, &next, func(ctx context.Context) error { return pause.OrCause(ctx, 10*time.Millisecond) })
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name    string
		inspect func(context.Context) error
	}{
		{"ledger", func(ctx context.Context) error {
			return m.asAdmin(ctx, http.MethodGet, "/v1/admin/items/"+item+"/ledger", nil)
		}},
		{"reconcile", func(ctx context.Context) error { return m.reconcile(ctx, "&item_id="+item) }},
	} {
		slow, err := m.buyWhile(ctx, item, &next, c.inspect)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprintf(m.out, "inspect       %d orders: p99 of purchases %v beside %s, %v without\n", n, slow, c.name, quiet)
		targets.AtMost(m.out, fmt.Sprintf("%s_blocks_%d_ms", c.name, n), max(slow-quiet, 0).Seconds()*1000, inspectBar)
	}
	used := -m.world.API.CPU() - m.world.Redis.CPU()
	for range inspectRounds {
		if err := m.reconcile(ctx, ""); err != nil {
			return err
		}
	}
	used += m.world.API.CPU() + m.world.Redis.CPU()
	targets.AtMost(m.out, fmt.Sprintf("reconcile_cpu_%d_percent", n), 100*used.Seconds()/inspectRounds/time.Minute.Seconds(), inspectShare)
	return nil
}

// buyWhile buys one unit after the other while inspect runs inspectRounds times, and
// returns the p99 of the purchases. next is the next buyer's number.
func (m *meter) buyWhile(ctx context.Context, item string, next *int, inspect func(context.Context) error) (time.Duration, error) {
	ended := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < inspectRounds && err == nil; n++ {
			err = inspect(ctx)
		}
		ended <- err
	}()
	var took []time.Duration
	for {
		began := time.Now()
		if _, err := m.reopen(ctx, item, *next); err != nil {
			return 0, errors.Join(err, <-ended)
		}
		took = append(took, time.Since(began))
		*next++
		select {
		case err := <-ended:
			slices.Sort(took)
			return took[len(took)*99/100], err
		default:
		}
	}
}

// reconcile compares counters, as the background does; item is empty for all items.
func (m *meter) reconcile(ctx context.Context, item string) error {
	var report struct{ Balanced bool }
	if err := m.asAdmin(ctx, http.MethodPost, "/v1/admin/reconcile?deep=false"+item, &report); err != nil {
		return err
	}
	if !report.Balanced {
		return errors.New("reconciliation found a difference")
	}
	return nil
}

// asAdmin calls the API, and decodes the answer into to unless that is nil.
func (m *meter) asAdmin(ctx context.Context, method, path string, to any) error {
	token, err := auth.SignToken([]byte(load.Secret), "bench", auth.RoleAdmin, time.Hour, time.Now())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+m.world.API.Addr+path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s %s", method, path, res.Status, text)
	}
	if to == nil {
		return nil
	}
	return json.Unmarshal(text, to)
}
