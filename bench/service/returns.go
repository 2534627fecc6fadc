package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/targets"
	"flashsale/handler/auth"
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
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(m.world.Dir, "bench.db")+"?_query_only=true&_busy_timeout=10000")
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
	target, err := wire.ParseTarget("http://" + m.world.API.Addr)
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

const (
	// visibleBar is how long another process may take to sell a returned unit, in
	// milliseconds.
	visibleBar = 100
	// visibleLimit bounds the wait for a unit.
	visibleLimit = 10 * time.Second
)

// measureVisible sells the one unit of an item, makes two API processes answer "sold out" from
// memory, cancels the order on one of them, and prints how long it takes until the other sells
// it: from the answer to the cancellation to that of the purchase.
func measureVisible(ctx context.Context, m *meter) error {
	second, err := m.world.Another(ctx)
	if err != nil {
		return err
	}
	defer second.Stop() //nolint:errcheck // it is ended by its process id, or has ended
	const item = "visible"
	if err := m.createItem(ctx, item, 1, 3600); err != nil {
		return err
	}
	holder, err := m.buyOne(ctx, m.world.API.Addr, item, 0)
	if err != nil {
		return err
	}
	var took []float64
	for i := range m.o.visible {
		for _, addr := range []string{m.world.API.Addr, second.Addr} {
			for range 3 { // the first refusal sets the mark, the next ones use it
				if o, err := m.buyOne(ctx, addr, item, i+1); err != nil || o != "" {
					return errors.Join(err, fmt.Errorf("round %d: a sold-out item was sold, to order %q", i, o))
				}
			}
		}
		if err := m.cancel(ctx, m.world.API.Addr, holder, i); err != nil {
			return err
		}
		began := time.Now()
		for holder = ""; holder == ""; {
			if holder, err = m.buyOne(ctx, second.Addr, item, i+1); err != nil {
				return err
			}
			if time.Since(began) > visibleLimit {
				return fmt.Errorf("round %d: the unit could not be bought for %v", i, visibleLimit)
			}
		}
		took = append(took, float64(time.Since(began))/float64(time.Millisecond))
	}
	slices.Sort(took)
	fmt.Fprintf(m.out, "visible       a unit that came back was sold by another process after p50 %.1f ms, p99 %.1f ms, at most %.1f ms\n",
		took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	targets.AtMost(m.out, "returned_unit_sold_ms", took[len(took)-1], visibleBar)
	return nil
}

// buyOne buys as the buyer i with a key of its own, and returns the order's id,
// or nothing when the item is sold out.
func (m *meter) buyOne(ctx context.Context, addr, item string, i int) (string, error) {
	status, body, err := m.send(ctx, addr, "/v1/items/"+item+"/orders", `{"quantity":1}`, i, "Idempotency-Key", fmt.Sprint("k", i))
	var answer struct{ ID, Code string }
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	switch {
	case err != nil:
		return "", err
	case status == http.StatusCreated:
		return answer.ID, nil
	case answer.Code == "sold_out":
		return "", nil
	}
	return "", fmt.Errorf("buy: %d %s", status, body)
}

func (m *meter) cancel(ctx context.Context, addr, order string, i int) error {
	status, body, err := m.send(ctx, addr, "/v1/orders/"+order+"/cancel", "", i)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("cancel: %d %s", status, body)
	}
	return err
}

// send posts as the buyer i.
func (m *meter) send(ctx context.Context, addr, path, body string, i int, header ...string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	token, err := auth.SignToken([]byte(load.Secret), fmt.Sprint("visitor-", i), auth.RoleBuyer, time.Hour, time.Now())
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	for k := 0; k+1 < len(header); k += 2 {
		req.Header.Set(header[k], header[k+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, text, errors.Join(err, res.Body.Close())
}
