package handler

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/handlertest"
	"flashsale/order"
	"flashsale/order/checkout"
)

// The checks of answers are shared with handler/server.
var (
	wantProblem = handlertest.WantProblem
	decodeBody  = handlertest.DecodeBody
)

// testSecret signs the tokens of these tests.
var testSecret = []byte("a secret of the tests, long enough for HS256")

// fakeOrders records its calls.
type fakeOrders struct {
	mu     sync.Mutex
	placed []order.Purchase
	lists  []order.Filter
	place  func(ctx context.Context, p order.Purchase) (order.Placed, error)
	get    func(id string) (order.Order, error)
	list   func(f order.Filter) ([]order.Order, string, error)
	pay    func(id string, p order.Payment) (order.Order, error)
	cancel func(id string, by order.Canceller) (order.Order, error)
	held   func(ctx context.Context, item, buyer string) (int64, error)
}

func (f *fakeOrders) Held(ctx context.Context, item *catalog.Item, buyer string) (int64, error) {
	if f.held == nil {
		return 0, nil
	}
	return f.held(ctx, item.ID, buyer)
}

func (f *fakeOrders) Pay(_ context.Context, id string, p order.Payment) (order.Order, error) {
	if f.pay == nil {
		return order.Order{}, order.ErrNotFound
	}
	return f.pay(id, p)
}

func (f *fakeOrders) Cancel(_ context.Context, id string, by order.Canceller) (order.Order, error) {
	if f.cancel == nil {
		return order.Order{}, order.ErrNotFound
	}
	return f.cancel(id, by)
}

func (f *fakeOrders) Refund(context.Context, string, checkout.Refund) (order.Order, error) {
	return order.Order{}, order.ErrNotFound
}

func (f *fakeOrders) Place(ctx context.Context, p order.Purchase) (order.Placed, error) {
	f.mu.Lock()
	f.placed = append(f.placed, p)
	f.mu.Unlock()
	if f.place == nil {
		return order.Placed{Order: someOrder(p), Committed: true}, nil
	}
	return f.place(ctx, p)
}

func (f *fakeOrders) Get(_ context.Context, id string) (order.Order, error) {
	if f.get == nil {
		return order.Order{}, order.ErrNotFound
	}
	return f.get(id)
}

func (f *fakeOrders) List(_ context.Context, filter order.Filter) ([]order.Order, string, error) {
	f.mu.Lock()
	f.lists = append(f.lists, filter)
	f.mu.Unlock()
	if f.list == nil {
		return nil, "", nil
	}
	return f.list(filter)
}

func (f *fakeOrders) purchases() []order.Purchase {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]order.Purchase(nil), f.placed...)
}

func (f *fakeOrders) lastList(t *testing.T) order.Filter {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lists) == 0 {
		t.Fatal("Orders.List was not called")
	}
	return f.lists[len(f.lists)-1]
}

const someOrderID = "0197a0f2-3c4d-7abc-8def-0123456789ab"

var someTime = time.Date(2030, 1, 2, 3, 4, 5, 678_900_000, time.UTC)

func someOrder(p order.Purchase) order.Order {
	return order.Order{
		ID: someOrderID, ItemID: p.ItemID, UserID: p.UserID, Quantity: p.Quantity, UnitPriceMinor: 990,
		Currency: "EUR", Status: order.StatusConfirmed, IdempotencyKey: p.IdempotencyKey,
		CreatedAt: someTime, ConfirmedAt: someTime.Add(time.Millisecond),
	}
}

// fakeItems has the given items.
type fakeItems map[string]catalog.Item

func (f fakeItems) Item(_ context.Context, id string) (catalog.Item, error) {
	item, known := f[id]
	if !known {
		return catalog.Item{}, catalog.ErrItemNotFound
	}
	return item, nil
}

func (f fakeItems) View(ctx context.Context, id string) (*catalog.View, error) {
	item, err := f.Item(ctx, id)
	if err != nil {
		return nil, err
	}
	return &catalog.View{Item: item}, nil
}

func (f fakeItems) List(context.Context) (*catalog.ListView, error) {
	var all []catalog.Item
	for _, item := range f {
		all = append(all, item)
	}
	return &catalog.ListView{Items: all}, nil
}

func (f fakeItems) Warm(ctx context.Context, id string) (*catalog.View, error) {
	return f.View(ctx, id)
}

