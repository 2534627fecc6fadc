//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"

	"flashsale/internal/verify/history"
)

func init() {
	register(fault{
		ID: "F1", Name: "API killed", Small: true,
		Points: []string{"inventory.locking", "inventory.locked", "inventory.send", "inventory.sent", "order.waiting", "handler.answer"},
		Strike: killAPIs,
		Expect: noDeadLetters,
	})
	register(fault{
		ID: "F1b", Name: "API killed while units move between buckets", Small: true, Buckets: 8,
		Points: []string{"inventory.suspended", "inventory.changed", "inventory.adjusted"},
		Strike: killInMoves, Expect: noDeadLetters,
	})
}

// killInMoves restocks items, which moves units to all of their buckets, and kills the API process
// at a named place in it.
func killInMoves(ctx context.Context, r *run) {
	for i, point := range r.plan.Points {
		killInMove(ctx, r, i, point)
	}
}

func killInMove(ctx context.Context, r *run, i int, point string) {
	n := i % len(r.shop.apis)
	m := r.shop.apis[n]
	r.answers(ctx, r.plan.Moments[i])
	m.Kill()
	// The restock reaches each point once, and each of the seven moves twice.
	m.again(fmt.Sprintf("%s:%d", point, 1+r.plan.Numbers[i]%15))
	if err := m.WaitReady(); err != nil {
		r.t.Fatal(err)
	}
	c, err := r.caller()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.close()
	restock := history.Call{
		Client: 2*buyersAtOnce + 1, Op: history.Restock, Item: r.plan.Items[i%itemsOnSale].ID, Quantity: 80, Key: fmt.Sprintf("spread-%d", i),
	}
	path, body := "/v1/admin/items/"+restock.Item+"/restock", `{"quantity":80,"reason":"spread"}`
	h := restock
	c.call(ctx, r.now, n, &h, "POST", path, "admin", body, "Idempotency-Key", h.Key)
	r.saw(&h)
	if err := m.ended(ctx); err != nil {
		r.t.Fatalf("the API at %s: %v", point, err)
	}
	r.struck("API killed at " + point)
	r.over()
	m.again("")
	if h := (&storm{r: r}).settle(ctx, c, restock, path, "admin", body, "Idempotency-Key", restock.Key); h.Status != 200 {
		r.failf("repeated restock of %s: %d %s", h.Item, h.Status, h.Code)
	}
	r.recovered(ctx)
	if err := m.WaitReady(); err != nil {
		r.t.Fatal(err)
	}
}

// killAPIs kills one of the API processes at a random moment, and each successor at a named
// place. Clients that wait for an answer get none.
func killAPIs(ctx context.Context, r *run) {
	m := r.shop.apis[r.plan.Numbers[0]%len(r.shop.apis)]
	r.answers(ctx, r.plan.Moments[0])
	m.Kill()
	r.struck("API killed")
	r.over()
	for i, point := range r.plan.Points {
		m.again(fmt.Sprintf("%s:%d", point, 1+r.plan.Numbers[1+i]%20))
		r.recovered(ctx)
		if err := m.ended(ctx); err != nil {
			r.t.Fatalf("the API at %s: %v", point, err)
		}
		r.struck("API killed at " + point)
		r.over()
	}
	m.again("")
	r.recovered(ctx)
	if err := m.WaitReady(); err != nil {
		r.t.Fatal(err)
	}
}
