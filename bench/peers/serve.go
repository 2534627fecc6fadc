package main

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"flashsale/bench/internal/baseline"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/runner"
	"flashsale/handler/auth"
)

// settings are those of a contender's process.
type settings struct {
	addr  string // to listen on
	redis string // host:port, if the contender uses Redis
	db    string // path of the SQLite file, or a Postgres URL
}

// sellLimit bounds a purchase. It does not end with the request: a client that disconnects
// must not interrupt a purchase between two of its steps.
const sellLimit = 10 * time.Second

// serveCommand is the first argument of a contender's process.
const serveCommand = "serve"

// serve runs a contender until ctx ends.
func serve(ctx context.Context, args []string) (err error) {
	var s settings
	f := flag.NewFlagSet(serveCommand, flag.ContinueOnError)
	name := f.String("contender", "", "the contender to serve")
	f.StringVar(&s.addr, "addr", "127.0.0.1:0", "address to listen on")
	f.StringVar(&s.redis, "redis", "", "host:port of Redis")
	f.StringVar(&s.db, "db", "", "SQLite file or Postgres URL")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *name == emptyName {
		return baseline.ServeEmpty(ctx, s.addr)
	}
	c, err := find(*name)
	if err != nil {
		return err
	}
	if c.open == nil {
		return errors.New(c.name + " is a program of its own")
	}
	// The service's own verifier, so that the contenders differ only in how they sell.
	tokens, err := auth.NewVerifier(auth.Config{Secret: []byte(load.Secret)})
	if err != nil {
		return err
	}
	sells, err := c.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := runner.Cleanup(ctx)
		defer cancel()
		err = errors.Join(err, sells.close(closing))
	}()
	p := purchases{seller: sells, tokens: tokens, answer: c.answer}
	return baseline.Serve(ctx, s.addr, p.post)
}

// purchases answers POST /v1/items/{item}/orders.
type purchases struct {
	seller seller
	tokens *auth.Verifier
	answer int
}

func (p purchases) post(c *gin.Context) {
	token, _ := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	buyer, err := p.tokens.Verify(token)
	if err != nil {
		refuse(c, http.StatusUnauthorized, "token")
		return
	}
	key := c.GetHeader("Idempotency-Key")
	if key == "" || len(key) > 255 {
		refuse(c, http.StatusBadRequest, "idempotency_key_invalid")
		return
	}
	var in baseline.Purchase
	if err := c.ShouldBindJSON(&in); err != nil || in.Quantity < 1 {
		refuse(c, http.StatusBadRequest, "json_invalid")
		return
	}
	id, err := uuid.NewV7()
	if err != nil {
		refuse(c, http.StatusInternalServerError, "internal")
		return
	}
	o := order{ID: id.String(), Item: c.Param("item"), Buyer: buyer.Subject, Key: key, Quantity: in.Quantity, Created: time.Now().UTC()}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request.Context()), sellLimit)
	defer cancel()
	sold, err := p.seller.sell(ctx, o)
	switch {
	case errors.Is(err, errSoldOut):
		refuse(c, http.StatusConflict, "sold_out")
	case errors.Is(err, errLimit):
		refuse(c, http.StatusConflict, "user_limit")
	case err != nil:
		_ = c.Error(err) //nolint:errcheck // it returns its argument
		refuse(c, http.StatusServiceUnavailable, "unavailable")
	default:
		p.accept(c, o, sold)
	}
}

// accept answers with the order; sold is its id, which is another than o's for a repeat.
func (p purchases) accept(c *gin.Context, o order, sold string) {
	out := baseline.Order{
		ID: sold, ItemID: o.Item, UserID: o.Buyer, Quantity: o.Quantity,
		UnitPriceMinor: unitPrice, Currency: currency, Status: "queued", CreatedAt: o.Created,
	}
	if p.answer == http.StatusCreated {
		out.Status, out.ConfirmedAt = "confirmed", time.Now().UTC()
	}
	if sold != o.ID {
		c.Header("Idempotent-Replayed", "true")
	}
	c.JSON(p.answer, out)
}

func refuse(c *gin.Context, status int, code string) {
	c.JSON(status, gin.H{"status": status, "code": code})
}
