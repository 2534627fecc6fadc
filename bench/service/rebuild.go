package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/targets"
	"flashsale/handler/auth"
	"flashsale/internal/pause"
	"flashsale/inventory"
)

const (
	// The sizes at scale 1: many small sales with orders in the queue, more small
	// sales, and a few large ones.
	rebuildSales, rebuildQueued = 1_000, 100_000
	rebuildMany                 = 10_000
	rebuildOrders               = 10 // committed orders of each small sale
	rebuildLarge, rebuildLoaded = 6, 250_000
	// rebuildConnections is the load on the other item while large sales are loaded.
	rebuildConnections = 4
	// rebuildSettled is how long that load runs before the sales are dropped.
	rebuildSettled = time.Second
)

// The targets, in seconds and milliseconds.
const (
	rebuildQueuedBar = 3
	rebuildManyBar   = 10
	rebuildOtherBar  = 100
	rebuildPauseBar  = 1000
)

// measureRebuild measures how long a service takes to load many sales after Redis has lost its
// epoch, but not its queue. It also measures how the load of large sales affects the buyers of
// another item and an operator.
func measureRebuild(ctx context.Context, s *sizes) error {
	n, queued := s.scaled(rebuildSales), s.scaled(rebuildQueued)
	took, err := s.rebuild(ctx, n, queued)
	if err != nil {
		return err
	}
	s.atMost(fmt.Sprintf("rebuild_%d_sales_%d_queued_s", rebuildSales, rebuildQueued), took.Seconds(), rebuildQueuedBar)
	if took, err = s.rebuild(ctx, s.scaled(rebuildMany), 0); err != nil {
		return err
	}
	s.atMost(fmt.Sprintf("rebuild_%d_sales_s", rebuildMany), took.Seconds(), rebuildManyBar)
	return s.besideLoads(ctx)
}

// rebuild returns the time from a loss to the end of the rebuild, including the time until the
// loss is detected.
func (s *sizes) rebuild(ctx context.Context, sales, queued int) (took time.Duration, err error) {
	r, err := s.newRig(ctx, history.History{Live: sales, LiveOrders: rebuildOrders})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.serve(ctx); err != nil { // no worker: the queue stays
		return 0, err
	}
	if _, err := r.built(ctx, ""); err != nil { // the first start loads them all
		return 0, err
	}
	if err := r.enqueue(ctx, history.LiveIDs(sales), queued); err != nil {
		return 0, err
	}
	epoch, err := r.redis.Get(ctx, "fs:{p0}:epoch").Result()
	if err != nil {
		return 0, err
	}
	if err := r.redis.ConfigResetStat(ctx).Err(); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := r.redis.Del(ctx, "fs:{p0}:epoch").Err(); err != nil {
		return 0, err
	}
	if _, err := r.built(ctx, epoch); err != nil {
		return 0, err
	}
	took = time.Since(began)
	s.say("%d sales with %d committed and %d queued orders were open %.2f s after the loss (load average %s)",
		sales, sales*rebuildOrders, queued, took.Seconds(), loadAverage())
	return took, r.printCommands(ctx, sales)
}

// built waits until all sales of another epoch than before are loaded, and returns it.
func (r *rig) built(ctx context.Context, before string) (string, error) {
	began := time.Now()
	for {
		v, err := r.redis.MGet(ctx, "fs:{p0}:epoch", "fs:{p0}:built").Result()
		if err != nil {
			return "", err
		}
		epoch, _ := v[0].(string)
		if built, _ := v[1].(string); epoch != "" && epoch != before && built == epoch {
			return epoch, nil
		}
		if time.Since(began) > recoveryLimit {
			return "", fmt.Errorf("the sales are not loaded after %v", recoveryLimit)
		}
		if err := pause.OrCause(ctx, 5*time.Millisecond); err != nil {
			return "", err
		}
	}
}

// enqueue buys until so many orders are queued.
func (r *rig) enqueue(ctx context.Context, items []string, n int) error {
	if n == 0 {
		return nil
	}
	orders, err := r.orders(0)
	if err != nil {
		return err
	}
	filling, cancel := context.WithTimeout(ctx, fillLimit)
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		p := load.Purchases{Addr: r.world.API.Addr, Items: items, Connections: r.o.connections, Async: true, First: 1}
		_, err := r.crowd.Send(filling, p, func(int, time.Duration) {})
		sent <- err
	}()
	for {
		st, err := orders.Stats(ctx)
		if err == nil && st.Entries < n && filling.Err() == nil {
			err = pause.OrCause(filling, 20*time.Millisecond)
			if err == nil {
				continue
			}
		}
		cancel()
		switch serr := <-sent; {
		case err != nil || serr != nil:
			return errors.Join(err, serr)
		case st.Entries < n:
			return fmt.Errorf("%d orders are queued after %v, want %d", st.Entries, fillLimit, n)
		}
		return nil
	}
}

