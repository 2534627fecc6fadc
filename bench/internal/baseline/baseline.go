// Package baseline serves the programs that the service is compared with: an empty handler,
// and a purchase that polls for a lock of its own.
package baseline

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/runner"
	"flashsale/handler/server"
	"flashsale/internal/pause"
)

// Purchase is the contract's request body, as a plain Gin handler would declare it.
type Purchase struct {
	Quantity int64 `json:"quantity"`
}

// Order is the contract's answer to a purchase.
type Order struct {
	ID             string    `json:"id"`
	ItemID         string    `json:"item_id"`
	UserID         string    `json:"user_id"`
	Quantity       int64     `json:"quantity"`
	UnitPriceMinor int64     `json:"unit_price_minor"`
	Currency       string    `json:"currency"`
	Status         string    `json:"status"`
	CreatedAt      time.Time `json:"created_at"`
	ConfirmedAt    time.Time `json:"confirmed_at,omitzero"`
}

func newOrder(c *gin.Context, quantity int64) Order {
	now := time.Now().UTC()
	return Order{
		ID: "01a1fb1d-34cd-76f1-855c-ab4a1614b149", ItemID: c.Param("item"), UserID: "buyer-1000000", Quantity: quantity,
		UnitPriceMinor: 4900, Currency: "EUR", Status: "confirmed", CreatedAt: now, ConfirmedAt: now,
	}
}

// ServeEmpty serves the empty handler: it reads a purchase and writes an order, and does
// nothing in between.
func ServeEmpty(ctx context.Context, addr string) error {
	return Serve(ctx, addr, func(c *gin.Context) {
		var in Purchase
		if err := c.ShouldBindJSON(&in); err != nil {
			c.Status(http.StatusBadRequest)
			return
		}
		c.JSON(http.StatusCreated, newOrder(c, in.Quantity))
	})
}

// emptyItem is the empty handler's page of an item: as many bytes as the service's page of an
// item of the benchmark, encoded beforehand.
var emptyItem = []byte(`{"id":"reads-0","name":"reads-0","description":"","price_minor":4900,"currency":"EUR","stock_total":100000000,` +
	`"stock_left":100000000,"per_user_limit":1,"opens_at":"2026-01-01T00:00:00.000Z","closes_at":null,` +
	`"payment_window_seconds":0,"state":"open","version":1,"server_time":"2026-01-01T00:00:00.000Z"}`)

// ListedItems is how many items a page of the list has.
const ListedItems = 20

// emptyList is the empty handler's first page of the list.
var emptyList = []byte(`{"items":[` + strings.TrimSuffix(strings.Repeat(string(emptyItem)+",", ListedItems), ",") + `],"next_cursor":"` + strings.Repeat("c", 31) + `"}`)

func readEmpty(c *gin.Context) { c.Data(http.StatusOK, "application/json", emptyItem) }

// PollIntervals returns the pauses between attempts of the polling lock: 1 ms as in a first
// version, 5 ms as in a tuned one, and 50 to 250 ms at random, the default of a widely used
// client library. The last gains from being unfair: the process that has just released the
// lock takes it again with its next request, while the others sleep.
var PollIntervals = map[string]func() time.Duration{
	"1ms":   func() time.Duration { return time.Millisecond },
	"5ms":   func() time.Duration { return 5 * time.Millisecond },
	"usual": func() time.Duration { return 50*time.Millisecond + rand.N(200*time.Millisecond) },
}

var unlock = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// ServePolling sells as a first version does: each request takes the item's lock by SET NX,
// retries after an interval while it is taken, reads the stock, decrements it, queues the
// order, and unlocks.
func ServePolling(ctx context.Context, addr, redisAddr, interval string) error {
	next, ok := PollIntervals[interval]
	if !ok {
		return errors.New("no such interval: " + interval)
	}

	rdb := redis.NewClient(&redis.Options{Addr: redisAddr, PoolSize: 256})
	defer rdb.Close() //nolint:errcheck // the process ends here
	return Serve(ctx, addr, func(c *gin.Context) {
		var in Purchase
		if err := c.ShouldBindJSON(&in); err != nil {
			c.Status(http.StatusBadRequest)
			return
		}
		if err := pollingPurchase(c.Request.Context(), rdb, c.Param("item"), next); err != nil {
			c.Status(http.StatusServiceUnavailable)
			return
		}
		c.JSON(http.StatusCreated, newOrder(c, in.Quantity))
	})
}

func pollingPurchase(ctx context.Context, rdb *redis.Client, item string, next func() time.Duration) error {
	key, token := "polling:lock:"+item, uuid.NewString()
	for {
		ok, err := rdb.SetNX(ctx, key, token, 5*time.Second).Result()
		if err != nil {
			return err
		}
		if ok {
			break
		}
		if err := pause.OrCause(ctx, next()); err != nil {
			return err
		}
	}
	err := sellOne(ctx, rdb, item)
	return errors.Join(err, unlock.Run(context.WithoutCancel(ctx), rdb, []string{key}, token).Err())
}

func sellOne(ctx context.Context, rdb *redis.Client, item string) error {
	left, err := rdb.Get(ctx, "polling:stock:"+item).Int64()
	if err != nil {
		return err
	}
	if left <= 0 {
		return errors.New("sold out")
	}
	if err := rdb.Decr(ctx, "polling:stock:"+item).Err(); err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	return rdb.ZAdd(ctx, "polling:queue", redis.Z{Score: float64(now), Member: strconv.FormatInt(now, 10) + uuid.NewString()}).Err()
}

// Serve serves purchases with h until ctx ends and the running requests are answered. Everything
// else is the same for all programs: the router, the pages of items and the server's limits.
func Serve(ctx context.Context, addr string, h gin.HandlerFunc) error {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/v1/items/:item/orders", h)
	r.GET("/v1/items/:item", readEmpty)
	r.GET("/v1/items", func(c *gin.Context) { c.Data(http.StatusOK, "application/json", emptyList) })
	r.GET("/readyz", func(c *gin.Context) { c.Status(http.StatusOK) })
	// The same server as the service's, with the same limits on time and size, so that only
	// the handlers differ.
	srv := server.New(r)
	srv.Addr = addr
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		stopping, cancel := runner.Cleanup(ctx)
		defer cancel()
		stopped <- srv.Shutdown(stopping)
	})
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
