package handler

import (
	"strconv"
	"time"

	"flashsale/catalog"
	"flashsale/order"
)

// The ranges of a new item. They are far beyond any sale and keep every sum of
// money and stock exact, in Lua's numbers as well.
const (
	maxPriceMinor    = 1_000_000_000_000
	maxStock         = order.MaxStock
	maxPerUserLimit  = 1_000_000
	maxName          = 200   // characters
	maxDescription   = 4_000 // characters
	maxPaymentWindow = 30 * 24 * 60 * 60
)

// adminItemRoutes change items and show their current state.
type adminItemRoutes struct {
	sales   Sales
	changes Changes
	items   Items
	itemNow func(item string) time.Time
}

// create answers POST /v1/admin/items.
func (rs *adminItemRoutes) create(q *call) error {
	n, err := readNewItem(q.in, rs.itemNow)
	if err != nil {
		return err
	}
	n.By = q.by()
	item, err := rs.sales.CreateItem(q.ctx(), n)
	if err != nil {
		return err
	}
	q.c.Writer.Header()["Location"] = []string{"/v1/items/" + item.ID}
	return rs.writeTagged(q, 201, &item)
}

// readNewItem reads and checks the body of a new item. now is the time by which
// an item's sale opens.
func readNewItem(body []byte, now func(item string) time.Time) (order.NewItem, error) {
	f := newFields(body)
	f.near = nearCreate
	n := order.NewItem{
		ID:           f.text("id", true),
		Name:         f.text("name", true),
		Description:  f.text("description", false),
		PriceMinor:   f.integer("price_minor", true, 0),
		Currency:     f.text("currency", true),
		Stock:        f.integer("stock", true, 0),
		PerUserLimit: f.integer("per_user_limit", false, 1),
	}
	window := f.integer("payment_window_seconds", false, 0)
	opens, hasOpens := f.optionalText("opens_at")
	closes, hasCloses := f.optionalText("closes_at")
	if err := f.done(); err != nil {
		return n, err
	}
	if err := checkNewItem(&n, window); err != nil {
		return n, err
	}
	n.PaymentWindow = time.Duration(window) * time.Second
	var err error
	if n.OpensAt, err = readInstant("opens_at", opens, hasOpens); err != nil {
		return n, err
	}
	if n.ClosesAt, err = readInstant("closes_at", closes, hasCloses); err != nil {
		return n, err
	}
	from := n.OpensAt
	if from.IsZero() {
		from = now(n.ID)
	}
	if !n.ClosesAt.IsZero() && !n.ClosesAt.After(from) {
		return n, problemWindow.with("closes_at", "closes_at must be after opens_at, which is now unless stated.")
	}
	return n, nil
}

// checkNewItem checks the fields that stand alone.
func checkNewItem(n *order.NewItem, window int64) error {
	if !catalog.ValidID(n.ID) {
		return problemItemID.with("id", problemItemID.detail)
	}
	if err := checkTexts(&n.Name, &n.Description); err != nil {
		return err
	}
	if !knownCurrency(n.Currency) {
		return problemFieldRange.with("currency", "currency is an ISO 4217 code in upper case, such as EUR.")
	}
	return checkRanges(
		ranged{"price_minor", &n.PriceMinor, 0, maxPriceMinor},
		ranged{"stock", &n.Stock, 0, maxStock},
		ranged{"per_user_limit", &n.PerUserLimit, 1, maxPerUserLimit},
		ranged{"payment_window_seconds", &window, 0, maxPaymentWindow},
	)
}

// checkTexts checks what buyers read of an item; nil is not stated.
func checkTexts(name, description *string) error {
	if name != nil {
		if err := checkText("name", *name, 1, maxName, false); err != nil {
			return err
		}
	}
	if description != nil {
		return checkText("description", *description, 0, maxDescription, true)
	}
	return nil
}

// ranged is a number and the range it must be in; nil is not stated.
type ranged struct {
	name      string
	value     *int64
	low, high int64
}

func checkRanges(all ...ranged) error {
	for _, r := range all {
		if r.value != nil && (*r.value < r.low || *r.value > r.high) {
			return problemFieldRange.with(r.name, r.name+" must be from "+
				strconv.FormatInt(r.low, 10)+" to "+strconv.FormatInt(r.high, 10)+".")
		}
	}
	return nil
}

// readInstant reads an optional RFC 3339 time, cut to milliseconds.
func readInstant(name, value string, present bool) (time.Time, error) {
	if !present {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil || t.UTC().Year() < 2000 || t.UTC().Year() > 2999 {
		return time.Time{}, problemWindow.with(name, name+" is an RFC 3339 time such as 2030-01-31T18:00:00Z, in the years 2000 to 2999.")
	}
	return t.UTC().Truncate(time.Millisecond), nil
}

// show answers GET /v1/admin/items/{item}. What it shows is asked for anew,
// so that its tag fits right after a change that another process has made.
func (rs *adminItemRoutes) show(q *call) error {
	id := q.c.Param("item")
	item, err := rs.changes.Item(q.ctx(), id)
	if err != nil {
		return err
	}
	return rs.writeTagged(q, 200, &item)
}

// ledger answers GET /v1/admin/items/{item}/ledger.
func (rs *adminItemRoutes) ledger(q *call) error {
	id := q.c.Param("item")
	l, err := rs.sales.Ledger(q.ctx(), id)
	if err != nil {
		return err
	}
	q.out = appendLedger(q.out[:0], l)
	return q.json(200)
}
