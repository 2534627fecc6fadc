package checkout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
)

func TestFulfiller_Handle_Notices(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		now := time.Now()
		store.WithClock(ordertest.ClockFunc(func() time.Time { return now }))(s)
		asked := ordertest.NewItem("item", 6, 1)
		asked.PaymentWindow = time.Minute
		storetest.MustInsert(t, s, asked)
		local := checkout.NewWaiters()
		f := worker.NewFulfiller(s, rdb, local, func(err error) { t.Errorf("reported %v", err) })
		origins := []string{local.Origin(), "a" + ordertest.RandomName(t), "b" + ordertest.RandomName(t), ""}
		sub := rdb.Subscribe(await.Context(t), order.ChannelOf(origins[1]), order.ChannelOf(origins[2]), order.ChannelOf(local.Origin()))
		defer sub.Close()
		for range 3 {
			if _, err := sub.Receive(await.Context(t)); err != nil {
				t.Fatal(err)
			}
		}
		tasks := ordertest.Distinct("n", "item", 8) // two more than the stock
		for i := range tasks {
			tasks[i].Origin = origins[i%4]
		}
		mine := checkout.NewTicket(local, tasks[0].ID)
		other := checkout.NewTicket(local, "not in the batch")
		for i, err := range f.Handle(await.Context(t), ordertest.Leased(tasks...)) {
			if ordertest.Followed(err) != (i < 6) || i >= 6 && err != nil {
				t.Errorf("task %d: %v, want an expiry to follow each confirmed order", i, err)
			}
		}
		// A closing message on each channel shows that nothing else was sent.
		for _, o := range origins[:3] {
			if err := rdb.Publish(await.Context(t), order.ChannelOf(o), "end").Err(); err != nil {
				t.Fatal(err)
			}
		}
		got := map[string][]string{}
		for ended := 0; ended < 3; {
			msg, err := sub.ReceiveMessage(await.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			if msg.Payload == "end" {
				ended++
				continue
			}
			var lines []string
			if err := order.ParseNotices(msg.Payload, func(n order.Notice) {
				lines = append(lines, n.ID+" "+ordertest.Verdicts([]order.Outcome{n.Outcome})[0])
			}); err != nil {
				t.Error(err)
			}
			got[msg.Channel] = append(got[msg.Channel], strings.Join(lines, ","))
		}
		sold := ordertest.RejectedPrefix + order.ReasonSoldOut
		want := map[string][]string{
			order.ChannelOf(origins[1]): {"n0001 confirmed,n0005 confirmed"},
			order.ChannelOf(origins[2]): {"n0002 confirmed,n0006 " + sold},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("published %v, want %v", got, want)
		}
		select {
		case set := <-mine.Settled():
			if !set.Commit() || set.Notice().ID != tasks[0].ID || set.Notice().Outcome != (order.Outcome{
				Status: order.StatusConfirmed, ConfirmedAt: now.UnixMilli(), ExpiresAt: now.Add(time.Minute).UnixMilli(),
			}) {
				t.Errorf("settled with %+v", set)
			}
		default:
			t.Error("the waiter of this process was not notified")
		}
		select {
		case set := <-other.Settled():
			t.Errorf("a waiter got another's order: %+v", set)
		default:
		}
	})
}
