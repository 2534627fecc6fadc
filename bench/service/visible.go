package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/targets"
	"flashsale/handler/auth"
)

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
	second, err := m.world.another(ctx)
	if err != nil {
		return err
	}
	defer second.Stop() //nolint:errcheck // it is ended by its process id, or has ended
	const item = "visible"
	if err := m.createItem(ctx, item, 1, 3600); err != nil {
		return err
	}
	holder, err := m.buyOne(ctx, m.world.api.Addr, item, 0)
	if err != nil {
		return err
	}
	var took []float64
	for i := range m.o.visible {
		for _, addr := range []string{m.world.api.Addr, second.Addr} {
			for range 3 { // the first refusal sets the mark, the next ones use it
				if o, err := m.buyOne(ctx, addr, item, i+1); err != nil || o != "" {
					return errors.Join(err, fmt.Errorf("round %d: a sold-out item was sold, to order %q", i, o))
				}
			}
		}
		if err := m.cancel(ctx, m.world.api.Addr, holder, i); err != nil {
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
