package handler

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/gin-gonic/gin"

	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order"
)

// answer is a response writer without overhead.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }

// emptyHandler reads and writes the same JSON as a purchase and does nothing else. It is the
// baseline for the speed of the whole service.
func emptyHandler() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	reply := appendOrder(nil, &someOrderForBench)
	r.POST("/v1/items/:item/orders", func(c *gin.Context) {
		var body struct {
			Quantity int64 `json:"quantity"`
		}
		raw, err := io.ReadAll(c.Request.Body)
		if err != nil || json.Unmarshal(raw, &body) != nil {
			c.Status(http.StatusBadRequest)
			return
		}
		c.Data(http.StatusCreated, "application/json", reply)
	})
	return r
}

func benchHandler(b *testing.B, h http.Handler, tokens []string, status int) {
	b.Helper()
	body := bytes.NewReader(nil)
	payload := []byte(`{"quantity":1}`)
	r := httptest.NewRequest(http.MethodPost, purchasePath, io.NopCloser(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "key-1")
	r.Header.Set("User-Agent", "bench")
	w := &answer{header: make(http.Header)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		body.Reset(payload)
		r.Header["Authorization"] = tokens[i%len(tokens) : i%len(tokens)+1]
		clear(w.header)
		h.ServeHTTP(w, r)
		if w.status != status {
			b.Fatalf("status %d", w.status)
		}
	}
}

// BenchmarkPurchaseHandler compares the cost of this package, with nothing behind it, with that
// of the empty handler. Both exclude the network.
func BenchmarkPurchaseHandler(b *testing.B) {
	many := bearers(b, 200_000)
	b.Run("empty", func(b *testing.B) { benchHandler(b, emptyHandler(), many, http.StatusCreated) })
	b.Run("known buyers", func(b *testing.B) { benchHandler(b, openWith(b, quickOrders{}), many[:1000], http.StatusCreated) })
	b.Run("new buyers", func(b *testing.B) { benchHandler(b, openWith(b, quickOrders{}), many, http.StatusCreated) })
	b.Run("sold out, known buyers", func(b *testing.B) { benchHandler(b, openWith(b, soldOut{}), many[:1000], http.StatusConflict) })
}

// BenchmarkHotPath_Handler is a purchase of a known buyer with nothing behind this package.
func BenchmarkHotPath_Handler(b *testing.B) {
	benchHandler(b, openWith(b, quickOrders{}), bearers(b, 64), http.StatusCreated)
}

func BenchmarkHotPath_DecodePurchase(b *testing.B) {
	body := []byte(`{"quantity":1}`)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := decodePurchase(body); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkHotPath_AppendOrder(b *testing.B) {
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = appendOrder(buf[:0], &someOrderForBench)
	}
}

// bearers returns the Authorization headers of n buyers.
func bearers(b *testing.B, n int) []string {
	b.Helper()
	all := make([]string, n)
	for i := range all {
		all[i] = bearer(b, "buyer-"+strconv.Itoa(i), auth.RoleBuyer)
	}
	return all
}

// openWith is a shop with the given orders, in which no buyer reaches the rate limit.
func openWith(b *testing.B, orders orderService) http.Handler {
	b.Helper()
	return open(b, func(c *Config) {
		c.Limits = Limits{RateBuyer: 1e9, BurstBuyer: 1 << 30}
		c.Orders = orders
	}).bare
}

var someOrderForBench = someOrder(order.Purchase{ItemID: "thing", UserID: "buyer-1", Quantity: 1})

// quickOrders accepts everything.
type quickOrders struct{ *fakeOrders }

func (quickOrders) Place(context.Context, order.Purchase) (order.Placed, error) {
	return order.Placed{Order: someOrderForBench, Committed: true}, nil
}

// soldOut refuses everything.
type soldOut struct{ *fakeOrders }

func (soldOut) Place(context.Context, order.Purchase) (order.Placed, error) {
	return order.Placed{}, inventory.ErrSoldOut
}
