package history

// Final is the state at the end of a run, when nothing is under way any more,
// and what was looked at while it ran.
type Final struct {
	Items []Item `json:"items"`
	// Orders are the rows of the database, all of them.
	Orders []Order `json:"orders"`
	// Dead are the orders whose tasks are dead letters.
	Dead []string `json:"dead,omitempty"`
	// Fences and Ledgers were sampled during the run, in any order.
	Fences  []FenceSample  `json:"fences,omitempty"`
	Ledgers []LedgerSample `json:"ledgers,omitempty"`
	// AcceptedMayBeLost tells that the fault made Redis lose data which it had
	// acknowledged. An order answered 202 that is missing is then counted, and
	// no failure; one answered 201 always is a failure.
	AcceptedMayBeLost bool `json:"accepted_may_be_lost,omitempty"`
	// Discarded are the orders that an operator has discarded, as listed by
	// `flashsale recover --from database`. What the clients were told of them is void,
	// and none may be a row.
	Discarded []string `json:"discarded,omitempty"`
}

// Item is one item as the database and Redis have it at the end.
type Item struct {
	ID string `json:"id"`
	// Initial is the stock the item was created with, and Restocked the sum of
	// its changes of stock in the database. Units.
	Initial   int64 `json:"initial"`
	Restocked int64 `json:"restocked"`
	// Limit is the number of units a buyer may hold; the greatest, if it was
	// changed during the run.
	Limit int64 `json:"per_user_limit"`
	// Exhausted tells that the buyers wanted more than the stock, asked until
	// they had a definite answer, and could have bought all of it (nothing was
	// given back or restocked after the last of them, and the sale was open):
	// every unit must be sold.
	Exhausted bool `json:"demand_exceeded_stock,omitempty"`
	// Loaded tells that Redis has the sale. Left, Epoch and Fence are its
	// fields then (Fence 0: not looked at), and Redis is not compared otherwise.
	Loaded bool   `json:"loaded"`
	Left   int64  `json:"left"`
	Epoch  string `json:"epoch,omitempty"`
	Fence  int64  `json:"fence,omitempty"`
	// Ledger is what the service said when everything was quiet; nil: it could
	// not be asked, which is a failure.
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
	// Restocked tells of a refunded order that its units were given back.
	Restocked bool `json:"restocked,omitempty"`
}

// Holds reports whether the order holds its units.
func (o *Order) Holds() bool {
	return o.Status == Confirmed || o.Status == Paid || o.Status == Refunded && !o.Restocked
}

// Ledger is an item's conservation equation as the service states it, in units.
type Ledger struct {
	Initial   int64 `json:"initial"`
	Restocked int64 `json:"restocked"`
	Left      int64 `json:"left"`
	Held      int64 `json:"held"`
	Sold      int64 `json:"sold"`
	Balanced  bool  `json:"balanced"`
}

// FenceSample is a fencing token that was seen. Samples of one item and source
// must have been read one after the other.
type FenceSample struct {
	At   int64  `json:"at_ns"` // as Call.Start, when the answer was there
	Item string `json:"item"`
	// Source tells where the token stood, SourceLock or SourceSale. Tokens are
	// compared within a source.
	Source string `json:"source,omitempty"`
	Fence  int64  `json:"fence"`
}

// The sources of a FenceSample.
const (
	// SourceLock is the last token that the item's lock has given out.
	SourceLock = "lock"
	// SourceSale is the highest token that has written to the item's sale.
	SourceSale = "sale"
)

// LedgerSample is the answer to one look at the ledger during the run.
type LedgerSample struct {
	At   int64  `json:"at_ns"` // as Call.Start, when the answer was there
	Item string `json:"item"`
	Ledger
}
