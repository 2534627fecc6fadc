package order

// outcome is the result of a task in the database.
type outcome struct {
	status      Status
	reason      string
	confirmedAt int64 // Unix milliseconds
	expiresAt   int64 // Unix milliseconds; 0: no payment is expected
	closedAt    int64 // Unix milliseconds; 0: not in a final state
}

// The reasons of a rejected order: each is a condition of the database that refused an
// order which Redis had accepted.
const (
	reasonSoldOut   = "sold_out"
	reasonUserLimit = "user_limit"
	reasonNoItem    = "item_not_found"
	reasonDuplicate = "idempotency_key_reused"
	// reasonFailed is the reason of an order that no worker could commit.
	reasonFailed = "failed"
)
