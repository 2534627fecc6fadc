package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// TestStore_List_Stable pages through a buyer's orders while others are added and some are
// closed: each order that existed at the start is listed once, in order.
func TestStore_List_Stable(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.Asking("item", 1000, 1000, time.Hour))
	added := 0
	add := func(n int) (ids []string) {
		tasks := make([]order.Task, n)
		for i := range tasks {
			id, err := uuid.NewV7()
			if err != nil {
				t.Fatal(err)
			}
			added++
			tasks[i] = ordertest.Bought(id.String(), "item", "alice", fmt.Sprintf("k%d", added), 1)
		}
		mustCommit(t, s, tasks...)
		return order.TaskIDs(tasks)
	}
	want := add(100)
	slices.Reverse(want)
	for _, f := range []order.Filter{{UserID: "alice", Limit: 7}, {ItemID: "item", Limit: 7}, {Limit: 7}} {
		start := added
		var got []string
		for more := true; more; {
			page, rest, err := s.List(await.Context(t), f)
			if err != nil {
				t.Fatal(err)
			}
			for i := range page {
				got = append(got, page[i].ID)
			}
			more, f.Before = rest != "", page[len(page)-1].ID
			add(3)
			// The last order of this page, after which the next page starts, and one of a
			// later page.
			for _, id := range []string{f.Before, want[len(want)-1]} {
				if _, _, err := s.Cancel(await.Context(t), id, order.Canceller{Admin: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(got) != start || !slices.Equal(got[len(got)-len(want):], want) {
			t.Errorf("%+v: %d orders, want the %d that there were", f, len(got), start)
		}
	}
}
