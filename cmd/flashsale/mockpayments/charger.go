package mockpayments

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"flashsale/order"
)

// chargeTimeout bounds one request for a charge. The mock answers before it reports the payment.
const chargeTimeout = 5 * time.Second

// Charger sends charges to a Provider. It is safe for concurrent use.
type Charger struct {
	url  string
	http *http.Client
}

// NewCharger returns a Charger for the Provider at a URL such as "http://127.0.0.1:8090".
func NewCharger(url string) *Charger {
	// Without a proxy, and without idle connections that a stop would have to close.
	return &Charger{url: url + "/charges", http: &http.Client{
		Timeout: chargeTimeout, Transport: &http.Transport{DisableKeepAlives: true},
	}}
}

// Charge asks for the payment of an order, and returns when the request is accepted, before the
// order is paid. A repeat for the same order is safe.
func (c *Charger) Charge(ctx context.Context, o order.Order) error {
	body, err := json.Marshal(chargeRequest{
		OrderID: o.ID, AmountMinor: o.Quantity * o.UnitPriceMinor, Currency: o.Currency,
	})
	if err != nil {
		return fmt.Errorf("charge order %s: %w", o.ID, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("charge order %s: %w", o.ID, err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		return fmt.Errorf("charge order %s: %w", o.ID, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 200))
		if err != nil {
			text = nil // the status says enough
		}
		return fmt.Errorf("charge order %s: answer %s: %s", o.ID, resp.Status, bytes.TrimSpace(text))
	}
	return nil
}
