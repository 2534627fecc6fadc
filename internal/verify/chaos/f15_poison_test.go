//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"flashsale/internal/verify/history"
	"flashsale/inventory/accepted"
	"flashsale/queue"
)

func init() {
	var poison []string
	register(fault{
		ID: "F15", Name: "poison tasks", Lasts: 6 * time.Second,
		Strike: func(ctx context.Context, r *run) { poison = enqueuePoison(ctx, r) },
		Expect: func(ctx context.Context, r *run) { expectDead(ctx, r, poison) },
	})
}

// poisonShare is the number of poison tasks relative to the purchases.
const poisonShare = 0.01

// enqueuePoison enqueues tasks that can never become orders: a third are malformed, a third break
// the transaction of every batch that contains them, and a third have two malformed orders. It
// returns the ids of the orders.
func enqueuePoison(ctx context.Context, r *run) []string {
	q, err := queue.New(r.shop.rdb, queue.Config{Prefix: r.shop.ordersKey(0, "")})
	if err != nil {
		r.t.Fatal(err)
	}
	r.measure("poisoned")
	n := max(10, int(poisonShare*float64(r.plan.Purchases)))
	tick := time.NewTicker(5 * time.Second / time.Duration(n))
	defer tick.Stop()
	ids := make([]string, n)
	for i := range n {
		ids[i] = fmt.Sprintf("poison-%d", i)
		task := queue.Task{ID: ids[i], Payload: []byte("garbage")}
		switch i % 3 {
		case 1:
			// The table refuses an order of zero units. With the default number of attempts the
			// run would take too long.
			task.MaxAttempts = 2
			task.Payload = []byte(strings.Join([]string{"1", r.plan.Items[i%itemsOnSale].ID, "poisoner", "0", "990", "EUR", "0", "", ids[i]}, "\t"))
		case 2: // two orders in one task
			also := ids[i] + "-also"
			task.ID, task.Type, task.Entries = "parcel-"+ids[i], accepted.TaskType, 2
			task.Payload = []byte("p1\t\n" + ids[i] + "\tgarbage\n" + also + "\tgarbage, too")
			ids = append(ids, also)
		}
		status, err := q.Enqueue(ctx, task)
		if err != nil || status[0] != queue.StatusOK {
			r.t.Fatalf("enqueue %s: %v, %v", ids[i], status, err)
		}
		r.struck(ids[i])
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ids
		}
	}
	r.over()
	return ids
}

// expectDead compares the dead letters with the poison tasks.
func expectDead(ctx context.Context, r *run, poison []string) {
	dead, err := history.DeadOrders(ctx, r.shop.rdb, r.shop.ordersKey(0, ""))
	if err != nil {
		r.failf("read dead letters: %v", err)
	}
	for _, id := range poison {
		if !slices.Contains(dead, id) {
			r.failf("%s is no dead letter", id)
		}
	}
	if len(dead) != len(poison) {
		r.failf("%d dead letters, of which %d are poison", len(dead), len(poison))
	}
	r.notef("%d poison tasks, %d dead letters", len(poison), len(dead))
	for _, s := range r.spans {
		r.report(s)
		r.untroubled(s)
	}
}
