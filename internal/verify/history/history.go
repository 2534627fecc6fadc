// Package history records the answers that the clients of a run received, and checks them
// against the database and Redis: the shop must have kept its promises.
//
// A run writes one Call for each request with a Recorder, and a Final at the end, when nothing
// is in progress any more. Check compares the two. It does not depend on the code under test:
// it interprets the answers by the API contract, and the fate of an order by its row.
//
// Every finding of Check is a broken promise, because Check only uses facts that the clients
// could know. The comment of each rule names the faults that it therefore cannot detect.
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

// Call is one request and the part of the answer that its client saw. It is one line of the
// history.
type Call struct {
	// Client is the number of the client. A client makes one call at a time.
	Client int    `json:"client"`
	Op     string `json:"op"`
	// User is the buyer who made the call; empty for calls of an admin or the payment service.
	User string `json:"user,omitempty"`
	Item string `json:"item"`
	// Quantity is the number of units; it may be negative for a restock.
	Quantity int64 `json:"quantity,omitempty"`
	// Key is the idempotency key.
	Key string `json:"key,omitempty"`
	// Async means that the client did not wait for the commit (Prefer: respond-async).
	Async bool `json:"async,omitempty"`
	// Start and End are nanoseconds since the beginning of the run, from one monotonic clock.
	// Start is read before the request is sent, and End after the answer is read or the client
	// has given up.
	Start int64 `json:"start_ns"`
	End   int64 `json:"end_ns"`
	// Status is the HTTP status; 0 if no complete answer was read.
	Status int `json:"status"`
	// Code is the problem code, if the answer is a problem.
	Code string `json:"code,omitempty"`
	// Order is the id of the order in the answer or, for routes with an order in their path
	// (pay, cancel, refund, get), in the path.
	Order string `json:"order,omitempty"`
	// State is the order's status in the answer.
	State string `json:"state,omitempty"`
	// Replayed is the header Idempotent-Replayed.
	Replayed bool `json:"replayed,omitempty"`
	// RetryAfter is the Retry-After header, in seconds.
	RetryAfter int64 `json:"retry_after,omitempty"`
	// Err is the reason why there was no answer.
	Err string `json:"error,omitempty"`
}

// Known reports whether the answer is definitive. Without a definitive answer the call may have
// been applied, may be applied later, or may never be: no answer came, the service was
// unavailable, or the answer came from something between the service and the client.
func (c *Call) Known() bool { return c.Status >= 200 && c.Status < 500 }

// Accepted reports whether the answer acknowledges an order.
func (c *Call) Accepted() bool {
	return c.Op == Buy && (c.Status == 201 || c.Status == 202)
}

// Refused reports whether the answer definitively says that the call took no units.
func (c *Call) Refused() bool { return c.Status >= 400 && c.Known() }