func someItem() catalog.Item {
	return catalog.Item{
		ID: "thing", Name: "Thing", Description: "a <thing>", PriceMinor: 990, Currency: "EUR", StockInitial: 5,
		StockTotal: 7, StockLeft: 3, PerUserLimit: 2, OpensAt: someTime.Add(-time.Hour),
		Control: catalog.ControlOpen, Version: 4, PaymentWindow: 90 * time.Second,
	}
}

// fakeSales records the items created.
type fakeSales struct {
	mu      sync.Mutex
	created []order.NewItem
	err     error
	ledger  order.Ledger
}

func (f *fakeSales) CreateItem(_ context.Context, n order.NewItem) (catalog.Item, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return catalog.Item{}, f.err
	}
	f.created = append(f.created, n)
	return catalog.Item{
		ID: n.ID, Name: n.Name, Description: n.Description, ImageURL: n.ImageURL, PriceMinor: n.PriceMinor, Currency: n.Currency,
		StockInitial: n.Stock, StockTotal: n.Stock, StockLeft: n.Stock, PerUserLimit: n.PerUserLimit,
		OpensAt: n.OpensAt, ClosesAt: n.ClosesAt, PaymentWindow: n.PaymentWindow, Control: catalog.ControlOpen, Version: 1,
	}, nil
}

func (f *fakeSales) Ledger(_ context.Context, item string) (order.Ledger, error) {
	if item != "thing" {
		return order.Ledger{}, catalog.ErrItemNotFound
	}
	return f.ledger, f.err
}

// shop is the package's routes with fakes behind them.
type shop struct {
	http.Handler
	bare    http.Handler // without the checks of the contract
	orders  *fakeOrders
	sales   *fakeSales
	changes *fakeChanges
	audit   *fakeAuditLog
}

// fakeItemService creates and changes items.
type fakeItemService struct {
	*fakeSales
	*fakeChanges
}

// open makes a shop with a fixed clock; change may modify its Config.
func open(tb testing.TB, change ...func(*Config)) *shop {
	tb.Helper()
	now := func() time.Time { return someTime }
	verifier, err := auth.NewVerifier(auth.Config{Secret: testSecret, Leeway: -1, Now: now})
	if err != nil {
		tb.Fatal(err)
	}
	s := &shop{orders: &fakeOrders{}, sales: &fakeSales{}, changes: &fakeChanges{}, audit: &fakeAuditLog{}}
	c := Config{
		Orders: s.orders, Items: fakeItems{"thing": someItem()}, Sales: fakeItemService{s.sales, s.changes}, Ledgers: s.sales,
		Payments: &fakeMoney{}, Buyers: &fakeBuyers{}, Audit: s.audit, Verifier: verifier, Now: now, Limits: Limits{RateBuyer: -1},
	}
	for _, f := range change {
		f(&c)
	}
	if s.bare, err = New(c); err != nil {
		tb.Fatal(err)
	}
	s.Handler = underContract(tb, s.bare)
	return s
}

// bearer signs a token that is valid in the shop.
func bearer(tb testing.TB, sub string, role auth.Role) string {
	tb.Helper()
	token, err := auth.SignToken(testSecret, sub, role, time.Hour, someTime)
	if err != nil {
		tb.Fatal(err)
	}
	return "Bearer " + token
}

const purchasePath = "/v1/items/thing/orders"

// purchaseRequest returns a valid purchase.
func purchaseRequest(tb testing.TB, body string) *http.Request {
	tb.Helper()
	r := httptest.NewRequest(http.MethodPost, purchasePath, strings.NewReader(body))
	r.Header.Set("Authorization", bearer(tb, "alice", auth.RoleBuyer))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "key-1")
	return r
}

// do returns the answer to a request. It cuts off the newline that ends a JSON body, which the contract checks.
func (s *shop) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if body, ok := bytes.CutSuffix(w.Body.Bytes(), []byte("\n")); ok && w.Header().Get("Content-Type") == "application/json" && w.Header().Get("Content-Encoding") == "" {
		w.Body.Truncate(len(body))
	}
	return w
}

func (s *shop) get(tb testing.TB, path, sub string, role auth.Role) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	if sub != "" {
		r.Header.Set("Authorization", bearer(tb, sub, role))
	}
	return s.do(r)
}

var errTest = errors.New("a failure with inner details: dial tcp 10.0.0.1:6379")

// readCloser makes a body of a reader.
type readCloser struct{ io.Reader }

func (readCloser) Close() error { return nil }
