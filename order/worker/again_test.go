package worker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// TestFulfiller_Handle_Again: an order that the database always refuses is retried beside a steady
// stream of others, and a task is delivered again. No transaction of the stream is broken by them:
// its orders are committed together.
func TestFulfiller_Handle_Again(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10_000, 1))
	ordertest.Refuse(t, s, "INSERT", "orders", "new.user_id = 'poison'")
	var commits []int
	f := worker.NewFulfiller(s, nil, nil, func(err error) { t.Errorf("reported %v", err) },
		worker.WithCommits(func(orders int) { commits = append(commits, orders) }))
	const n = 16
	parcel := func(attempt int, name string) queue.Leased {
		p := ordertest.Parcel(name, ordertest.Distinct(name, "item", n)...)
		return queue.Leased{ID: p.ID, Payload: p.Payload, Attempt: attempt, Options: queue.Options{Type: p.Type, Entries: p.Entries}}
	}
	poison := ordertest.Leased(ordertest.Bought("poison", "item", "poison", "k", 1))[0]
	for round := range 20 {
		name := fmt.Sprint("n", round)
		batch := []queue.Leased{poison, parcel(1, name+"a"), parcel(1, name+"b")}
		batch[0].Attempt = round + 1
		if round > 0 {
			batch = append(batch, parcel(2, fmt.Sprint("n", round-1, "a")))
		}
		commits = nil
		errs := f.Handle(await.Context(t), batch)
		if errs[0] == nil || slices.ContainsFunc(errs[1:], func(err error) bool { return err != nil }) {
			t.Fatalf("round %d: verdicts %v", round, errs)
		}
		if commits[0] != 2*n {
			t.Errorf("round %d: transactions of %v orders, want one of %d for the stream", round, commits, 2*n)
		}
	}
	ordertest.AuditStore(t, s)
}

// TestFulfiller_Handle_ExpiriesAgain: the same for an order that cannot expire.
func TestFulfiller_Handle_ExpiriesAgain(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	f, _ := shoptest.OnShelf(t, s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 100, 1, time.Minute))
	due := ordertest.Distinct("n", "item", 20)
	storetest.MustCommit(t, s, due...)
	storetest.MustCommit(t, s, ordertest.Bought("poison", "item", "poison", "k", 1))
	ordertest.Refuse(t, s, "UPDATE", "orders", "new.id = 'poison'")
	c.Add(time.Minute.Milliseconds())
	before := ordertest.ItemOf(t, s, "item").Revision
	batch := ordertest.Expiries(append([]string{"poison"}, order.TaskIDs(due)...)...)
	batch[0].Attempt = 2
	errs := f.Handle(await.Context(t), batch)
	if errs[0] == nil || slices.ContainsFunc(errs[1:], func(err error) bool { return err != nil }) {
		t.Fatalf("verdicts %v", errs)
	}
	if n := ordertest.ItemOf(t, s, "item").Revision - before; n != 1 { // every transaction raises it by 1
		t.Errorf("%d orders expired in %d transactions, want 1", len(due), n)
	}
}