// besideLoads buys an item, and reads an order of it, while large sales are loaded, and pauses
// one of those sales.
func (s *sizes) besideLoads(ctx context.Context) (err error) {
	h := history.History{Live: rebuildLarge, LiveOrders: s.scaled(rebuildLoaded)}
	r, err := s.newRig(ctx, h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	if _, err := r.built(ctx, ""); err != nil {
		return err
	}
	if err := r.createItem(ctx, "other", stock, 0); err != nil {
		return err
	}
	order, err := r.buyOne(ctx, r.world.API.Addr, "other", 0)
	if err != nil {
		return err
	}
	busy, stop := context.WithCancel(ctx)
	defer stop()
	buys, reads := load.NewTally(), load.NewTally()
	var all sync.WaitGroup
	failures := make(chan error, 2)
	all.Go(func() {
		p := load.Purchases{Addr: r.world.API.Addr, Items: []string{"other"}, Connections: rebuildConnections, Async: true, First: 1}
		_, err := r.crowd.Send(busy, p, buys.Add)
		failures <- err
	})
	all.Go(func() { failures <- r.readOrder(busy, order, reads) })
	if err := pause.OrCause(ctx, rebuildSettled); err != nil {
		return err
	}
	quiet, quietReads := buys.Take(), reads.Take()
	paused, took, err := r.loadAgain(ctx, h.Live)
	during, duringReads := buys.Take(), reads.Take()
	stop()
	all.Wait()
	if err := errors.Join(err, <-failures, <-failures); err != nil {
		return err
	}
	s.say("%d sales of %d orders were loaded again in %.2f s; purchases of another item: p99 %.1f ms before, %.1f ms meanwhile, answers %v; "+
		"reads of an order: p99 %.1f ms before, %.1f ms meanwhile, answers %v", h.Live, h.LiveOrders, took.Seconds(),
		quiet.Quantile(99), during.Quantile(99), during.Codes, quietReads.Quantile(99), duringReads.Quantile(99), duringReads.Codes)
	s.atMost("beside_loads_purchase_p99_ms", during.Quantile(99), rebuildOtherBar)
	s.atMost("beside_loads_read_p99_ms", duringReads.Quantile(99), rebuildOtherBar)
	s.atMost("beside_loads_503", float64(during.Codes[http.StatusServiceUnavailable]+duringReads.Codes[http.StatusServiceUnavailable]), 0)
	s.atMost("pause_beside_load_ms", float64(paused)/float64(time.Millisecond), rebuildPauseBar)
	return nil
}

// loadAgain drops the large sales, loads them together, and pauses the first meanwhile. It
// returns the durations of the pause and of the loads.
func (r *rig) loadAgain(ctx context.Context, sales int) (paused, took time.Duration, err error) {
	token, err := auth.SignToken([]byte(load.Secret), "bench", auth.RoleAdmin, time.Hour, time.Now())
	if err != nil {
		return 0, 0, err
	}
	ids := history.LiveIDs(sales)
	began := time.Now()
	if err := inventory.Invalidate(ctx, r.redis, 1, ids); err != nil {
		return 0, 0, err
	}
	loaded := make(chan error, 1)
	go func() { loaded <- r.warm(ctx, ids, sales) }()
	if err := r.loading(ctx, ids[0]); err != nil {
		return 0, 0, errors.Join(err, <-loaded)
	}
	asked := time.Now()
	status, body, err := r.admin(ctx, http.MethodPost, "/v1/admin/items/"+ids[0]+"/pause", token)
	paused = time.Since(asked)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("pause: %d %s", status, body)
	}
	err = errors.Join(err, <-loaded)
	return paused, time.Since(began), err
}

