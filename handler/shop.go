package handler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/pages"
	"flashsale/handler/problem"
	"flashsale/handler/request"
	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
)

// shopRoutes are the pages for buyers. They work without JavaScript: forms buy, pay and cancel.
type shopRoutes struct {
	sessions
	items     itemCatalog
	orders    orderBook
	units     unitCounter
	purchases purchaseRoutes
	cursors   sealer
	now       func() time.Time
	itemNow   func(item string) time.Time
	shared    *pages.SharedPages
	// charge asks the mock payment service to pay an order; nil: the shop takes payments elsewhere.
	charge func(ctx context.Context, o order.Order) error
}

// unitCounter counts what buyers hold.
type unitCounter interface {
	// Held returns how many units of an item a buyer holds. Errors: inventory.ErrUnavailable.
	Held(ctx context.Context, item *catalog.Item, buyer string) (int64, error)
}

// shopTable has the routes of the pages for buyers.
func (f *features) shopTable() []route {
	s := &f.shop
	page := func(method, path string, handle endpoint) route {
		return route{Method: method, Path: path, Page: true, Produces: request.MediaHTML, Query: []string{"lang"}, Handle: handle}
	}
	form := func(path string, handle endpoint) route {
		r := page(http.MethodPost, path, handle)
		r.Query, r.Body, r.MaxBody = noQuery, bodyForm, maxSmallBody
		return r
	}
	of := func(r route, change func(r *route)) route { change(&r); return r }
	buyer := func(r route) route { r.Roles, r.Rate = buyers, rateValid; return r }
	return []route{
		of(page(http.MethodGet, "/", s.list), func(r *route) { r.Query = []string{"lang", "cursor"} }),
		page(http.MethodGet, "/items/:item", s.item),
		of(buyer(form("/items/:item/buy", s.buy)), func(r *route) {
			r.Gated, r.Counted, r.Traced, r.Rate = true, true, true, rateAll
		}),
		of(buyer(page(http.MethodGet, "/orders", s.mine)), func(r *route) { r.Query = []string{"lang", "cursor"} }),
		of(buyer(page(http.MethodGet, "/orders/:order", s.order)), func(r *route) { r.Query = []string{"lang", "paying"} }),
		buyer(form("/orders/:order/cancel", s.cancel)),
		of(buyer(form("/orders/:order/pay", s.pay)), func(r *route) { r.Absent = s.charge == nil }),
		of(page(http.MethodGet, "/login", s.login), func(r *route) { r.Query = []string{"lang", "next"} }),
		of(form("/login", s.logIn), func(r *route) { r.MaxBody = maxForm }),
		form("/logout", s.logOut),
		{Method: http.MethodGet, Path: pages.AssetPrefix + ":build/:file", Handle: asset},
	}
}

// asset answers GET /assets/{build}/{file}.
func asset(q *call) error {
	if err := pages.ServeAsset(q.c.Writer, q.c.Request, q.c.Param("build"), q.c.Param("file")); err != nil {
		return errClientGone
	}
	return nil
}

// shopPage is the number of items on a page of the list.
const shopPage = 24

// list answers GET /: the items whose sale has not ended, by id.
func (rs *shopRoutes) list(q *call) error {
	after, err := rs.cursors.afterItem(q.query)
	if err != nil {
		return err
	}
	frame := rs.frame(q)
	return q.html(http.StatusOK, func(w io.Writer) error {
		return rs.shared.Items(w, &frame, rs.now(), func() (pages.Items, error) { return rs.onSale(q, after) })
	})
}

// onSale returns a page of the items whose sale has not ended, after an id.
func (rs *shopRoutes) onSale(q *call, after string) (pages.Items, error) {
	page := pages.Items{Later: after != "", Now: rs.now()}
	v, err := rs.items.List(q.ctx())
	if err != nil {
		return page, err
	}
	for i := placeAfter(v, after); i < len(v.Items); i++ {
		item := &v.Items[i]
		if item.State(rs.itemNow(item.ID)) == catalog.StateClosed {
			continue
		}
		if len(page.Items) == shopPage {
			page.Next = rs.cursors.makeItemCursor(page.Items[shopPage-1].ID)
			break
		}
		page.Items = append(page.Items, rs.view(item))
	}
	return page, nil
}

// view returns an item as the pages show it.
func (rs *shopRoutes) view(i *catalog.Item) pages.Item {
	now := rs.itemNow(i.ID)
	return pages.Item{Item: *i, State: i.State(now), Image: imageOf(i.ID, i.ImageURL), Now: now}
}

// imageOf returns the path of an item's image, or of the picture that is drawn for an item without one.
func imageOf(item, image string) string {
	if image != "" {
		return image
	}
	return "/items/" + item + "/image.svg"
}

// item answers GET /items/{item}.
func (rs *shopRoutes) item(q *call) error {
	page, err := rs.itemPage(q, rand.Text(), 1)
	if err != nil {
		return err
	}
	return q.html(http.StatusOK, func(w io.Writer) error { return rs.shared.Item(w, &page, rs.now()) })
}

