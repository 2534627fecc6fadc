// Package pages renders the HTML pages of the shop and of the dashboard from the templates in
// package web, and serves their assets.
package pages

import (
	"html/template"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"flashsale/catalog"
	"flashsale/order"
	"flashsale/web"
)

// policy is the content security policy of all pages: nothing comes from other hosts, nothing is
// inline, and scripts cannot turn text into HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// SetHeaders sets the headers of a page. Pages are not shared between readers.
func SetHeaders(h http.Header) {
	h["Content-Type"] = []string{"text/html; charset=utf-8"}
	h["Content-Security-Policy"] = []string{policy}
	h["Referrer-Policy"] = []string{"same-origin"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	if h["Cache-Control"] == nil {
		h["Cache-Control"] = []string{"private, no-cache"}
	}
}

// Frame is what every page shows around its content.
type Frame struct {
	*Language
	// Path is the path of the page, for links that lead back to it.
	Path string
	// Query is the page's query without the language, for the links of the other languages.
	Query url.Values
	// Buyer is the buyer who is logged in; empty: none.
	Buyer string
	// Admin is the admin who is logged in to the dashboard; empty: none.
	Admin string
	// Development: the service runs in development mode.
	Development bool
}

// Notice is a message at the top of a page.
type Notice struct {
	Code  string // of a problem
	Title string
	Text  string
	// RetryAfter is the time after which a repeat is useful, in seconds; 0: none is stated.
	RetryAfter int64
	RequestID  string
}

// Repeat is a form that sends a refused request again, with the same key.
type Repeat struct {
	Action string
	Fields []Field
}

// Field is a hidden field of a form.
type Field struct{ Name, Value string }

// Items is the list of items.
type Items struct {
	Frame
	Items []Item
	Next  string // the cursor of the next page; empty: this is the last one
	Later bool   // the page does not begin with the first item
	Now   time.Time
}

// Item is an item on a page.
type Item struct {
	catalog.Item
	State catalog.State
	// Image is the path of the item's picture.
	Image string
	// Now is the time of the sale's clock.
	Now time.Time
}

// ItemPage is the page of one item.
type ItemPage struct {
	Frame
	Item Item
	// AtLimit: the buyer holds as many units as one buyer may.
	AtLimit bool
	// Key is the Idempotency-Key of the form: a repeat of the form is a repeat of the purchase.
	Key      string
	Quantity int64
	Notice   *Notice
}

// Orders is the list of a buyer's orders.
type Orders struct {
	Frame
	Orders     []ListedOrder
	Next       string
	Later      bool // the page does not begin with the newest order
	Incomplete bool // orders that wait in the queue may be missing
}

// ListedOrder is an order in a list.
type ListedOrder struct {
	order.Order
	Name  string // of its item; the item's id if it is not on sale any more
	Image string // the path of the item's picture
}

// OrderPage is the page of one order.
type OrderPage struct {
	Frame
	Order order.Order
	Item  *Item // nil: it could not be read
	// CanPay: the mock payment service takes payments.
	CanPay bool
	// Paying: the buyer has just asked to pay.
	Paying bool
	Notice *Notice
	Now    time.Time
}

// Login is the login form of buyers and admins.
type Login struct {
	Frame
	Next     string
	LoginURL string // where buyers log in at the shop; empty: here
	Page     string // always empty: the form is no page of the dashboard's navigation
	Notice   *Notice
}

// ErrorPage shows a refusal.
type ErrorPage struct {
	Frame
	Status int
	Title  string
	Notice *Notice
	Back   string // the path of the page to which a reader can go back
	// Repeat sends the refused form again; nil: that is not useful.
	Repeat *Repeat
}

// Admin is a page of the dashboard. Its module reads everything through the API.
type Admin struct {
	Frame
	Page string // the name of the template and of the module
}

// Render writes a page from the template with the name, such as "shop/item".
func Render(w io.Writer, name string, page any) error {
	return templates()[name].ExecuteTemplate(w, "layout.html", page)
}

// AdminPages returns the names of the dashboard's templates.
func AdminPages() []string {
	var names []string
	for name := range templates() {
		if page, ok := strings.CutPrefix(name, "admin/"); ok {
			names = append(names, page)
		}
	}
	return names
}

// templates are the pages of both folders. Each folder has a layout, which defines what its pages
// have in common.
var templates = sync.OnceValue(func() map[string]*template.Template {
	all := make(map[string]*template.Template)
	for _, folder := range []string{"shop", "admin"} {
		layout := path.Join(folder, "layout.html")
		names, err := fs.Glob(web.Files, folder+"/*.html")
		if err != nil {
			panic("pages: " + err.Error()) // the pattern is part of the program
		}
		for _, name := range names {
			if name == layout {
				continue
			}
			t := template.New("").Funcs(functions)
			all[strings.TrimSuffix(name, ".html")] = template.Must(t.ParseFS(web.Files, layout, name))
		}
	}
	return all
})

var functions = template.FuncMap{
	"asset": Asset,
	"iso":   func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") },
	"date":  func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") },
	"total": func(o order.Order) int64 { return o.UnitPriceMinor * o.Quantity },
	"money": money,
	// amount is the number of a price: its text without the currency.
	"amount": func(minor int64, currency string) string { return money(minor, currency)[len(currency)+1:] },
}