// loading waits until a sale is being loaded.
func (r *rig) loading(ctx context.Context, item string) error {
	for began := time.Now(); time.Since(began) < recoveryLimit; {
		err := r.redis.HGet(ctx, "fs:{p0}:sale:"+item, "building").Err()
		if !errors.Is(err, redis.Nil) {
			return err
		}
		if err := pause.OrCause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is not loaded", item)
}

// readOrder reads an order again and again until ctx ends.
func (r *rig) readOrder(ctx context.Context, order string, seen *load.Tally) error {
	token, err := auth.SignToken([]byte(load.Secret), "visitor-0", auth.RoleBuyer, time.Hour, time.Now())
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		began := time.Now()
		status, body, err := r.admin(context.WithoutCancel(ctx), http.MethodGet, "/v1/orders/"+order, token)
		if err != nil {
			return err
		}
		seen.Add(status, time.Since(began))
		if status == http.StatusOK && !json.Valid(body) {
			return fmt.Errorf("order %s is %q", order, body)
		}
		if err := pause.OrCause(ctx, time.Millisecond); err != nil {
			return nil //nolint:nilerr // the end of ctx is no failure
		}
	}
	return nil
}

// recoveryBars are how long a sale may stay closed after Redis has lost everything, in
// seconds, by its number of orders.
var recoveryBars = map[int]float64{10_000: 2, 1_000_000: 20}

// recoveryLimit bounds the wait for a sale.
const recoveryLimit = 5 * time.Minute

// parseSizes reads the sales' sizes, as in "10000,1000000".
func parseSizes(s string) ([]int, error) {
	var sizes []int
	for f := range strings.SplitSeq(s, ",") {
		if f == "" {
			continue
		}
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 || n > 10_000_000 {
			return nil, fmt.Errorf("need -recovery as sizes from 1 to 10,000,000 with commas between them, not %q", s)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// measureRecoveries empties Redis under a running service, whose sale has so many orders in
// the database, and prints how long it takes until a new purchase is accepted.
func measureRecoveries(ctx context.Context, m *meter) error {
	for _, n := range m.o.recovery {
		item := fmt.Sprint("recovery-", n)
		if err := m.createItem(ctx, item, stock, 0); err != nil {
			return err
		}
		if err := m.fill(ctx, item, n); err != nil {
			return fmt.Errorf("fill %s: %w", item, err)
		}
		if _, err := m.reopen(ctx, item, 0); err != nil {
			return err
		}
		if err := m.rdb.FlushAllAsync(ctx).Err(); err != nil {
			return err
		}
		took, err := m.reopen(ctx, item, 1)
		if err != nil {
			return err
		}
		fmt.Fprintf(m.out, "recovery      a sale of %d orders was open %.2f s after Redis was emptied\n", n, took.Seconds())
		bar, ok := recoveryBars[n]
		if ok {
			targets.AtMost(m.out, fmt.Sprintf("recovery_%d_s", n), took.Seconds(), bar)
		}
	}
	return nil
}

// reopen buys until it is accepted.
func (m *meter) reopen(ctx context.Context, item string, i int) (time.Duration, error) {
	began := time.Now()
	for {
		status, body, err := m.send(ctx, m.world.API.Addr, "/v1/items/"+item+"/orders", `{"quantity":1}`, i,
			"Idempotency-Key", "k", "Prefer", "respond-async")
		if err != nil {
			return 0, err
		}
		if status == http.StatusAccepted || status == http.StatusCreated || status == http.StatusOK {
			return time.Since(began), nil
		}
		var answer struct{ Code string }
		if err := json.Unmarshal(body, &answer); err != nil || status != http.StatusServiceUnavailable {
			return 0, fmt.Errorf("buy: %d %s", status, body)
		}
		if time.Since(began) > recoveryLimit {
			return 0, fmt.Errorf("%s is not open after %v: %s", item, recoveryLimit, answer.Code)
		}
		if err := pause.OrCause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// fill writes n committed orders, each for another buyer.
func (m *meter) fill(ctx context.Context, item string, n int) (err error) {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(m.world.Dir, "bench.db")+"?_busy_timeout=60000&_txlock=immediate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		text string
		args []any
	}{
		{`WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ?1)
			INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at, confirmed_at)
			SELECT printf('01990000-0000-7000-8000-%s%08d', substr('0000' || length(?2), -4), n), ?2, printf('%s-buyer-%d', ?2, n), 1, 4900, 'EUR', 'confirmed',
				printf('key-%d', n), 1790000000000, 1790000000000 FROM i`, []any{n, item}},
		{`INSERT INTO buyers (item_id, user_id, quantity) SELECT item_id, user_id, quantity FROM orders WHERE item_id = ?1`, []any{item}},
		{`UPDATE items SET sold = sold + ?1 WHERE id = ?2`, []any{n, item}},
	} {
		if _, err := tx.ExecContext(ctx, s.text, s.args...); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}