func (rs *shopRoutes) itemPage(q *call, key string, quantity int64) (pages.ItemPage, error) {
	v, err := rs.items.View(q.ctx(), q.c.Param("item"))
	if err != nil {
		return pages.ItemPage{}, err
	}
	item := rs.view(&v.Item)
	return pages.ItemPage{Frame: rs.frame(q), Item: item, AtLimit: rs.atLimit(q, &item), Key: key, Quantity: quantity}, nil
}

// unitsTime bounds the wait of an item's page for the buyer's units.
const unitsTime = 100 * time.Millisecond

// atLimit reports whether the buyer holds as many units of an item on sale as one buyer may. If that
// is not known in time, the page has its button: the purchase decides.
func (rs *shopRoutes) atLimit(q *call, item *pages.Item) bool {
	if q.identity.Subject == "" || item.State != catalog.StateOpen {
		return false
	}
	ctx, cancel := context.WithTimeout(q.ctx(), unitsTime)
	defer cancel()
	held, err := rs.units.Held(ctx, &item.Item, q.identity.Subject)
	return err == nil && held >= item.PerUserLimit
}

// maxKeyLength is the length of the longest Idempotency-Key.
const maxKeyLength = 255

// buy answers POST /items/{item}/buy, a form with a key and a quantity. The key makes a repeat
// harmless: a second click, a reload, or a second form after a lost response.
func (rs *shopRoutes) buy(q *call) error {
	key := q.form.Get("key")
	if !request.VisibleASCII(key, maxKeyLength) {
		return request.ErrKeyInvalid
	}
	quantity, err := strconv.ParseInt(q.form.Get("quantity"), 10, 64)
	if err != nil {
		return problemQuantity
	}
	prefer := preference{wait: rs.purchases.defaultWait}
	placed, err := rs.purchases.place(q, q.c.Param("item"), quantity, key, &prefer)
	if err == nil {
		q.placed(&placed)
		return q.redirect("/orders/" + placed.Order.ID)
	}
	if errors.Is(err, catalog.ErrItemNotFound) {
		return err
	}
	page, itemErr := rs.itemPage(q, key, quantity)
	if itemErr != nil {
		return err
	}
	page.AtLimit = page.AtLimit || quantity == 1 && errors.Is(err, inventory.ErrUserLimit)
	if errors.Is(err, inventory.ErrKeyReused) {
		page.Key = rand.Text() // the old one belongs to an order with another quantity
	}
	q.showRefusal = func(p *problem.Problem) error {
		page.Notice = noticeOf(page.Frame, p, q.requestID())
		q.c.Writer.Header()["Cache-Control"] = headerNoStore
		return q.page(p.Status, "shop/item", &page)
	}
	return err
}

// mine answers GET /orders: the buyer's own orders, newest first.
func (rs *shopRoutes) mine(q *call) error {
	f := order.Filter{UserID: q.identity.Subject, Limit: request.DefaultPage}
	var err error
	if f.Before, err = rs.cursors.beforeOrder(q.query, f); err != nil {
		return err
	}
	orders, after, err := rs.orders.List(q.ctx(), f)
	incomplete := errors.Is(err, checkout.ErrIncompleteList)
	if err != nil && !incomplete {
		return err
	}
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.page(http.StatusOK, "shop/orders", &pages.Orders{
		Frame: rs.frame(q), Orders: rs.named(q, orders), Next: rs.cursors.makeCursor(f, after), Later: f.Before != "", Incomplete: incomplete,
	})
}

// named adds the names of the items on sale to orders. The list of items is in memory.
func (rs *shopRoutes) named(q *call, orders []order.Order) []pages.ListedOrder {
	v, err := rs.items.List(q.ctx())
	all := make([]pages.ListedOrder, 0, len(orders))
	for _, o := range orders {
		o.ItemID = bucket.Item(o.ItemID)
		listed := pages.ListedOrder{Order: o, Name: o.ItemID, Image: imageOf(o.ItemID, "")}
		if err == nil {
			if i := placeAfter(v, o.ItemID); i > 0 && v.Items[i-1].ID == o.ItemID {
				listed.Name, listed.Image = v.Items[i-1].Name, imageOf(o.ItemID, v.Items[i-1].ImageURL)
			}
		}
		all = append(all, listed)
	}
	return all
}

// order answers GET /orders/{order}.
func (rs *shopRoutes) order(q *call) error {
	o, err := rs.own(q)
	if err != nil {
		return err
	}
	return rs.showOrder(q, http.StatusOK, o, nil)
}

// own returns the buyer's order that the path names.
func (rs *shopRoutes) own(q *call) (order.Order, error) {
	o, err := rs.orders.Get(q.ctx(), q.c.Param("order"))
	if err == nil && o.UserID != q.identity.Subject {
		err = order.ErrNotFound
	}
	return o, err
}

