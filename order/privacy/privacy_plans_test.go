package privacy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// TestSchema_Plans_OfBuyer: exports and erasures find a buyer's rows by an index.
func TestSchema_Plans_OfBuyer(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	const byBuyer = "INDEX orders_buyer (<expr>=? AND user_id=?)"
	for name, q := range map[string]struct {
		query  string
		params int
		want   string
	}{
		"export":          {selectOrdersOfUser, 3, byBuyer},
		"export payments": {selectPaymentsOfUser, 1, byBuyer},
		"export holdings": {selectHoldings, 1, byBuyer},
		"erasure":         {eraseOrders, 3, "orders_idempotency (item_id=? AND user_id=?)"},
	} {
		got := ordertest.Plan(t, s, q.query, make([]any, q.params)...)
		if !strings.Contains(got, q.want) || strings.Contains(got, "SCAN orders") || strings.Contains(got, "SCAN o\n") {
			t.Errorf("%s:\n%s\nwant %s", name, got, q.want)
		}
	}
	if got := ordertest.Plan(t, s, eraseEvents, make([]any, strings.Count(eraseEvents, "?"))...); !strings.Contains(got, "webhook_events_order") {
		t.Errorf("events to erase:\n%s", got)
	}
}

// TestStore_ordersOf_Periods: the export and the erasure find a buyer's orders of three
// years, in many periods.
func TestStore_ordersOf_Periods(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10_000, 10_000))
	storetest.MustInsert(t, s, ordertest.NewItem("other-item", 10_000, 10_000))
	start := time.UnixMilli(1_700_000_000_000)
	var want []string
	for n := range 1200 {
		at := start.Add(time.Duration(n) * 22 * time.Hour).UnixMilli()
		id := fmt.Sprintf("%08x-%04x-7000-8000-%012x", at>>16, at&0xffff, n)
		storetest.MustCommit(t, s, ordertest.Bought(id, []string{"item", "other-item"}[n%2], []string{"alice", "alice2"}[n%3/2], fmt.Sprint(n), 1))
		if n%3 < 2 {
			want = append(want, id)
		}
	}
	var all []string
	for after := ""; ; after = all[len(all)-1] {
		page, err := ordersOf(await.Context(t), s, "alice", after)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for i := range page {
			all = append(all, page[i].ID)
		}
	}
	if !slices.Equal(all, want) {
		t.Errorf("export: %d orders, want %d", len(all), len(want))
	}
	items, err := itemsOf(await.Context(t), s, "alice")
	if err != nil || len(items) != 2 {
		t.Errorf("erasure: items %v, %v", items, err)
	}
}
