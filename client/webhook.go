package client

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Errors of WebhookVerifier; compare with errors.Is.
var (
	// ErrWebhookHeader means that a header of the signature is missing or malformed.
	ErrWebhookHeader = errors.New("flashsale: webhook headers are missing or malformed")
	// ErrWebhookTime means that the message was signed too long ago, or in the future.
	ErrWebhookTime = errors.New("flashsale: webhook timestamp is too far from the clock")
	// ErrWebhookSignature means that no secret matches. Discard the message.
	ErrWebhookSignature = errors.New("flashsale: webhook signature does not match")
	// ErrWebhookBody means that the body is too large or was not received completely.
	ErrWebhookBody = errors.New("flashsale: webhook body is too large or incomplete")
)

// maxWebhookBody bounds the body of a webhook, in bytes. Events are much smaller.
const maxWebhookBody = 1 << 20

// webhookTolerance is the greatest difference between a message's timestamp and the receiver's
// clock. The service signs each attempt again, so retries are not affected.
const webhookTolerance = 5 * time.Minute

// WebhookVerifier verifies that webhooks were sent by the service. It is safe for concurrent use.
type WebhookVerifier struct {
	// Tolerance is the greatest difference between a message's timestamp and Now. Default 5
	// minutes.
	Tolerance time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time

	keys [][]byte
}

// NewWebhookVerifier returns a verifier that accepts the signatures of any of the secrets. Pass the
// old and the new one while a secret is rotated.
func NewWebhookVerifier(secrets ...string) (*WebhookVerifier, error) {
	if len(secrets) == 0 {
		return nil, errors.New("flashsale: a webhook verifier needs a secret")
	}
	v := &WebhookVerifier{}
	for i, secret := range secrets {
		encoded, ok := strings.CutPrefix(secret, "whsec_")
		key, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(key) == 0 {
			return nil, fmt.Errorf("flashsale: webhook secret %d of %d is not whsec_ and base64", i+1, len(secrets)) // the secret stays out of logs
		}
		v.keys = append(v.keys, key)
	}
	return v, nil
}

// Verify checks the signature of a body exactly as it was received. Errors: ErrWebhookHeader,
// ErrWebhookTime, ErrWebhookSignature.
func (v *WebhookVerifier) Verify(h http.Header, body []byte) error {
	id, timestamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if id == "" || err != nil {
		return ErrWebhookHeader
	}
	now, tolerance := time.Now, v.Tolerance
	if v.Now != nil {
		now = v.Now
	}
	if tolerance == 0 {
		tolerance = webhookTolerance
	}
	if now().Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return ErrWebhookTime
	}
	for _, key := range v.keys {
		mac := hmac.New(sha256.New, key)
		// Writing to a hash never fails.
		_, _ = fmt.Fprintf(mac, "%s.%s.", id, timestamp)
		_, _ = mac.Write(body)
		want := mac.Sum(nil)
		for signature := range strings.FieldsSeq(h.Get("Webhook-Signature")) {
			encoded, ok := strings.CutPrefix(signature, "v1,")
			got, err := base64.StdEncoding.DecodeString(encoded)
			if ok && err == nil && hmac.Equal(got, want) {
				return nil
			}
		}
	}
	return ErrWebhookSignature
}

// WebhookMessage is an event that the service has sent.
type WebhookMessage struct {
	// ID is the same in every delivery of the event. Store it to recognize repeats.
	ID string `json:"-"`
	// Type is the event's type, for example "order.paid". New types may be added.
	Type string `json:"type"`
	// Timestamp is when it happened.
	Timestamp time.Time `json:"timestamp"`
	// Data depends on the type; see Order.
	Data json.RawMessage `json:"data"`
}

// Read reads, verifies and decodes the request of a webhook. Its errors are those of Verify,
// ErrWebhookBody, and errors of encoding/json; answer 400 to all of them.
func (v *WebhookVerifier) Read(r *http.Request) (WebhookMessage, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxWebhookBody+1))
	if err != nil || len(body) > maxWebhookBody {
		return WebhookMessage{}, ErrWebhookBody
	}
	if err := v.Verify(r.Header, body); err != nil {
		return WebhookMessage{}, err
	}
	m := WebhookMessage{ID: r.Header.Get("Webhook-Id")}
	if err := json.Unmarshal(body, &m); err != nil {
		return WebhookMessage{}, fmt.Errorf("flashsale: decode webhook %s: %w", m.ID, err)
	}
	return m, nil
}

// Order returns the order of an event whose type begins with "order.".
func (m *WebhookMessage) Order() (Order, error) {
	var o Order
	if !strings.HasPrefix(m.Type, "order.") {
		return o, fmt.Errorf("flashsale: event %s of type %s is not about an order's state", m.ID, m.Type)
	}
	if err := json.Unmarshal(m.Data, &o); err != nil {
		return o, fmt.Errorf("flashsale: decode order of event %s: %w", m.ID, err)
	}
	return o, nil
}
