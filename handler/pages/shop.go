package pages

import (
	"net/url"
	"slices"
	"time"

	"flashsale/catalog"
	"flashsale/order"
)

// Choice is a link that shows the page in a language.
type Choice struct {
	Code, Name, URL string
	Current         bool
}

// Languages returns the links of all languages.
func (f *Frame) Languages() []Choice {
	var all []Choice
	for _, l := range languages() {
		query := url.Values{}
		for name, values := range f.Query {
			query[name] = slices.Clone(values)
		}
		query.Set("lang", l.Code)
		all = append(all, Choice{Code: l.Code, Name: l.T("language"), URL: f.Path + "?" + query.Encode(), Current: l.Code == f.Code})
	}
	return all
}

// LoginPath is the login form that leads back to the page.
func (f *Frame) LoginPath() string {
	next := f.Path
	if len(f.Query) > 0 {
		next += "?" + f.Query.Encode()
	}
	return "/login?next=" + url.QueryEscape(next)
}

// Tone is the colour of the notice: a refusal that a repeat may solve is a warning.
func (n *Notice) Tone() string {
	if n.RetryAfter > 0 {
		return "warn"
	}
	return "bad"
}

// Buyable reports whether a purchase may succeed without a change of the item. A page is read before
// the opening and used after it, so that a scheduled item has a working form.
func (i *Item) Buyable() bool {
	return i.State == catalog.StateOpen || i.State == catalog.StateScheduled
}

// Low is the stock from which an item is nearly sold out.
func (i *Item) Low() int64 { return max(1, i.StockTotal/5) }

// Left is the stock that a page shows: never less than nothing.
func (i *Item) Left() int64 { return max(0, i.StockLeft) }

// PaymentSeconds is the time to pay an order, in seconds; 0: no payment is required.
func (i *Item) PaymentSeconds() int64 { return int64(i.PaymentWindow / time.Second) }

// Step is a step of an order's life, as its page lists them.
type Step struct {
	Name string
	// State is "done", "current" (where the order is), "failed" (where it ended), or "open".
	State string
	At    time.Time // zero: unknown, or not reached
}

// Steps returns the steps of the order's life. The module shop-order.js has the same rules.
func (p *OrderPage) Steps() []Step {
	o := &p.Order
	steps := []Step{{Name: "received", State: "done", At: o.CreatedAt}}
	switch o.Status {
	case order.StatusQueued:
		steps = append(steps, Step{Name: "confirmed"})
		if p.Item != nil && p.Item.PaymentWindow > 0 {
			steps = append(steps, Step{Name: "paid"})
		}
	case order.StatusRejected:
		return append(steps, Step{Name: "rejected", State: "failed", At: o.ClosedAt})
	case order.StatusConfirmed:
		steps = append(steps, Step{Name: "confirmed", State: "done", At: o.ConfirmedAt})
		if !o.ExpiresAt.IsZero() {
			steps = append(steps, Step{Name: "paid"})
		}
	case order.StatusCancelled, order.StatusExpired:
		steps = append(steps, Step{Name: "confirmed", State: "done", At: o.ConfirmedAt})
		return append(steps, Step{Name: string(o.Status), State: "failed", At: o.ClosedAt})
	case order.StatusPaid, order.StatusRefunded:
		steps = append(steps, Step{Name: "confirmed", State: "done", At: o.ConfirmedAt}, Step{Name: "paid", State: "done", At: o.PaidAt})
		if o.Status == order.StatusRefunded {
			steps = append(steps, Step{Name: "refunded", State: "done", At: o.ClosedAt})
		}
	}
	return current(steps)
}

// current marks the last step that is done as the current one.
func current(steps []Step) []Step {
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].State == "done" {
			steps[i].State = "current"
			break
		}
	}
	return steps
}

// PayDue reports whether the order waits for its payment.
func (p *OrderPage) PayDue() bool {
	return p.Order.Status == order.StatusConfirmed && !p.Order.ExpiresAt.IsZero() && p.Now.Before(p.Order.ExpiresAt)
}

// Cancellable reports whether the buyer can cancel the order.
func (p *OrderPage) Cancellable() bool {
	return p.Order.Status == order.StatusQueued || p.Order.Status == order.StatusConfirmed
}

// Explanation says what the order's state means for the buyer. The module shop-order.js has the same
// rules.
func (p *OrderPage) Explanation() string {
	o := &p.Order
	switch key := "reason." + o.Reason; {
	case o.Reason != "" && p.Has(key):
		return p.T(key)
	case o.Status == order.StatusConfirmed && o.ExpiresAt.IsZero():
		return p.T("order.no_payment")
	case o.Status == order.StatusRefunded && o.Restocked:
		return p.T("order.restocked")
	default:
		return p.T("order.is_" + string(o.Status))
	}
}
