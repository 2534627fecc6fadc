package history

// Final is the state at the end of a run, when nothing is in progress any more, and the samples
// taken during the run.
type Final struct {
	Items []Item `json:"items"`
	// Orders are all rows of the database.
	Orders []Order `json:"orders"`
	// Dead are the orders whose tasks are dead letters.
	Dead []string `json:"dead,omitempty"`
	// Fences and Ledgers are samples taken during the run, in any order.
	Fences  []FenceSample  `json:"fences,omitempty"`
	Ledgers []LedgerSample `json:"ledgers,omitempty"`
	// AcceptedMayBeLost means that the fault made Redis lose acknowledged data. A missing order
	// that was answered 202 is then counted without being a failure. A missing order that was
	// answered 201 is always a failure.
	AcceptedMayBeLost bool `json:"accepted_may_be_lost,omitempty"`
	// Discarded are the orders that an operator has discarded, as listed by `flashsale recover
	// --from database`. Answers that clients got about them no longer count, and none of them
	// may be a row.
	Discarded []string `json:"discarded,omitempty"`
}

// Item is the final state of one item in the database and Redis.
type Item struct {
	ID string `json:"id"`
	// Initial is the stock at creation, in units. Restocked is the sum of its stock changes in
	// the database.
	Initial   int64 `json:"initial"`
	Restocked int64 `json:"restocked"`
	// Limit is the number of units that one buyer may hold. If it changed during the run, it is
	// the highest value.
	Limit int64 `json:"per_user_limit"`
	// Exhausted means that every unit must be sold: the buyers wanted more than the stock,
	// repeated their requests until they had a definite answer, and could have bought all of it
	// (the sale was open, and no unit was released or restocked after their last request).
	Exhausted bool `json:"demand_exceeded_stock,omitempty"`
	// Loaded means that Redis has the sale. Left, Epoch and Fence are then its fields (Fence 0:
	// not read). Otherwise Redis is not compared.
	Loaded bool   `json:"loaded"`
	Left   int64  `json:"left"`
	Epoch  string `json:"epoch,omitempty"`
	Fence  int64  `json:"fence,omitempty"`
	// Ledger is the service's answer at the end. Nil means that the service did not answer,
	// which is a failure.
	Ledger *Ledger `json:"ledger"`
}

// Order is a row of the table orders.
type Order struct {
	ID       string `json:"id"`
	User     string `json:"user_id"`
	Item     string `json:"item_id"`
	Quantity int64  `json:"quantity"`
	Key      string `json:"idempotency_key"`
	Status   string `json:"status"`
	Reason   string `json:"reason,omitempty"`
	// Restocked means that the units of a refunded order were released.
	Restocked bool `json:"restocked,omitempty"`
}

// Holds reports whether the order holds its units.
func (o *Order) Holds() bool {
	return o.Status == Confirmed || o.Status == Paid || o.Status == Refunded && !o.Restocked
}

// Ledger is an item's conservation equation as reported by the service, in units.
type Ledger struct {
	Initial   int64 `json:"initial"`
	Restocked int64 `json:"restocked"`
	Left      int64 `json:"left"`
	Held      int64 `json:"held"`
	Sold      int64 `json:"sold"`
	Balanced  bool  `json:"balanced"`
}

// FenceSample is an observed fencing token. Samples of one item and source must have been read
// one after another.
type FenceSample struct {
	At   int64  `json:"at_ns"` // same clock as Call.Start, when the answer had arrived
	Item string `json:"item"`
	// Source is where the token was read: SourceLock or SourceSale. Tokens are only compared
	// within a source.
	Source string `json:"source,omitempty"`
	Fence  int64  `json:"fence"`
}

// The sources of a FenceSample.
const (
	// SourceLock is the last token issued by the item's lock.
	SourceLock = "lock"
	// SourceSale is the highest token that has written to the item's sale.
	SourceSale = "sale"
)

// LedgerSample is one answer of the ledger during the run.
type LedgerSample struct {
	At   int64  `json:"at_ns"` // same clock as Call.Start, when the answer had arrived
	Item string `json:"item"`
	Ledger
}
