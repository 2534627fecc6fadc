package store

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	"flashsale/internal/bucket"
	"flashsale/order"
)

// Event is one event to send.
type Event struct {
	Kind            order.EventType
	itemID, orderID string
	Data            any
}

// body encodes the event for sending.
func (e *Event) body(at int64) ([]byte, error) {
	b, err := json.Marshal(struct {
		Type      order.EventType `json:"type"`
		Timestamp Stamp           `json:"timestamp"`
		Data      any             `json:"data"`
	}{e.Kind, Stamp(at), e.Data})
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", e.Kind, err)
	}
	return b, nil
}

// Stamp is a time in Unix milliseconds that is encoded as in the API.
type Stamp int64

// MarshalText writes RFC 3339 in UTC with milliseconds.
func (s Stamp) MarshalText() ([]byte, error) {
	return time.UnixMilli(int64(s)).UTC().AppendFormat(nil, "2006-01-02T15:04:05.000Z07:00"), nil
}

// orderData is an order in an event. It has the fields of the API, without the buyer's
// idempotency key.
type orderData struct {
	ID               string       `json:"id"`
	ItemID           string       `json:"item_id"`
	UserID           string       `json:"user_id"`
	Quantity         int64        `json:"quantity"`
	UnitPriceMinor   int64        `json:"unit_price_minor"`
	Currency         string       `json:"currency"`
	Status           order.Status `json:"status"`
	Reason           string       `json:"reason,omitempty"`
	CreatedAt        Stamp        `json:"created_at"`
	ConfirmedAt      Stamp        `json:"confirmed_at,omitempty"`
	ExpiresAt        Stamp        `json:"expires_at,omitempty"`
	PaidAt           Stamp        `json:"paid_at,omitempty"`
	ClosedAt         Stamp        `json:"closed_at,omitempty"`
	PaymentReference string       `json:"payment_reference,omitempty"`
	Restocked        *bool        `json:"restocked,omitempty"` // only for a refunded order
}

// dataOf converts an order.
func dataOf(o *order.Order) orderData {
	d := orderData{
		ID: o.ID, ItemID: bucket.Item(o.ItemID), UserID: o.UserID, Quantity: o.Quantity, UnitPriceMinor: o.UnitPriceMinor,
		Currency: o.Currency, Status: o.Status, Reason: o.Reason,
		CreatedAt: Stamp(order.ToMillis(o.CreatedAt)), ConfirmedAt: Stamp(order.ToMillis(o.ConfirmedAt)), ExpiresAt: Stamp(order.ToMillis(o.ExpiresAt)),
		PaidAt: Stamp(order.ToMillis(o.PaidAt)), ClosedAt: Stamp(order.ToMillis(o.ClosedAt)), PaymentReference: o.PaymentReference,
	}
	if o.Status == order.StatusRefunded {
		d.Restocked = &o.Restocked
	}
	return d
}

// dataOfTask converts a task and its outcome.
func dataOfTask(t *order.Task, o order.Outcome) orderData {
	return orderData{
		ID: t.ID, ItemID: bucket.Item(t.ItemID), UserID: t.UserID, Quantity: t.Quantity, UnitPriceMinor: t.UnitPriceMinor,
		Currency: t.Currency, Status: o.Status, Reason: o.Reason, CreatedAt: Stamp(t.CreatedAt),
		ConfirmedAt: Stamp(o.ConfirmedAt), ExpiresAt: Stamp(o.ExpiresAt), ClosedAt: Stamp(o.ClosedAt),
	}
}

// paymentData is a payment that must be refunded.
type paymentData struct {
	ID          int64  `json:"id"`
	Reference   string `json:"reference"`
	AmountMinor int64  `json:"amount_minor"`
	Currency    string `json:"currency"`
	// Outcome is late, duplicate or mismatch.
	Outcome    order.PaymentOutcome `json:"outcome"`
	ReceivedAt Stamp                `json:"received_at"`
	Order      orderData            `json:"order"`
}

// soldOutData is an item that is sold out.
type soldOutData struct {
	ItemID     string `json:"item_id"`
	StockTotal int64  `json:"stock_total"`
}

// TestData is the data of a test event.
type TestData struct {
	EndpointID string `json:"endpoint_id"`
}

// The ids of events and endpoints are a prefix and a UUIDv7 in hexadecimal.
const (
	eventPrefix    = "msg_"
	EndpointPrefix = "we_"
)

// randomness is read in larger blocks, because a system call for each event would slow down the
// commits. uuid.EnableRandPool must not be called while another goroutine makes an id, as the
// sellers of this process do.
var randomness = &blockReader{blocks: bufio.NewReaderSize(rand.Reader, 4096)}

// blockReader is a bufio.Reader for concurrent use.
type blockReader struct {
	mu     sync.Mutex
	blocks *bufio.Reader
}

// Read fills p.
func (r *blockReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return io.ReadFull(r.blocks, p)
}

// NewID returns a new id with a prefix.
func NewID(prefix string) (string, error) {
	id, err := uuid.NewV7FromReader(randomness)
	if err != nil {
		return "", fmt.Errorf("make id: %w", err)
	}
	return prefix + hex.EncodeToString(id[:]), nil
}
