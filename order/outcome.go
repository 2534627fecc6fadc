package order

// Outcome is the result of a task in the database.
type Outcome struct {
	Status      Status
	Reason      string
	ConfirmedAt int64 // Unix milliseconds
	ExpiresAt   int64 // Unix milliseconds; 0: no payment is expected
	ClosedAt    int64 // Unix milliseconds; 0: not in a final state
}

// The reasons of a rejected order: each is a condition of the database that refused an
// order which Redis had accepted.
const (
	ReasonSoldOut   = "sold_out"
	ReasonUserLimit = "user_limit"
	ReasonNoItem    = "item_not_found"
	ReasonDuplicate = "idempotency_key_reused"
	// ReasonFailed is the reason of an order that no worker could commit.
	ReasonFailed = "failed"
)
