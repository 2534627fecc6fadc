package order

import (
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
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
	for name, clock := range map[string]Clock{
		"host ahead of Redis": measured, "measured too high": offClock(openMargin - 50*time.Millisecond), "measured too low": offClock(-openMargin),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, rdb, false, newItem("", 1, 1))
			WithClock(offClock(5 * time.Minute))(s.store) // the host's
			WithClock(clock)(s.store)
			n := newItem("at-once-"+randomName(t), 5, 1)
			item, err := s.sales.CreateItem(await.Context(t), n)
			if err != nil {
				t.Fatal(err)
			}
			p := s.purchase("alice", "k", 1, 0)
			p.ItemID = n.ID
			if _, err := s.service.Place(await.Context(t), p); err != nil {
				t.Errorf("buy: %v; it opens at %v, created at %v", err, item.OpensAt, time.Now())
			}
			if early := time.Since(item.OpensAt); early > time.Minute {
				t.Errorf("it has been open for %v", early)
			}
		})
	}
}
