//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
)

func init() {
	register(fault{
		ID: "F1", Name: "API killed", Small: true,
		Points: []string{"inventory.locking", "inventory.locked", "inventory.send", "inventory.sent", "order.waiting", "handler.answer"},
		Strike: killAPIs,
		Expect: noDeadLetters,
	})
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
