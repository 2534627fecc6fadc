package main

import (
	"cmp"
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
	auth   string        // Authorization value, or empty
	bound  time.Duration // of one call; 0: answerTimeout
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

// call sends one request, on a connection that is used again. A GET is sent once more if that
// connection fails.
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
	kept := a.conn != nil
	res, err := a.exchange(ctx, req)
	if err != nil && kept && method == "GET" && ctx.Err() == nil {
		// The service may have closed the connection since the last call.
		a.close()
		res, err = a.exchange(ctx, req)
	}
	if err != nil {
		return reply{}, fmt.Errorf("%s %s: %w", method, route, errors.Join(err, context.Cause(ctx)))
	}
	return reply{method + " " + route, res.Status, append([]byte(nil), res.Body...)}, nil
}

// exchange sends a request, if necessary on a new connection.
func (a *api) exchange(ctx context.Context, req []byte) (*wire.Response, error) {
	if a.conn == nil || !a.conn.Usable() {
		a.close()
		bound := cmp.Or(a.bound, answerTimeout)
		dctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		conn, err := wire.Dial(dctx, a.target)
		if err != nil {
			return nil, err
		}
		conn.Timeout = bound
		a.conn = conn
	}
	stop := context.AfterFunc(ctx, a.closer())
	defer stop()
	return a.conn.Do(req)
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

// itemState is what the load test reads of an item.
type itemState struct {
	State  string    `json:"state"`
	Opens  time.Time `json:"opens_at"`
	Server time.Time `json:"server_time"`
}

// openSale creates the plan's item and waits until it can be bought, or, if the plan has a
// lobby, until it is shown. It returns when the sale opens by our clock.
func (a *api) openSale(ctx context.Context, p *plan, timeout time.Duration) (time.Time, error) {
	item := map[string]any{
		"id": p.item, "name": "Load test", "description": "Created by the load test.",
		"price_minor": priceMinor, "currency": currency, "stock": p.stock, "per_user_limit": p.limit,
	}
	if p.buckets > 1 {
		item["buckets"] = p.buckets
	}
	if p.opening > 0 {
		skew, err := a.skew(ctx)
		if err != nil {
			return time.Time{}, fmt.Errorf("open the sale: %w", err)
		}
		item["opens_at"] = time.Now().Add(skew + p.opening + setUp).UTC().Format(time.RFC3339Nano)
	}
	body, err := json.Marshal(item)
	if err != nil {
		return time.Time{}, fmt.Errorf("open the sale: %w", err)
	}
	asked := time.Now()
	res, err := a.call(ctx, "POST", "/v1/admin/items", body)
	if err != nil {
		return time.Time{}, fmt.Errorf("open the sale: %w", err)
	}
	answered := time.Now()
	var state itemState
	if err := res.decode(&state); err != nil {
		return time.Time{}, fmt.Errorf("open the sale: %w", err)
	}
	opens := answered
	if p.opening > 0 {
		if state.Opens.IsZero() || state.Server.IsZero() {
			return time.Time{}, fmt.Errorf("open the sale: %w: %s: the answer has no opens_at or no server_time", errAPI, res.what)
		}
		// The service's clock is read in the middle of the call.
		opens = asked.Add(answered.Sub(asked)/2 + state.Opens.Sub(state.Server))
	}
	return opens, a.awaitItem(ctx, p, timeout)
}

// awaitItem waits until the item can be bought, or, if the plan has a lobby, is shown.
func (a *api) awaitItem(ctx context.Context, p *plan, timeout time.Duration) error {
	var state itemState
	err := poll(ctx, timeout, 20*time.Millisecond, func() (bool, error) {
		res, err := a.call(ctx, "GET", "/v1/items/"+p.item, nil)
		if err != nil {
			return false, err
		}
		if err := res.decode(&state); err != nil {
			return false, err
		}
		return state.State == "open" || p.opening > 0 && state.State == "scheduled", nil
	})
	if errors.Is(err, errPollTimeout) {
		return fmt.Errorf("%w: state %q after %s", errNotOpen, state.State, timeout)
	}
	if err != nil {
		return fmt.Errorf("open the sale: %w", err)
	}
	return nil
}

// skew is about how far the service's clock is ahead of ours; 0 if no item shows it.
func (a *api) skew(ctx context.Context) (time.Duration, error) {
	res, err := a.call(ctx, "GET", "/v1/items?limit=1", nil)
	if err != nil {
		return 0, err
	}
	var page struct {
		Items []itemState `json:"items"`
	}
	if err := res.decode(&page); err != nil {
		return 0, err
	}
	if len(page.Items) == 0 || page.Items[0].Server.IsZero() {
		return 0, nil
	}
	return time.Until(page.Items[0].Server), nil
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
