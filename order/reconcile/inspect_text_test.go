package reconcile

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/queue"
)

// TestReconciler_Text: tasks with text that Postgres cannot store do not stop the reconciliation of
// their item, and hold no units. They become dead letters at their first attempt, with the reason.
func TestReconciler_Text(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		s.MustPlace(s.Purchase("u", "k", 2, 0))
		for name, text := range map[string]string{"nul": "\x00", "bytes": "\xff"} {
			parcel := ordertest.Parcel(name,
				ordertest.Bought(name+text, s.Item, "a", "k", 1),
				ordertest.Bought(name+"-user", s.Item, "b"+text, "k", 1),
				ordertest.Bought(name+"-key", s.Item, "c", "k"+text, 1))
			if _, err := s.Queue.Enqueue(await.Context(t), parcel); err != nil {
				t.Fatal(err)
			}
		}
		want := order.Ledger{Initial: 10, Left: 8, Held: 2}
		check := func(when string) {
			t.Helper()
			r, err := ReconcilerOf(s).Reconcile(await.Context(t), Options{Deep: true})
			if err != nil || !r.Balanced || len(r.Items) != 1 || r.Items[0].Err != nil || r.Items[0].Ledger != want {
				t.Errorf("%s: %+v, %v", when, r, err)
			}
		}
		check("queued")
		s.Work()
		await.True(t, "the dead letters", func() bool { return ordertest.StatsOf(t, s.Queue) == (queue.Stats{Dead: 2}) })
		want = order.Ledger{Initial: 10, Left: 8, Sold: 2}
		check("dead")
	})
}
