//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"sync"
	"time"

	"flashsale/internal/verify/history"
)

func init() {
	register(fault{
		ID: "F18", Name: "20 times the stock at the opening", Small: true, Lasts: 15 * time.Second,
		Strike: openDrop, Expect: expectBounds,
	})
}

const (
	// drop is the item whose sale opens during the run.
	drop = "drop"
	// dropStock is its stock, and dropCrowd the number of buyers for each unit of it.
	dropStock = 500
	dropCrowd = 20
	// dropConnections is the number of concurrent connections of these buyers. Each connection
	// carries the next buyer after the previous one was answered.
	dropConnections = 1000
	// dropOpens is the time until the sale opens.
	dropOpens = 5 * time.Second
)

// openDrop opens a sale for which a crowd waits: the load rises from zero in one step.
func openDrop(ctx context.Context, r *run) {
	opens := time.Now().Add(dropOpens)
	admin, err := r.caller()
	if err != nil {
		r.t.Fatal(err)
	}
	defer admin.close()
	a, err := admin.admin(ctx, 0, "POST", "/v1/admin/items", map[string]any{
		"id": drop, "name": "Drop", "price_minor": 990, "currency": "EUR", "stock": dropStock, "per_user_limit": 1,
		"opens_at": opens.UTC().Format(time.RFC3339Nano),
	})
	if err != nil || a.status != 201 {
		r.t.Fatalf("create the drop: %d %s %v", a.status, a.body, err)
	}
	var gathered, all sync.WaitGroup
	gathered.Add(dropConnections)
	start := make(chan struct{})
	s := r.measure("the step")
	for n := range dropConnections {
		all.Go(func() { r.dropBuyers(ctx, n, gathered.Done, start) })
	}
	gathered.Wait()
	if left := time.Until(opens); left < 0 {
		r.voidf("the crowd was not there in time: %v late", -left)
	}
	r.lasts(ctx, time.Until(opens))
	r.struck(fmt.Sprintf("%d buyers over %d connections", dropStock*dropCrowd, dropConnections))
	close(start)
	all.Wait()
	r.end(s)
	r.over()
	r.recovered(ctx)
}

// dropBuyers runs the buyers of one connection. They connect before the sale opens, but make no
// purchase before it.
func (r *run) dropBuyers(ctx context.Context, n int, ready func(), start <-chan struct{}) {
	c, err := r.caller()
	if err != nil {
		ready()
		r.failf("connection %d: %v", n, err)
		return
	}
	defer c.close()
	var users []string
	for u := n; u < dropStock*dropCrowd; u += dropConnections {
		users = append(users, fmt.Sprintf("drop-%d", u))
		c.token(users[len(users)-1], "buyer")
	}
	if _, err := c.do(ctx, n%len(c.targets), "GET", "/v1/items/"+drop, c.token(users[0], "buyer"), ""); err != nil {
		r.failf("connection %d: %v", n, err)
	}
	ready()
	select {
	case <-start:
	case <-ctx.Done():
		return
	}
	for _, user := range users {
		r.dropBuyer(ctx, c, n, user)
	}
}

// dropBuyer buys one unit, and repeats the purchase until the answer is definite.
func (r *run) dropBuyer(ctx context.Context, c *caller, n int, user string) {
	until := time.Now().Add(askFor)
	for try := 0; ctx.Err() == nil; try++ {
		h := history.Call{Client: 1000 + n, User: user, Item: drop, Quantity: 1, Key: "k", Async: n%3 == 0}
		c.buy(ctx, r.now, (n+try)%len(c.targets), &h)
		r.saw(&h)
		// Redis's clock may be behind the clock of this process.
		if definite(&h) && h.Code != "sale_not_open" {
			return
		}
		if time.Now().After(until) {
			r.gaveUp.Add(1)
			return
		}
		r.lasts(ctx, askAgain)
	}
}
