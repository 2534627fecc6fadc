package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	_ "github.com/mattn/go-sqlite3" // the orders are read where they are kept
	"golang.org/x/sync/errgroup"

	"flashsale/bench/internal/targets"
	"flashsale/internal/pause"
	"flashsale/internal/wire"
)

// expiryBar is how late an order may expire, in milliseconds, at the 99th percentile.
const expiryBar = 1000

// expiryLag is the time between the last purchase and the first expiry.
const expiryLag = 15 * time.Second

// measureExpiries buys orders that require a payment, evenly over a time, pays none, and
// prints how late they expire.
func measureExpiries(ctx context.Context, m *meter) error {
	const item = "expiries"
	window := m.o.spread + expiryLag
	if err := m.createItem(ctx, item, stock, int64(window/time.Second)); err != nil {
		return err
	}
	began := time.Now()
	if err := buyEvenly(ctx, m, item); err != nil {
		return fmt.Errorf("buy evenly: %w", err)
	}
	fmt.Fprintf(m.out, "expiries      %d orders bought in %.1f s, to be paid within %v\n", m.o.expiry, time.Since(began).Seconds(), window)
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(m.world.dir, "bench.db")+"?_query_only=true&_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // it has only read
	end := time.Now().Add(window + 2*time.Minute)
	for {
		var open int
		err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders WHERE item_id = ? AND status <> 'expired'", item).Scan(&open)
		if err != nil {
			return err
		}
		if open == 0 && time.Since(began) > window {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d orders have not expired", open)
		}
		if err := pause.OrCause(ctx, 5*time.Second); err != nil {
			return err
		}
	}
	return printLateness(ctx, m, db, item)
}

func printLateness(ctx context.Context, m *meter, db *sql.DB, item string) error {
	rows, err := db.QueryContext(ctx, "SELECT closed_at - expires_at FROM orders WHERE item_id = ? ORDER BY 1", item)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // its errors are Err's
	var late []float64
	for rows.Next() {
		var ms float64
		if err := rows.Scan(&ms); err != nil {
			return err
		}
		late = append(late, ms)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(late) != m.o.expiry {
		return fmt.Errorf("%d orders expired, want %d", len(late), m.o.expiry)
	}
	if late[0] < 0 {
		return fmt.Errorf("an order expired %v ms early", -late[0])
	}
	fmt.Fprintf(m.out, "expiries      late by p50 %.0f ms, p99 %.0f ms, at most %.0f ms, never early\n",
		late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
	targets.AtMost(m.out, "expiry_p99_ms", late[len(late)*99/100], expiryBar)
	return nil
}

// buyEvenly sends the purchases at an even pace, and waits for all answers.
func buyEvenly(ctx context.Context, m *meter, item string) error {
	target, err := wire.ParseTarget("http://" + m.world.api.Addr)
	if err != nil {
		return err
	}
	head := "POST /v1/items/" + item + "/orders HTTP/1.1\r\nHost: " + target.Host +
		"\r\nContent-Type: application/json\r\nPrefer: respond-async\r\nContent-Length: 14\r\nIdempotency-Key: k\r\nAuthorization: Bearer "
	start := time.Now()
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range m.o.connections {
		g.Go(func() error {
			conn, err := wire.Dial(ctx, target)
			if err != nil {
				return err
			}
			defer conn.Close() //nolint:errcheck // every request on it has been answered
			var req bytes.Buffer
			for {
				i := int(next.Add(1)) - 1
				if i >= m.o.expiry {
					return nil
				}
				due := start.Add(time.Duration(float64(m.o.spread) * float64(i) / float64(m.o.expiry)))
				if err := pause.OrCause(ctx, time.Until(due)); err != nil {
					return err
				}
				req.Reset()
				req.WriteString(head)
				req.Write(m.crowd.Token(i))
				req.WriteString("\r\n\r\n{\"quantity\":1}")
				res, err := conn.Do(req.Bytes())
				if err != nil {
					return err
				}
				if res.Status != http.StatusAccepted {
					return errors.New("answer " + strconv.Itoa(res.Status))
				}
			}
		})
	}
	return g.Wait()
}
