package handler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"flashsale/catalog"
	"flashsale/handler/encode"
	"flashsale/handler/problem"
	"flashsale/handler/request"
	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/store/database"
)

// The ranges of a new item. They exceed any sale, and keep every sum of money and stock exact,
// even in Lua's numbers.
const (
	maxPriceMinor    = 1_000_000_000_000
	maxStock         = items.MaxStock
	maxPerUserLimit  = 1_000_000
	maxName          = 200   // characters
	maxDescription   = 4_000 // characters
	maxPaymentWindow = 30 * 24 * 60 * 60
	maxDividedID     = catalog.MaxIDLength - len(".63")
)

// adminItemRoutes change items and return their current state.
type adminItemRoutes struct {
	sales   itemService
	ledgers ledgerService
	items   itemCatalog
	cursors sealer
	itemNow func(item string) time.Time
}

// states are the states of an item by which the list can be filtered.
var states = []catalog.State{
	catalog.StateScheduled, catalog.StateOpen, catalog.StatePaused, catalog.StateSoldOut, catalog.StateClosed,
}

// errState refuses another state.
var errState = request.ErrParameter.With("state", "state is scheduled, open, paused, sold_out or closed.")

// list answers GET /v1/admin/items: a page of the items in a state, by id, from memory. The cursor
// does not depend on the state.
func (rs *adminItemRoutes) list(q *call) error {
	limit, err := q.query.Limit()
	if err != nil {
		return err
	}
	state := catalog.State(q.query.Get("state"))
	if q.query.Has("state") && !slices.Contains(states, state) {
		return errState
	}
	after, err := rs.cursors.afterItem(q.query)
	if err != nil {
		return err
	}
	v, err := rs.items.List(q.ctx())
	if err != nil {
		return err
	}
	b, next, n := append(q.out[:0], `{"items":[`...), "", 0
	for i := placeAfter(v, after); i < len(v.Items); i++ {
		item := &v.Items[i]
		now := rs.itemNow(item.ID)
		if state != "" && item.State(now) != state {
			continue
		}
		if n == limit {
			next = rs.cursors.makeItemCursor(after)
			break
		}
		if n > 0 {
			b = append(b, ',')
		}
		b = appendItem(b, item, now)
		after = item.ID
		n++
	}
	q.out = append(encode.TextField(append(b, ']'), `,"next_cursor":`, next), '}')
	return q.json(200)
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

// readNewItem reads and checks the body of a new item. now is the clock by which an item's sale
// opens.
func readNewItem(body []byte, now func(item string) time.Time) (order.NewItem, error) {
	f := request.ReadFields(body)
	f.Suggest(hintsForNew)
	n := order.NewItem{
		ID:           f.Text("id", true),
		Name:         f.Text("name", true),
		Description:  f.Text("description", false),
		PriceMinor:   f.Integer("price_minor", true, 0),
		Currency:     f.Text("currency", true),
		Stock:        f.Integer("stock", true, 0),
		PerUserLimit: f.Integer("per_user_limit", false, 1),
	}
	window := f.Integer("payment_window_seconds", false, 0)
	buckets := f.Integer("buckets", false, 1)
	opens, hasOpens := f.OptionalText("opens_at")
	closes, hasCloses := f.OptionalText("closes_at")
	n.ImageURL, _ = f.OptionalText("image_url")
	if err := f.Done(); err != nil {
		return n, err
	}
	if err := checkNewItem(&n, window, buckets); err != nil {
		return n, err
	}
	n.Buckets = int(buckets)
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
		return n, problemWindow.With("closes_at", "closes_at must be after opens_at, which is now unless stated.")
	}
	return n, nil
}

// The texts of the hints that several fields share.
const (
	useStock   = "At creation the units on sale are named stock; afterwards the item has stock_total and stock_left."
	useRestock = "Stock does not change here; use POST /v1/admin/items/{item}/restock with the units to add as quantity."
	readOnly   = "The service sets this field; omit it."
)

// hints are the hints for both the creation and the change of an item.
var hints = map[string]string{
	"price":          "Use price_minor, in the currency's minor unit (cents).",
	"image":          "Use image_url, the path of the image on the shop's own address.",
	"limit":          "Use per_user_limit.",
	"payment_window": "Use payment_window_seconds.",
	"server_time":    readOnly,
}

