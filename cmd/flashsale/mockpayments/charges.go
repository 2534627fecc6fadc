package mockpayments

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"flashsale/client"
)

const (
	// maxCharges bounds the charges that are remembered. A new one replaces the oldest that is
	// not pending.
	maxCharges = 1000
	// maxChargeBody bounds the body of a charge, in bytes.
	maxChargeBody = 4 << 10
	// maxAmount is the largest amount that the service accepts.
	maxAmount = 1_000_000_000_000_000_000
)

// state is the state of a charge.
type state string

const (
	statePending state = "pending" // it is being reported
	statePaid    state = "paid"
	stateRefused state = "refused" // by the service, with a problem code
	stateFailed  state = "failed"  // no answer from the service; another charge tries again
)

// charge is an amount to collect for an order.
type charge struct {
	ID          string // also the reference of the payment
	OrderID     string
	AmountMinor int64
	Currency    string
	At          time.Time
	State       state
	Problem     string // why it was refused or failed
}

// chargeID returns the id of a charge. The same amount for the same order always has the same id,
// also after a restart, so the service counts a repeat as the same payment.
func chargeID(order string, amount int64, currency string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", order, amount, currency))
	return "ch_" + hex.EncodeToString(sum[:12])
}

// errBusy means that the mock accepts no charge at present.
var errBusy = errors.New("mockpayments: too many pending charges, or stopping")

// charges are the latest charges.
type charges struct {
	now func() time.Time

	mu   sync.Mutex
	list []*charge // the oldest first
	// queue has pending charges only, each once, so it never has more than maxCharges.
	queue  chan charge
	closed bool
}

func newCharges(now func() time.Time) *charges {
	return &charges{now: now, queue: make(chan charge, maxCharges)}
}

// add returns the id of the order's charge that is pending or paid; if there is none, it adds
// and queues a charge. Errors: errBusy.
func (cs *charges) add(order string, amount int64, currency string) (string, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return "", errBusy
	}
	id := chargeID(order, amount, currency)
	replaced := -1 // the index of the charge that the new one replaces
	for i, c := range cs.list {
		ended := c.State == stateRefused || c.State == stateFailed
		if c.OrderID == order && !ended {
			return c.ID, nil
		}
		if c.ID == id {
			replaced = i
		}
	}
	if replaced < 0 && len(cs.list) == maxCharges {
		replaced = slices.IndexFunc(cs.list, func(c *charge) bool { return c.State != statePending })
		if replaced < 0 {
			return "", errBusy
		}
	}
	if replaced >= 0 {
		cs.list = slices.Delete(cs.list, replaced, replaced+1)
	}
	c := &charge{ID: id, OrderID: order, AmountMinor: amount, Currency: currency, At: cs.now(), State: statePending}
	cs.list = append(cs.list, c)
	cs.queue <- *c
	return id, nil
}

// settle sets the state of a charge that was pending.
func (cs *charges) settle(id string, s state, problem string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.list {
		if c.ID == id {
			c.State, c.Problem = s, problem
		}
	}
}

// close refuses further charges. It reports false if they are refused already.
func (cs *charges) close() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return false
	}
	cs.closed = true
	close(cs.queue)
	return true
}

// latest returns at most n charges, the newest first.
func (cs *charges) latest(n int) []charge {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var out []charge
	for i := len(cs.list) - 1; i >= 0 && len(out) < n; i-- {
		out = append(out, *cs.list[i])
	}
	return out
}

// report reports a charge as received until the service accepts or refuses it.
func (p *Provider) report(ctx context.Context, api *client.Client, c charge) {
	limited, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	// A repeat is safe because of the reference. The client retries only requests with a key.
	keyed := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Idempotency-Key", c.ID)
		return nil
	}
	body := client.PaymentReport{Reference: c.ID, AmountMinor: c.AmountMinor, Currency: c.Currency}
	_, err := client.Decode[client.Order](api.RecordPayment(limited, c.OrderID, body, keyed)) //nolint:bodyclose // Decode closes it
	var refusal *client.Error
	switch {
	case err == nil:
		p.charges.settle(c.ID, statePaid, "")
	case errors.As(err, &refusal) && refusal.Status < 500 && refusal.Status != http.StatusTooManyRequests:
		p.charges.settle(c.ID, stateRefused, string(refusal.Code))
	case ctx.Err() != nil: // stopping; another charge for the order repeats the report
	case errors.As(err, &refusal):
		p.charges.settle(c.ID, stateFailed, string(refusal.Code))
		p.cfg.OnError(err)
	default:
		p.charges.settle(c.ID, stateFailed, "no_answer")
		p.cfg.OnError(err)
	}
}

// chargeRequest is the body of POST /charges.
type chargeRequest struct {
	OrderID     string `json:"order_id"`
	AmountMinor int64  `json:"amount_minor"`
	Currency    string `json:"currency"`
}

var (
	orderPattern    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	currencyPattern = regexp.MustCompile(`^[A-Z]{3}$`)
)

// check returns what is wrong with the request, or "".
func (q *chargeRequest) check() string {
	switch {
	case !orderPattern.MatchString(q.OrderID):
		return "order_id is the id of an order"
	case q.AmountMinor < 0 || q.AmountMinor > maxAmount:
		return "amount_minor is an amount in the currency's smallest unit"
	case !currencyPattern.MatchString(q.Currency):
		return "currency is a code of ISO 4217"
	}
	return ""
}

// serveCharge answers POST /charges.
func (p *Provider) serveCharge(w http.ResponseWriter, r *http.Request) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "Content-Type must be application/json", http.StatusUnsupportedMediaType)
		return
	}
	var q chargeRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChargeBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil || !atEnd(d) {
		http.Error(w, `the body must be {"order_id","amount_minor","currency"}`, http.StatusBadRequest)
		return
	}
	if wrong := q.check(); wrong != "" {
		http.Error(w, wrong, http.StatusUnprocessableEntity)
		return
	}
	id, err := p.charges.add(q.OrderID, q.AmountMinor, q.Currency)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many pending charges, or stopping", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintf(w, "{\"charge\":%q}\n", id)
}

// atEnd reports whether nothing follows the decoded value.
func atEnd(d *json.Decoder) bool {
	_, err := d.Token()
	return errors.Is(err, io.EOF)
}
