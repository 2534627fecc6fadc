package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"flashsale/internal/wire"
)

// kind is what an answer means for the buyer.
type kind int

const (
	// kindUnknown: no answer, or one that does not say whether the purchase happened.
	kindUnknown kind = iota
	// kindAccepted: the service acknowledged an order.
	kindAccepted
	// kindRefused: a definite no.
	kindRefused
	// kindBusy: temporarily refused; retry with the same key.
	kindBusy
)

// answer is the outcome of one attempt of a request.
type answer struct {
	kind       kind
	status     int    // 0: no answer came
	code       string // problem code; for a missing answer, why
	order      string // order id
	replayed   bool
	retryAfter time.Duration // 0: not stated
	fault      string        // what is wrong with an acknowledgement
}

// expected is what an acknowledged order must be about.
type expected struct {
	item, buyer string
	quantity    int64
}

// longestRetryAfter bounds the wait that a server can demand.
const longestRetryAfter = 30 * time.Second

// read turns a response into an answer.
func read(res *wire.Response, want expected) answer {
	a := answer{status: res.Status, replayed: string(res.Header("Idempotent-Replayed")) == "true"}
	switch {
	case res.Status >= 200 && res.Status < 300:
		a.readOrder(res.Body, want)
		return a
	case res.Status == 429 || res.Status == 503:
		a.kind = kindBusy
		a.retryAfter = retryAfter(res.Header("Retry-After"))
	case res.Status >= 400 && res.Status < 500 && res.Status != 408:
		a.kind = kindRefused
	}
	a.code = problemCode(res.Body)
	return a
}

func (a *answer) readOrder(body []byte, want expected) {
	var o struct {
		ID       string `json:"id"`
		ItemID   string `json:"item_id"`
		UserID   string `json:"user_id"`
		Quantity int64  `json:"quantity"`
		Price    int64  `json:"unit_price_minor"`
		Currency string `json:"currency"`
		Status   string `json:"status"`
		Reason   string `json:"reason"`
	}
	a.kind = kindAccepted
	if err := json.Unmarshal(body, &o); err != nil {
		a.fault = fmt.Sprintf("answer %d is not an order: %v", a.status, err)
		return
	}
	a.order = o.ID
	switch {
	case o.Status == "rejected":
		a.kind, a.code = kindRefused, "rejected:"+o.Reason
	case o.ID == "":
		a.fault = fmt.Sprintf("answer %d has an order without an id", a.status)
	case o.ItemID != want.item || o.UserID != want.buyer || o.Quantity != want.quantity:
		a.fault = fmt.Sprintf("answer %d has order %s for %d of %q by %q, asked were %d of %q by %q",
			a.status, o.ID, o.Quantity, o.ItemID, o.UserID, want.quantity, want.item, want.buyer)
	case o.Price != priceMinor || o.Currency != currency:
		a.fault = fmt.Sprintf("answer %d has order %s at %d %s a unit, the price is %d %s", a.status, o.ID, o.Price, o.Currency, priceMinor, currency)
	}
}

// problemCode finds the code of a problem document. Refusals are the bulk of a
// burst, so the plain form is found without decoding the document.
func problemCode(body []byte) string {
	mark := []byte(`"code":"`)
	if _, after, ok := bytes.Cut(body, mark); ok {
		if end := bytes.IndexByte(after, '"'); end >= 0 && bytes.IndexByte(after[:end], '\\') < 0 {
			return string(after[:end])
		}
	}
	var p struct {
		Code string `json:"code"`
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return "" // an answer that is not a problem document is counted only by its status
	}
	return p.Code
}

// retryAfter reads whole seconds. A date, which the service does not send, counts as absent.
func retryAfter(value []byte) time.Duration {
	s, err := strconv.ParseUint(string(value), 10, 32)
	if err != nil {
		return 0
	}
	return min(time.Duration(s)*time.Second, longestRetryAfter)
}

// failed turns a transport error into an answer.
func failed(err error) answer {
	why := "network"
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		why = "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "connection_refused"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		why = "connection_cut"
	case errors.Is(err, wire.ErrProtocol), errors.Is(err, wire.ErrTooLarge):
		why = "malformed"
	}
	return answer{kind: kindUnknown, code: why}
}
