// Package history holds what the clients of a run were told, and proves from
// that, the database and Redis that the shop kept its promises.
//
// A run writes one Call for each request with a Recorder, and a Final when
// everything is quiet. Check compares the two. It knows nothing of the code it
// judges: what an answer means is the contract's, and what becomes of an
// order is told by its row.
//
// Whatever Check finds is a broken promise: it never reasons from what the
// clients could not know. What it therefore cannot see stands beside each rule.
package history

// The operations of a Call.
const (
	Buy     = "buy"
	Pay     = "pay"
	Cancel  = "cancel"
	Refund  = "refund"
	Get     = "get"
	Restock = "restock"
	Pause   = "pause"
	Resume  = "resume"
	Close   = "close"
)

// The states of an order, as the service answers and keeps them.
const (
	Queued    = "queued"
	Confirmed = "confirmed"
	Paid      = "paid"
	Refunded  = "refunded"
	Cancelled = "cancelled"
	Expired   = "expired"
	Rejected  = "rejected"
)

// Call is one request and what its client saw of the answer. It is one line of
// the history.
type Call struct {
	// Client is the number of who called. A client makes one call at a time.
	Client int    `json:"client"`
	Op     string `json:"op"`
	// User is the buyer the call was made as; empty where an admin or the
	// payment service called.
	User string `json:"user,omitempty"`
	Item string `json:"item"`
	// Quantity is the number of units; of a restock it may be negative.
	Quantity int64 `json:"quantity,omitempty"`
	// Key is the idempotency key.
	Key string `json:"key,omitempty"`
	// Async tells that the client did not wait for the commit (Prefer:
	// respond-async).
	Async bool `json:"async,omitempty"`
	// Start and End are nanoseconds since the run's beginning, from one
	// monotonic clock: Start is read before anything is sent, End after the
	// answer is read or the client has given up.
	Start int64 `json:"start_ns"`
	End   int64 `json:"end_ns"`
	// Status is the HTTP status; 0: no whole answer was read.
	Status int `json:"status"`
	// Code is the problem's code, of an answer that is one.
	Code string `json:"code,omitempty"`
	// Order is the id of the order that the answer names or, where the path
	// names one (pay, cancel, refund, get), of that.
	Order string `json:"order,omitempty"`
	// State is the order's status as answered.
	State string `json:"state,omitempty"`
	// Replayed is the header Idempotent-Replayed.
	Replayed bool `json:"replayed,omitempty"`
	// RetryAfter is the header of that name, in seconds.
	RetryAfter int64 `json:"retry_after,omitempty"`
	// Err tells why there was no answer.
	Err string `json:"error,omitempty"`
}

// Known reports whether the answer tells for good what became of the call.
// Otherwise the call may have been carried out, may be carried out later, or
// not at all: no answer came, the service was unavailable, or something
// between it and the client answered.
func (c *Call) Known() bool { return c.Status >= 200 && c.Status < 500 }

// Accepted reports whether the answer acknowledges an order.
func (c *Call) Accepted() bool {
	return c.Op == Buy && (c.Status == 201 || c.Status == 202)
}

// Refused reports whether the answer says for good that the call took nothing.
func (c *Call) Refused() bool { return c.Status >= 400 && c.Known() }