// hintsForNew and hintsForChange add the differences between the two.
var (
	hintsForNew = merged(hints, map[string]string{
		"stock_total": useStock, "stock_left": useStock, "quantity": useStock, "version": readOnly,
		"state": "The state follows from opens_at, closes_at and the stock; omit it.",
	})
	hintsForChange = merged(hints, map[string]string{
		"stock_total": useRestock, "stock_left": useRestock, "quantity": useRestock,
		"version": "Send the version as If-Match: the ETag of GET /v1/admin/items/{item}.",
		"state":   "Use POST /v1/admin/items/{item}/pause, /resume or /close.",
	})
)

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// checkNewItem checks each field separately.
func checkNewItem(n *order.NewItem, window, buckets int64) error {
	if !catalog.ValidID(n.ID) {
		return problemItemID.With("id", problemItemID.Detail)
	}
	if err := checkTexts(&n.Name, &n.Description); err != nil {
		return err
	}
	if err := checkImageURL(n.ImageURL); err != nil {
		return err
	}
	if !request.KnownCurrency(n.Currency) {
		return request.ErrFieldRange.With("currency", "currency is an ISO 4217 code in upper case, such as EUR.")
	}
	if buckets > 1 && len(n.ID) > maxDividedID {
		return problemItemID.With("id", "id of an item with buckets has at most "+strconv.Itoa(maxDividedID)+" characters.")
	}
	return checkRanges(
		ranged{"buckets", &buckets, 1, bucket.Max},
		ranged{"price_minor", &n.PriceMinor, 0, maxPriceMinor},
		ranged{"stock", &n.Stock, 0, maxStock},
		ranged{"per_user_limit", &n.PerUserLimit, 1, maxPerUserLimit},
		ranged{"payment_window_seconds", &window, 0, maxPaymentWindow},
	)
}

