package order

// outcome is what became of a task in the database.
type outcome struct {
	status      Status
	reason      string
	confirmedAt int64 // Unix milliseconds
	expiresAt   int64 // Unix milliseconds; 0: no payment is asked
	closedAt    int64 // Unix milliseconds; 0: not in a final state
}

// The reasons of a rejected order: each is a condition of the database that
// refused what Redis had let through.
const (
	reasonSoldOut   = "sold_out"
	reasonUserLimit = "user_limit"
	reasonNoItem    = "item_not_found"
	reasonDuplicate = "idempotency_key_reused"
	// reasonFailed is that of an order which no worker could commit.
	reasonFailed = "failed"
)
