package sales_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
	"flashsale/order/sales"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
)

// The totals count items between their opening and their end, paused ones too, and no others.
func TestOnSale(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	now := storetest.SetClock(s).Load()
	want := func(want sales.Totals) {
		t.Helper()
		if got, err := sales.OnSale(await.Context(t), s); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	want(sales.Totals{})
	storetest.MustInsert(t, s, ordertest.NewItem("paid", 10, 5))
	storetest.MustInsert(t, s, ordertest.Asking("asking", 20, 5, time.Hour))
	want(sales.Totals{Items: 2, Units: 30})
	storetest.MustCommit(t, s, ordertest.Bought("o1", "paid", "alice", "k", 2), ordertest.Bought("o2", "asking", "alice", "k", 3))
	all := sales.Totals{Items: 2, Units: 30, Sold: 2, Awaiting: 3}
	want(all)
	for _, c := range []struct {
		change string
		want   sales.Totals
	}{
		{"control = 'paused'", all},
		{"control = 'closed'", sales.Totals{Items: 1, Units: 20, Awaiting: 3}},
		{"control = 'open', closes_at = 2, opens_at = 1", sales.Totals{Items: 1, Units: 20, Awaiting: 3}},
		{fmt.Sprint("closes_at = 0, opens_at = ", now), all},
		{fmt.Sprint("opens_at = 1, closes_at = ", now), sales.Totals{Items: 1, Units: 20, Awaiting: 3}},
		{fmt.Sprint("closes_at = ", now+3600000), all},
		{fmt.Sprint("opens_at = ", now+3000000), sales.Totals{Items: 1, Units: 20, Awaiting: 3}},
	} {
		if err := s.Writer().Exec("UPDATE items SET " + c.change + " WHERE id = 'paid'").Error; err != nil {
			t.Fatal(err)
		}
		want(c.want)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := sales.OnSale(late, s); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("a database that does not answer: %v, want ErrUnavailable", err)
	}
}