// checkTexts checks the texts of an item that buyers read; nil: not stated.
func checkTexts(name, description *string) error {
	if name != nil {
		if err := request.CheckText("name", *name, 1, maxName, false); err != nil {
			return err
		}
	}
	if description != nil {
		return request.CheckText("description", *description, 0, maxDescription, true)
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
			return request.ErrFieldRange.With(r.name, r.name+" must be from "+
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
	t, ok := parseInstant(value)
	if !ok {
		return time.Time{}, problemWindow.With(name, name+" is an RFC 3339 time such as 2030-01-31T18:00:00Z, in the years 2000 to 2999.")
	}
	return t.Truncate(time.Millisecond), nil
}

// parseInstant parses an RFC 3339 time in the years 2000 to 2999.
func parseInstant(text string) (t time.Time, ok bool) {
	t, err := time.Parse(time.RFC3339, text)
	t = t.UTC()
	return t, err == nil && t.Year() >= 2000 && t.Year() <= 2999
}

// show answers GET /v1/admin/items/{item}. It reads the database, so that the tag is correct
// immediately after a change by another process.
func (rs *adminItemRoutes) show(q *call) error {
	id := q.c.Param("item")
	item, err := rs.sales.Item(q.ctx(), id)
	if err != nil {
		return err
	}
	return rs.writeTagged(q, 200, &item)
}

// writeTagged writes one item with its version as the tag for If-Match. Buyers get a different,
// weak tag, because stock and state vary within a version.
func (rs *adminItemRoutes) writeTagged(q *call, status int, item *catalog.Item) error {
	h := q.c.Writer.Header()
	h["Etag"] = []string{`"` + strconv.FormatInt(item.ShownVersion(), 10) + `"`}
	q.out = appendItem(q.out[:0], item, rs.itemNow(item.ID))
	return q.json(status)
}

// ledger answers GET /v1/admin/items/{item}/ledger.
func (rs *adminItemRoutes) ledger(q *call) error {
	id := q.c.Param("item")
	l, err := rs.ledgers.Ledger(q.ctx(), id)
	if err != nil {
		return err
	}
	q.out = appendLedger(q.out[:0], l)
	return q.json(200)
}

// maxReason is the maximum length of a restock's reason, in characters.
const maxReason = 200

// notChanged rewords a failed change for the admin, because the usual text is about orders. The
// cause is kept for the log.
func notChanged(err error) error { return reworded(err, problemNotChanged) }

// reworded replaces the error table's answer for an unavailable dependency by as.
func reworded(err error, as *problem.Problem) error {
	if errors.Is(err, inventory.ErrStopped) {
		return err // definite: nothing was changed
	}
	for _, cause := range []error{inventory.ErrUnavailable, inventory.ErrRebuilding, database.ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", as, err)
		}
	}
	return err
}

// change answers PATCH /v1/admin/items/{item}.
func (rs *adminItemRoutes) change(q *call) error {
	c, err := readItemChange(q.in)
	if err != nil {
		return err
	}
	c.Match = q.match
	item, err := rs.sales.ChangeItem(q.ctx(), q.c.Param("item"), c, q.by())
	if err != nil {
		return notChanged(err)
	}
	return rs.writeTagged(q, 200, &item)
}

// fixedFields are the fields of an item that cannot be changed, and the reasons.
var fixedFields = []struct{ name, why string }{
	{"id", "id cannot change: orders name the item by it. Create another item."},
	{"buckets", "buckets cannot change: each buyer's orders are in one of them. Create another item."},
	{"currency", "currency cannot change: orders were accepted in it. Create another item."},
	{"stock", "Change stock with POST /v1/admin/items/{item}/restock, which accounts for concurrent sales."},
}

// readItemChange reads and checks the body of a change.
func readItemChange(body []byte) (items.Change, error) {
	f := request.ReadFields(body)
	f.Suggest(hintsForChange)
	c := items.Change{
		Name:         f.TextIfStated("name"),
		Description:  f.TextIfStated("description"),
		PriceMinor:   f.IntegerIfStated("price_minor"),
		PerUserLimit: f.IntegerIfStated("per_user_limit"),
	}
	window := f.IntegerIfStated("payment_window_seconds")
	opens := f.TextIfStated("opens_at")
	closes, ends := f.OptionalText("closes_at")
	image, _ := f.OptionalText("image_url")
	for _, fixed := range fixedFields {
		f.Know(fixed.name)
	}
	if err := f.Done(); err != nil {
		return c, err
	}
	for _, fixed := range fixedFields {
		if f.Has(fixed.name) {
			return c, problemFieldFixed.With(fixed.name, fixed.why)
		}
	}
	if f.Empty() {
		return c, request.ErrFieldMissing.With("", "State at least one field to change: name, description, image_url, price_minor, "+
			"per_user_limit, opens_at, closes_at or payment_window_seconds.")
	}
	if err := checkTexts(c.Name, c.Description); err != nil {
		return c, err
	}
	if f.Has("image_url") { // null removes the image
		if err := checkImageURL(image); err != nil {
			return c, err
		}
		c.ImageURL = &image
	}
	if err := checkRanges(
		ranged{"price_minor", c.PriceMinor, 0, maxPriceMinor},
		ranged{"per_user_limit", c.PerUserLimit, 1, maxPerUserLimit},
		ranged{"payment_window_seconds", window, 0, maxPaymentWindow},
	); err != nil {
		return c, err
	}
	if window != nil {
		d := time.Duration(*window) * time.Second
		c.PaymentWindow = &d
	}
	if opens != nil {
		t, err := readInstant("opens_at", *opens, true)
		if err != nil {
			return c, err
		}
		c.OpensAt = &t
	}
	if f.Has("closes_at") { // null removes the end
		t, err := readInstant("closes_at", closes, ends)
		if err != nil {
			return c, err
		}
		c.ClosesAt = &t
	}
	return c, nil
}

// control answers POST /v1/admin/items/{item}/pause, /resume and /close. Without If-Match it
// applies to any version, because it cannot overwrite another change.
func (rs *adminItemRoutes) control(to catalog.Control) endpoint {
	return func(q *call) error {
		item, err := rs.sales.ControlItem(q.ctx(), q.c.Param("item"), items.Control{To: to, Match: q.match}, q.by())
		if err != nil {
			return notChanged(err)
		}
		return rs.writeTagged(q, 200, &item)
	}
}

// restock answers POST /v1/admin/items/{item}/restock.
func (rs *adminItemRoutes) restock(q *call) error {
	r, err := readRestock(q.in)
	if err != nil {
		return err
	}
	r.IdempotencyKey, r.Match = q.key, q.match
	item, replayed, err := rs.sales.Restock(q.ctx(), q.c.Param("item"), r, q.by())
	if err != nil {
		return notChanged(err)
	}
	if replayed {
		q.c.Writer.Header()["Idempotent-Replayed"] = headerTrue
	}
	return rs.writeTagged(q, 200, &item)
}

// readRestock reads and checks the body of a restock.
func readRestock(body []byte) (items.Restock, error) {
	f := request.ReadFields(body)
	r := items.Restock{Quantity: f.Integer("quantity", true, 0), Reason: f.Text("reason", true)}
	if err := f.Done(); err != nil {
		return r, err
	}
	if r.Quantity == 0 || r.Quantity < -maxStock || r.Quantity > maxStock {
		return r, request.ErrFieldRange.With("quantity",
			"quantity is the number of units to add, up to 1,000,000,000. A negative number takes back unsold units; 0 is not allowed.")
	}
	return r, request.CheckText("reason", r.Reason, 1, maxReason, false)
}

// warm answers POST /v1/admin/items/{item}/warm: it loads the item's page and its sale before
// the sale opens. A repeat changes nothing.
func (rs *adminItemRoutes) warm(q *call) error {
	id := q.c.Param("item")
	v, err := rs.items.Warm(q.ctx(), id)
	if err != nil {
		return err
	}
	return rs.writeTagged(q, 200, &v.Item)
}
