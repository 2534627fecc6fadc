package items_test

import (
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
)

// offClock is a clock that differs from the machine's.
type offClock time.Duration

func (c offClock) Now() time.Time           { return time.Now().Add(time.Duration(c)) }
func (c offClock) ItemNow(string) time.Time { return c.Now() }

// TestCreateItem_OnSaleAtOnce: an item without an opening can be bought as soon as it is
// created, although the host's clock is ahead of Redis's, and Redis's clock is not known to
// the millisecond.
func TestCreateItem_OnSaleAtOnce(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	measured := inventory.NewClock(rdb, 1, offClock(5*time.Minute).Now)
	if err := measured.Measure(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	for name, clock := range map[string]store.Clock{
		"host ahead of Redis": measured, "measured too high": offClock(store.OpenMargin - 50*time.Millisecond), "measured too low": offClock(-store.OpenMargin),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := shoptest.New(t, rdb, false, ordertest.NewItem("", 1, 1))
			store.WithClock(offClock(5 * time.Minute))(s.Store) // the host's
			store.WithClock(clock)(s.Store)
			n := ordertest.NewItem("at-once-"+ordertest.RandomName(t), 5, 1)
			item, err := s.Sales.CreateItem(await.Context(t), n)
			if err != nil {
				t.Fatal(err)
			}
			p := s.Purchase("alice", "k", 1, 0)
			p.ItemID = n.ID
			if _, err := s.Service.Place(await.Context(t), p); err != nil {
				t.Errorf("buy: %v; it opens at %v, created at %v", err, item.OpensAt, time.Now())
			}
			if early := time.Since(item.OpensAt); early > time.Minute {
				t.Errorf("it has been open for %v", early)
			}
		})
	}
}
