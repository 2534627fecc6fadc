package order

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// event is one event to send.
type event struct {
	kind            EventType
	itemID, orderID string
	data            any
}

// body encodes the event for sending.
func (e *event) body(at int64) ([]byte, error) {
	b, err := json.Marshal(struct {
		Type      EventType `json:"type"`
		Timestamp stamp     `json:"timestamp"`
		Data      any       `json:"data"`
	}{e.kind, stamp(at), e.data})
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", e.kind, err)
	}
	return b, nil
}

// stamp is a time in Unix milliseconds that is encoded as in the API.
type stamp int64

// MarshalText writes RFC 3339 in UTC with milliseconds.
func (s stamp) MarshalText() ([]byte, error) {
	return time.UnixMilli(int64(s)).UTC().AppendFormat(nil, "2006-01-02T15:04:05.000Z07:00"), nil
}

// orderData is an order in an event. It has the fields of the API, without the buyer's
// idempotency key.
type orderData struct {
	ID               string `json:"id"`
	ItemID           string `json:"item_id"`
	UserID           string `json:"user_id"`
	Quantity         int64  `json:"quantity"`
	UnitPriceMinor   int64  `json:"unit_price_minor"`
	Currency         string `json:"currency"`
	Status           Status `json:"status"`
	Reason           string `json:"reason,omitempty"`
	CreatedAt        stamp  `json:"created_at"`
	ConfirmedAt      stamp  `json:"confirmed_at,omitempty"`
	ExpiresAt        stamp  `json:"expires_at,omitempty"`
	PaidAt           stamp  `json:"paid_at,omitempty"`
	ClosedAt         stamp  `json:"closed_at,omitempty"`
	PaymentReference string `json:"payment_reference,omitempty"`
	Restocked        *bool  `json:"restocked,omitempty"` // only for a refunded order
}

// dataOf converts an order.
func dataOf(o *Order) orderData {
	d := orderData{
		ID: o.ID, ItemID: o.ItemID, UserID: o.UserID, Quantity: o.Quantity, UnitPriceMinor: o.UnitPriceMinor,
		Currency: o.Currency, Status: o.Status, Reason: o.Reason,
		CreatedAt: stamp(toMillis(o.CreatedAt)), ConfirmedAt: stamp(toMillis(o.ConfirmedAt)), ExpiresAt: stamp(toMillis(o.ExpiresAt)),
		PaidAt: stamp(toMillis(o.PaidAt)), ClosedAt: stamp(toMillis(o.ClosedAt)), PaymentReference: o.PaymentReference,
	}
	if o.Status == StatusRefunded {
		d.Restocked = &o.Restocked
	}
	return d
}

// dataOfTask converts a task and its outcome.
func dataOfTask(t *task, o outcome) orderData {
	return orderData{
		ID: t.ID, ItemID: t.ItemID, UserID: t.UserID, Quantity: t.Quantity, UnitPriceMinor: t.UnitPriceMinor,
		Currency: t.Currency, Status: o.status, Reason: o.reason, CreatedAt: stamp(t.CreatedAt),
		ConfirmedAt: stamp(o.confirmedAt), ExpiresAt: stamp(o.expiresAt), ClosedAt: stamp(o.closedAt),
	}
}

// paymentData is a payment that must be refunded.
type paymentData struct {
	ID          int64  `json:"id"`
	Reference   string `json:"reference"`
	AmountMinor int64  `json:"amount_minor"`
	Currency    string `json:"currency"`
	// Outcome is late, duplicate or mismatch.
	Outcome    PaymentOutcome `json:"outcome"`
	ReceivedAt stamp          `json:"received_at"`
	Order      orderData      `json:"order"`
}

// soldOutData is an item that is sold out.
type soldOutData struct {
	ItemID     string `json:"item_id"`
	StockTotal int64  `json:"stock_total"`
}

// testData is the data of a test event.
type testData struct {
	EndpointID string `json:"endpoint_id"`
}

// The ids of events and endpoints are a prefix and a UUIDv7 in hexadecimal.
const (
	eventPrefix    = "msg_"
	endpointPrefix = "we_"
)

// newID returns a new id with a prefix.
func newID(prefix string) (string, error) {
	enableRandPool()
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make id: %w", err)
	}
	return prefix + hex.EncodeToString(id[:]), nil
}