// showOrder writes the page of an order, with a refusal if there is one.
func (rs *shopRoutes) showOrder(q *call, status int, o order.Order, refusal *problem.Problem) error {
	o.ItemID = bucket.Item(o.ItemID)
	page := pages.OrderPage{Frame: rs.frame(q), Order: o, CanPay: rs.charge != nil, Now: rs.itemNow(o.ItemID)}
	page.Paying = refusal == nil && q.query.Has("paying")
	page.Query.Del("paying")
	// The order is shown even if its item cannot be read.
	if v, err := rs.items.View(q.ctx(), o.ItemID); err == nil {
		item := rs.view(&v.Item)
		page.Item = &item
	}
	if refusal != nil {
		page.Notice = noticeOf(page.Frame, refusal, q.requestID())
	}
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.page(status, "shop/order", &page)
}

// cancel answers POST /orders/{order}/cancel.
func (rs *shopRoutes) cancel(q *call) error {
	return rs.act(q, "", func(o order.Order) error {
		_, err := rs.orders.Cancel(q.ctx(), o.ID, order.Canceller{UserID: q.identity.Subject, RequestID: q.requestID()})
		return err
	})
}

// pay answers POST /orders/{order}/pay: the mock payment service pays the order shortly after.
func (rs *shopRoutes) pay(q *call) error {
	return rs.act(q, "?paying=1", func(o order.Order) error {
		if err := rs.payable(&o); err != nil {
			return err
		}
		if err := rs.charge(q.ctx(), o); err != nil {
			return fmt.Errorf("%w: %w", problemNotCharged, err)
		}
		return nil
	})
}

// payable returns why an order is not to be paid, or nil. A form can be older than the order's state.
func (rs *shopRoutes) payable(o *order.Order) error {
	switch {
	case o.Status == order.StatusQueued:
		return problemNotConfirmed // it may still be rejected
	case o.Status == order.StatusExpired, o.Status == order.StatusConfirmed && !o.ExpiresAt.IsZero() && !rs.itemNow(o.ItemID).Before(o.ExpiresAt):
		return order.ErrOrderExpired
	case o.Status != order.StatusConfirmed || o.ExpiresAt.IsZero():
		return order.ErrOrderFinal
	default:
		return nil
	}
}

// problemNotConfirmed means that a queued order cannot be paid yet.
var problemNotConfirmed = problem.New(409, "orders_in_flight", "Order not confirmed", "The order is being confirmed. Pay it once it is confirmed.")

// problemNotCharged means that the payment service did not take the charge.
var problemNotCharged = problem.New(503, "unavailable", "Unavailable", "The payment service does not answer. Nothing was charged; retry.").Among(1)

// act changes the buyer's order and shows it, with the query; a refusal is shown on its page.
func (rs *shopRoutes) act(q *call, query string, change func(o order.Order) error) error {
	o, err := rs.own(q)
	if err != nil {
		return err
	}
	if err = change(o); err == nil {
		return q.redirect("/orders/" + o.ID + query)
	}
	p := lookUp(err)
	if p == nil {
		return err
	}
	if now, again := rs.own(q); again == nil {
		o = now
	}
	return rs.showOrder(q, p.Status, o, p.For(false, http.MethodPost).One())
}

// login answers GET /login.
func (rs *shopRoutes) login(q *call) error {
	return rs.showLogin(q, http.StatusOK, q.query.Get("next"), nil)
}

func (rs *shopRoutes) showLogin(q *call, status int, next string, refusal *problem.Problem) error {
	page := pages.Login{Frame: rs.frame(q), Next: localPath(next, "/")}
	page.Query.Set("next", page.Next) // also after a refused form
	if rs.loginURL != "" {
		page.LoginURL = withNext(rs.loginURL, page.Next)
	}
	if refusal != nil {
		page.Notice = noticeOf(page.Frame, refusal, q.requestID())
	}
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.page(status, "shop/login", &page)
}

// buyerSession is the duration of a session that development mode issues.
const buyerSession = 12 * time.Hour

// logIn answers POST /login with a token, or in development mode with a name.
func (rs *shopRoutes) logIn(q *call) error {
	next := localPath(q.form.Get("next"), "/")
	token := q.form.Get("token")
	if name := q.form.Get("name"); rs.signToken != nil && token == "" {
		if !loopbackHost(q.c.Request.Host) {
			return problemNotLoopback // as for POST /dev/tokens
		}
		if !auth.ValidSubject(name) {
			return rs.showLogin(q, http.StatusUnprocessableEntity, next, problemLoginName)
		}
		var err error
		if token, err = rs.signToken(name, string(auth.RoleBuyer), buyerSession); err != nil {
			return err
		}
	}
	if err := rs.start(q, buyerCookie, token, auth.RoleBuyer); err != nil {
		p := lookUp(err)
		if p == nil {
			return err
		}
		return rs.showLogin(q, http.StatusForbidden, next, p)
	}
	return q.redirect(next)
}

// problemLoginName refuses a name that cannot be a buyer's id.
var problemLoginName = request.ErrFieldRange.With("name", "A name has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")

// logOut answers POST /logout.
func (rs *shopRoutes) logOut(q *call) error {
	rs.end(q, buyerCookie)
	q.c.Writer.Header()["Clear-Site-Data"] = []string{`"cache"`} // pages that show the buyer
	return q.redirect("/")
}
