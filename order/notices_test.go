package order

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func TestFulfiller_Handle_Notices(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t)
		now := time.Now()
		WithClock(clockFunc(func() time.Time { return now }))(s)
		asked := newItem("item", 6, 1)
		asked.PaymentWindow = time.Minute
		mustInsert(t, s, asked)
		local := NewWaiters()
		f := NewFulfiller(s, rdb, local, func(err error) { t.Errorf("reported %v", err) })
		origins := []string{local.Origin(), "a" + randomName(t), "b" + randomName(t), ""}
		sub := rdb.Subscribe(await.Context(t), channelOf(origins[1]), channelOf(origins[2]), channelOf(local.Origin()))
		defer sub.Close()
		for range 3 {
			if _, err := sub.Receive(await.Context(t)); err != nil {
				t.Fatal(err)
			}
		}
		tasks := distinct("n", "item", 8) // two more than the stock
		for i := range tasks {
			tasks[i].Origin = origins[i%4]
		}
		mine := newTicket(local, tasks[0].ID)
		other := newTicket(local, "not in the batch")
		for i, err := range f.Handle(await.Context(t), leased(tasks...)) {
			if followed(err) != (i < 6) || i >= 6 && err != nil {
				t.Errorf("task %d: %v, want an expiry to follow each confirmed order", i, err)
			}
		}
		// A closing message on each channel shows that nothing else was sent.
		for _, o := range origins[:3] {
			if err := rdb.Publish(await.Context(t), channelOf(o), "end").Err(); err != nil {
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
			if err := parseNotices(msg.Payload, func(n notice) { lines = append(lines, n.id+" "+verdicts([]outcome{n.outcome})[0]) }); err != nil {
				t.Error(err)
			}
			got[msg.Channel] = append(got[msg.Channel], strings.Join(lines, ","))
		}
		sold := rejectedPrefix + reasonSoldOut
		want := map[string][]string{
			channelOf(origins[1]): {"n0001 confirmed,n0005 confirmed"},
			channelOf(origins[2]): {"n0002 confirmed,n0006 " + sold},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("published %v, want %v", got, want)
		}
		select {
		case set := <-mine.settled:
			if !set.commit || set.notice.id != tasks[0].ID || set.notice.outcome != (outcome{
				status: StatusConfirmed, confirmedAt: now.UnixMilli(), expiresAt: now.Add(time.Minute).UnixMilli(),
			}) {
				t.Errorf("settled with %+v", set)
			}
		default:
			t.Error("the waiter of this process was not notified")
		}
		select {
		case set := <-other.settled:
			t.Errorf("a waiter got another's order: %+v", set)
		default:
		}
	})
}
