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
	"time"

	"flashsale/bench/internal/targets"
	"flashsale/internal/pause"
)

// recoveryBars are how long a sale may stay shut after Redis has lost everything,
// in seconds, by its orders.
var recoveryBars = map[int]float64{10_000: 2, 1_000_000: 20}

// recoveryLimit is when a sale is given up.
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

// measureRecoveries empties Redis under a running service, whose sale has so many orders
// in the database, and prints how long it takes until a new buyer is accepted.
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
		status, body, err := m.send(ctx, m.world.api.addr, "/v1/items/"+item+"/orders", `{"quantity":1}`, i,
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

// fill writes n committed orders, each of a buyer of its own.
func (m *meter) fill(ctx context.Context, item string, n int) (err error) {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(m.world.dir, "bench.db")+"?_busy_timeout=60000&_txlock=immediate")
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
