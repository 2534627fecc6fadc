package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"flashsale/internal/wire"
)

var (
	errAPI     = errors.New("loadtest: unexpected answer")
	errNotOpen = errors.New("loadtest: the sale did not open")
)

// api calls the service besides the load: it opens the sale and reads the result. It must
// not be used concurrently.
type api struct {
	target wire.Target
	auth   string // Authorization value, or empty
	conn   *wire.Conn
	q      wire.Request
}

func newAPI(t wire.Target, token string) *api {
	a := &api{target: t}
	if token != "" {
		a.auth = "Bearer " + token
	}
	return a
}

// reply is an answer whose body is the caller's to keep.
type reply struct {
	what   string // method and route
	status int
	body   []byte
}

// decode reads the body of a 2xx answer into v; any other status is an error.
func (r reply) decode(v any) error {
	if r.status < 200 || r.status > 299 {
		return fmt.Errorf("%w: %s: %d %s %.200s", errAPI, r.what, r.status, problemCode(r.body), r.body)
	}
	if err := json.Unmarshal(r.body, v); err != nil {
		return fmt.Errorf("%w: %s: %w", errAPI, r.what, err)
	}
	return nil
}

// call sends one request, on a connection that is used again.
func (a *api) call(ctx context.Context, method, route string, body []byte) (reply, error) {
	q := a.q.Start(method, a.target, route)
	if a.auth != "" {
		q.Header("Authorization", a.auth)
	}
	var req []byte
	var err error
	if body != nil {
		req, err = q.Header("Content-Type", "application/json").Body(body)
	} else {
		req, err = q.NoBody()
	}
	if err != nil {
		return reply{}, err
	}
	if a.conn == nil || !a.conn.Usable() {
		a.close()
		dctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		if a.conn, err = wire.Dial(dctx, a.target); err != nil {
			return reply{}, err
		}
		a.conn.Timeout = answerTimeout
	}
	stop := context.AfterFunc(ctx, a.closer())
	defer stop()
	res, err := a.conn.Do(req)
	if err != nil {
		return reply{}, fmt.Errorf("%s %s: %w", method, route, errors.Join(err, context.Cause(ctx)))
	}
	return reply{method + " " + route, res.Status, append([]byte(nil), res.Body...)}, nil
}

func (a *api) closer() func() {
	conn := a.conn
	return func() { closeQuietly(conn) }
}

func (a *api) close() {
	if a.conn != nil {
		closeQuietly(a.conn)
		a.conn = nil
	}
}

// openSale creates the plan's item and waits until it can be bought.
func (a *api) openSale(ctx context.Context, p *plan, timeout time.Duration) error {
	body, err := json.Marshal(map[string]any{
		"id": p.item, "name": "Load test", "description": "Created by the load test.",
		"price_minor": 990, "currency": "EUR", "stock": p.stock, "per_user_limit": p.limit,
	})
	if err != nil {
		return fmt.Errorf("open the sale: %w", err)
	}
	res, err := a.call(ctx, "POST", "/v1/admin/items", body)
	if err != nil {
		return fmt.Errorf("open the sale: %w", err)
	}
	var item struct {
		State string `json:"state"`
	}
	if err := res.decode(&item); err != nil {
		return fmt.Errorf("open the sale: %w", err)
	}
	err = poll(ctx, timeout, 20*time.Millisecond, func() (bool, error) {
		res, err := a.call(ctx, "GET", "/v1/items/"+p.item, nil)
		if err != nil {
			return false, err
		}
		if err := res.decode(&item); err != nil {
			return false, err
		}
		return item.State == "open", nil
	})
	if errors.Is(err, errPollTimeout) {
		return fmt.Errorf("%w: state %q after %s", errNotOpen, item.State, timeout)
	}
	if err != nil {
		return fmt.Errorf("open the sale: %w", err)
	}
	return nil
}

// ledger reads the item's conservation equation.
func (a *api) ledger(ctx context.Context, item string) (*ledger, error) {
	res, err := a.call(ctx, "GET", "/v1/admin/items/"+item+"/ledger", nil)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	l := new(ledger)
	if err := res.decode(l); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	return l, nil
}

// maxPages bounds the listing of orders, in case the cursors form a cycle.
const maxPages = 100_000

// orders lists all orders of an item, page by page. They carry no idempotency keys.
func (a *api) orders(ctx context.Context, item string) ([]row, error) {
	var rows []row
	cursor := ""
	for range maxPages {
		query := url.Values{"item_id": {item}, "limit": {"100"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		res, err := a.call(ctx, "GET", "/v1/orders?"+query.Encode(), nil)
		if err != nil {
			return nil, fmt.Errorf("list orders: %w", err)
		}
		var page struct {
			Orders []row  `json:"orders"`
			Next   string `json:"next_cursor"`
		}
		if err := res.decode(&page); err != nil {
			return nil, fmt.Errorf("list orders: %w", err)
		}
		rows = append(rows, page.Orders...)
		if page.Next == "" {
			return rows, nil
		}
		cursor = page.Next
	}
	return nil, fmt.Errorf("list orders: %w: more than %d pages", errAPI, maxPages)
}

var errPollTimeout = errors.New("loadtest: timed out")

// poll calls done until it returns true or an error, the timeout (errPollTimeout) or the
// context's end.
func poll(ctx context.Context, timeout, every time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errPollTimeout)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
