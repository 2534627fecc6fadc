package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
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
	// inspectWholeRounds is the same for inspections that read a long queue.
	inspectWholeRounds = 3
	// inspectBuyers is the number of buyers in the history. Those from load.Buyers on make no purchases.
	inspectBuyers = 1_000_000
	// inspectDeepLimit is how long a comparison of every record is measured.
	inspectDeepLimit = 30 * time.Second
	// inspectBar is how long an inspection may block a purchase, in milliseconds.
	inspectBar = 20
	// inspectShare is the share of a core, in percent, that one reconciliation of all
	// items per minute may use.
	inspectShare = 1
)

// measureInspect measures inspections of a sale of ten million orders: while nothing is queued, and with
// a million orders in the queue.
func measureInspect(ctx context.Context, s *sizes) error {
	n := max(int(10_000_000*s.o.size.scale), 1)
	if err := s.inspect(ctx, n, 0, inspectRounds); err != nil {
		return err
	}
	return s.inspect(ctx, n, s.scaled(1_000_000), inspectRounds)
}

// inspect measures inspections of a sale of n orders, each so many rounds, with so many others in the queue;
// none: a worker commits the orders of the measurement.
func (s *sizes) inspect(ctx context.Context, n, queued, rounds int) (err error) {
	r, err := s.newRig(ctx, history.History{Live: 1, LiveOrders: n})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.serve(ctx, "--queue-limit", strconv.Itoa(growthQueueLimit)); err != nil {
		return err
	}
	if queued == 0 {
		if err := r.work(ctx); err != nil {
			return err
		}
	}
	if err := r.warm(ctx, history.LiveIDs(1), 1); err != nil {
		return err
	}
	if err := r.enqueue(ctx, history.LiveIDs(1), queued); err != nil {
		return err
	}
	return r.inspection(ctx, history.LiveID(0), n, queued, rounds)
}

// dashboardReads are what the pages of the dashboard read about sales and queues.
var dashboardReads = []string{
	"/v1/admin/queue", "/v1/admin/system", "/v1/admin/dead/groups", "/v1/admin/webhooks", "/v1/admin/payments?needs_refund=true&limit=100",
	"/v1/admin/items?limit=50", "/v1/orders?limit=50", "/v1/orders?limit=50&status=rejected", "/v1/orders?limit=50&status=confirmed", "/v1/admin/audit?limit=50",
}

// inspection measures what inspections cost a loaded sale that has n committed orders: by how much they
// raise the p99 of its purchases, made one after the other, and, if nothing is queued, the CPU time of the API and
// Redis per reconciliation of all items.
func (m *meter) inspection(ctx context.Context, item string, n, queued, rounds int) error {
	suffix, other := "", ""
	if queued > 0 {
		suffix, other = fmt.Sprintf("_%d_queued", queued), fmt.Sprintf(" and %d queued", queued)
	}
	next := 1
	quiet, _, err := m.buyWhile(ctx, item, &next, rounds, func(ctx context.Context) error { return pause.OrCause(ctx, 10*time.Millisecond) })
	if err != nil {
		return err
	}
	erased := inspectBuyers // their numbers, from the last one on
	whole := rounds         // of what reads the whole queue
	if queued > 0 {
		whole = min(rounds, inspectWholeRounds)
	}
	for _, c := range []struct {
		name    string
		rounds  int
		inspect func(context.Context) error
	}{
		{"ledger", rounds, func(ctx context.Context) error {
			return m.asAdmin(ctx, http.MethodGet, "/v1/admin/items/"+item+"/ledger", nil)
		}},
		{"reconcile", whole, func(ctx context.Context) error { return m.reconcile(ctx, "?deep=false&item_id="+item) }},
		{"deep_reconcile", 1, func(ctx context.Context) error { return m.deepReconcile(ctx, item) }},
		{"dashboard", rounds, func(ctx context.Context) error {
			for _, path := range append(dashboardReads, "/v1/orders?limit=50&item_id="+item, "/v1/admin/items/"+item) {
				if err := m.asAdmin(ctx, http.MethodGet, path, nil); err != nil {
					return err
				}
			}
			return nil
		}},
		{"erasure", rounds, func(ctx context.Context) error {
			erased--
			return m.asAdminWith(ctx, http.MethodPost, fmt.Sprintf("/v1/admin/buyers/buyer-%d/erase", 1_000_000+erased), `{"reason":"asked"}`, nil)
		}},
	} {
		began := time.Now()
		slow, longest, err := m.buyWhile(ctx, item, &next, c.rounds, c.inspect)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprintf(m.out, "inspect       %d orders%s: p99 of purchases %v, longest %v, beside %d times %s (%.2f s each); p99 %v without\n",
			n, other, slow, longest, c.rounds, c.name, time.Since(began).Seconds()/float64(c.rounds), quiet)
		targets.AtMost(m.out, fmt.Sprintf("%s_blocks_%d%s_ms", c.name, n, suffix), max(slow-quiet, 0).Seconds()*1000, inspectBar)
	}
	if queued > 0 {
		return nil
	}
	used := -m.world.API.CPU() - m.world.Redis.CPU()
	for range rounds {
		if err := m.reconcile(ctx, "?deep=false"); err != nil {
			return err
		}
	}
	used += m.world.API.CPU() + m.world.Redis.CPU()
	targets.AtMost(m.out, fmt.Sprintf("reconcile_cpu_%d_percent", n), 100*used.Seconds()/float64(rounds)/time.Minute.Seconds(), inspectShare)
	return nil
}

// buyWhile buys one unit after the other while inspect runs so many times, and
// returns the p99 and the longest of the purchases. next is the next buyer's number.
func (m *meter) buyWhile(ctx context.Context, item string, next *int, rounds int, inspect func(context.Context) error) (p99, longest time.Duration, err error) {
	ended := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < rounds && err == nil; n++ {
			err = inspect(ctx)
		}
		ended <- err
	}()
	var took []time.Duration
	for {
		began := time.Now()
		if _, err := m.reopen(ctx, item, *next); err != nil {
			return 0, 0, errors.Join(err, <-ended)
		}
		took = append(took, time.Since(began))
		*next++
		select {
		case err := <-ended:
			slices.Sort(took)
			return took[len(took)*99/100], took[len(took)-1], err
		default:
		}
	}
}

// reconcile requests a reconciliation, which must find no difference.
func (m *meter) reconcile(ctx context.Context, query string) error {
	var report struct{ Balanced bool }
	if err := m.asAdmin(ctx, http.MethodPost, "/v1/admin/reconcile"+query, &report); err != nil {
		return err
	}
	if !report.Balanced {
		return errors.New("reconciliation found a difference")
	}
	return nil
}

// deepReconcile compares every record of an item for at most inspectDeepLimit. While the item is sold, the
// comparison starts again several times.
func (m *meter) deepReconcile(ctx context.Context, item string) error {
	limited, cancel := context.WithTimeout(ctx, inspectDeepLimit)
	defer cancel()
	err := m.reconcile(limited, "?item_id="+item)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

// asAdmin calls the API, and decodes the answer into to unless that is nil.
func (m *meter) asAdmin(ctx context.Context, method, path string, to any) error {
	return m.asAdminWith(ctx, method, path, "", to)
}

// asAdminWith is asAdmin with a body in JSON; empty: none.
func (m *meter) asAdminWith(ctx context.Context, method, path, body string, to any) error {
	token, err := auth.SignToken([]byte(load.Secret), "bench", auth.RoleAdmin, time.Hour, time.Now())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+m.world.API.Addr+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
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
