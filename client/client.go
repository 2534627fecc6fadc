// Package client is a Go client of the service. client.gen.go is generated from the OpenAPI document:
// a type for each object and a method for each operation. The other files add what a document cannot
// express:
//
//   - [NewBearer] authenticates requests, and repeats those that are safe to repeat ([Retry]).
//   - [Decode] returns an answer as a Go value, or the refusal as an [*Error] with its code.
//   - [Buy] places an order once, however often its connection is lost. [Follow] waits for its changes.
//   - [WebhookVerifier] verifies webhooks on the shop's servers.
//
// The package imports no other package of this repository.
package client

//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config config.yaml ../handler/openapi/openapi.yaml
//go:generate sh -c "sha256sum config.yaml overlay.yaml ../handler/openapi/openapi.yaml client.gen.go > generated.sha256"

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// NewBearer returns a client that sends a token with each request; see docs/identity.md for tokens.
// server is the address of the service, for example "https://sale.example". With an empty token it can
// only use the routes for all. Without [WithHTTPClient] among the options, the client is a [Retry]
// with its defaults.
func NewBearer(server, token string, options ...ClientOption) (*Client, error) {
	return NewBearerFunc(server, func(context.Context) (string, error) { return token, nil }, options...)
}

// NewBearerFunc is like [NewBearer], for tokens that expire: it calls token before each request.
func NewBearerFunc(server string, token func(context.Context) (string, error), options ...ClientOption) (*Client, error) {
	authorize := func(ctx context.Context, r *http.Request) error {
		value, err := token(ctx)
		if err != nil {
			return fmt.Errorf("flashsale: token: %w", err)
		}
		if value != "" {
			r.Header.Set("Authorization", "Bearer "+value)
		}
		return nil
	}
	all := append([]ClientOption{WithHTTPClient(&Retry{}), WithRequestEditorFn(authorize)}, options...)
	return NewClient(server, all...)
}

// Error is a refusal by the service. Its Code is stable and decides what to do; docs/problems.md
// explains each.
type Error struct{ Problem }

// Error returns the status, the code and the details.
func (e *Error) Error() string {
	return fmt.Sprintf("flashsale: %d %s: %s (request %s)", e.Status, e.Code, e.Detail, e.RequestID)
}

// HasCode reports whether err is a refusal with the code.
func HasCode(err error, code ProblemCode) bool {
	var refusal *Error
	return errors.As(err, &refusal) && refusal.Code == code
}

// maxBody bounds the answers that Decode reads, in bytes.
const maxBody = 64 << 20

// Decode reads the answer of an operation as a T, and closes it:
//
//	item, err := client.Decode[client.Item](c.GetItem(ctx, "demo", nil))
//
// A refusal becomes an *Error. Any other error is one of the connection: the outcome of a request
// without an Idempotency-Key is then unknown.
func Decode[T any](resp *http.Response, err error) (T, error) {
	var value T
	body, err := read(resp, err)
	if err != nil {
		return value, err
	}
	if len(body) == 0 {
		return value, fmt.Errorf("flashsale: answer %d has no body", resp.StatusCode)
	}
	if err := json.Unmarshal(body, &value); err != nil {
		return value, fmt.Errorf("flashsale: decode answer: %w", err)
	}
	return value, nil
}

// Done is [Decode] for an operation whose answer has no body.
func Done(resp *http.Response, err error) error {
	_, err = read(resp, err)
	return err
}

// read returns the body of a success.
func read(resp *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("flashsale: read answer: %w", err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return body, nil
	}
	refusal := &Error{}
	if err := json.Unmarshal(body, &refusal.Problem); err != nil || refusal.Code == "" {
		// A proxy answered.
		return nil, fmt.Errorf("flashsale: unexpected answer: %s", resp.Status)
	}
	return nil, refusal
}

// BuyParams is a request to buy.
type BuyParams struct {
	// Item is the item's id.
	Item string
	// Quantity is the number of units. Default 1.
	Quantity int64
	// Key is the idempotency key: 1 to 255 visible ASCII characters, the same for all repeats of one
	// purchase. If the process may end before the answer, store the key first. Default: a random one.
	Key string
	// Prefer is for example "respond-async" or "wait=5". Default: up to 2 s for the commit.
	Prefer string
}

// Buy places an order. After a lost connection or a 503 the client repeats it with the same key, so at
// most one order is made. After an error other than *Error, call Buy with the same key again; for that
// set Key, because a random key is not returned. The order is confirmed, or queued if its commit takes
// longer; see [Follow]. replayed means that an earlier request with the key made it.
func Buy(ctx context.Context, c ClientInterface, p BuyParams) (order Order, replayed bool, err error) {
	if p.Quantity == 0 {
		p.Quantity = 1
	}
	if p.Key == "" {
		p.Key = rand.Text()
	}
	params := &PlaceOrderParams{IdempotencyKey: p.Key}
	if p.Prefer != "" {
		params.Prefer = &p.Prefer
	}
	resp, err := c.PlaceOrder(ctx, p.Item, params, PlaceOrderJSONRequestBody{Quantity: p.Quantity})
	order, err = Decode[Order](resp, err)
	return order, err == nil && resp.Header.Get("Idempotent-Replayed") == "true", err
}

// TimeOrNull is a time in a change that can also remove it. The zero value leaves it as it is.
type TimeOrNull struct {
	// Time is the new time.
	Time time.Time
	// Null removes the time.
	Null bool
}

// IsZero reports whether the value changes nothing.
func (t TimeOrNull) IsZero() bool { return !t.Null && t.Time.IsZero() }

// MarshalJSON writes the time or null.
func (t TimeOrNull) MarshalJSON() ([]byte, error) {
	if t.Null {
		return []byte("null"), nil
	}
	return t.Time.MarshalJSON()
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *TimeOrNull) UnmarshalJSON(text []byte) error {
	if t.Null = string(text) == "null"; t.Null {
		t.Time = time.Time{}
		return nil
	}
	return t.Time.UnmarshalJSON(text)
}
