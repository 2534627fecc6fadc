package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
)

// idAt is an id created at that time, in Unix milliseconds.
func idAt(ms int64, n int) string {
	h := fmt.Sprintf("%012x", ms)
	return fmt.Sprintf("%s-%s-7000-8000-%012x", h[:8], h[8:], n)
}

// periodMillis is the length of an orderPeriod.
const periodMillis = 1 << 24

// insertOrders adds confirmed orders without selling them.
func insertOrders(t *testing.T, s *Store, tasks ...order.Task) {
	t.Helper()
	out := make([]order.Outcome, len(tasks))
	for i := range tasks {
		out[i] = confirmedOutcome(tasks[i].CreatedAt, 0)
	}
	err := s.Change(await.Context(t), "insert orders", func(ctx context.Context, c database.Conn, _ int64) error {
		_, err := insertConfirmed.Exec(ctx, c, orderRows(tasks, out))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pagesOf reads a list to its end. It returns the ids, and the number of pages.
func pagesOf(t *testing.T, s *Store, f order.Filter) (ids []string, pages int) {
	t.Helper()
	for {
		page, next, err := s.List(await.Context(t), f)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) > f.Limit {
			t.Fatalf("%d orders on a page of %d", len(page), f.Limit)
		}
		pages++
		ids = append(ids, idsOfOrders(page)...)
		if next == "" {
			return ids, pages
		}
		if f.Before != "" && next >= f.Before {
			t.Fatalf("the page below %s ends at %s", f.Before, next)
		}
		f.Before = next
	}
}

func idsOfOrders(orders []order.Order) []string {
	ids := make([]string, len(orders))
	for i := range orders {
		ids[i] = orders[i].ID
	}
	return ids
}

// TestStore_List_Periods: a buyer's orders of three years are listed once each, newest
// first, among the orders of others in more periods than one page reads.
func TestStore_List_Periods(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const periods = 2*maxPeriods + 500
	const start = 1_700_000_000_000
	var tasks []order.Task
	var want, wantItem []string
	for p := range periods {
		at := int64(start) + int64(p)*periodMillis
		tasks = append(tasks, ordertest.Bought(idAt(at, 0), "item", fmt.Sprintf("other%d", p), "k", 1))
		if p%125 != 7 {
			continue
		}
		for n := range 1 + p%2*3 { // several in one period, and one of another buyer
			own := ordertest.Bought(idAt(at+int64(n), 1), []string{"item", "other-item"}[p/125%2], "alice", fmt.Sprint(p, n), 1)
			other := own
			other.ID, other.UserID = idAt(at+int64(n), 2), "alice2"
			tasks = append(tasks, own, other)
			want = append(want, own.ID)
			if own.ItemID == "item" {
				wantItem = append(wantItem, own.ID)
			}
		}
	}
	insertOrders(t, s, tasks...)
	slices.Reverse(want)
	slices.Reverse(wantItem)
	for _, limit := range []int{1, 3, len(want) - 1, len(want), 100} {
		if got, _ := pagesOf(t, s, order.Filter{UserID: "alice", Limit: limit}); !slices.Equal(got, want) {
			t.Errorf("limit %d: %d orders %v, want %d %v", limit, len(got), got, len(want), want)
		}
		if got, _ := pagesOf(t, s, order.Filter{UserID: "alice", ItemID: "item", Limit: limit}); !slices.Equal(got, wantItem) {
			t.Errorf("item, limit %d: %v, want %v", limit, got, wantItem)
		}
		if got, _ := pagesOf(t, s, order.Filter{UserID: "alice", Status: order.StatusConfirmed, Limit: limit}); !slices.Equal(got, want) {
			t.Errorf("confirmed, limit %d: %v, want %v", limit, got, want)
		}
		if got, _ := pagesOf(t, s, order.Filter{UserID: "alice", Status: order.StatusPaid, Limit: limit}); len(got) > 0 {
			t.Errorf("paid: %v", got)
		}
	}
	// A page ends after that many periods, whether it is full or not.
	if got, pages := pagesOf(t, s, order.Filter{UserID: "nobody", Limit: 10}); len(got) > 0 || pages != 3 {
		t.Errorf("a buyer without orders: %v on %d pages, want 3", got, pages)
	}
}

// TestStore_List_PageFloor: a page that ended early returns its end in the form of an id,
// which fits into a cursor.
func TestStore_List_PageFloor(t *testing.T) {
	t.Parallel()
	if got := lowestID("01a0c4"); got != "01a0c400-0000-0000-0000-000000000000" {
		t.Errorf("lowest id %s", got)
	}
	orders := []order.Order{{ID: "3"}, {ID: "2"}, {ID: "1"}}
	if page, next := cutPage(orders, 2, "0"); len(page) != 2 || next != "2" {
		t.Errorf("%v, next %s", page, next)
	}
	if page, next := cutPage(orders, 3, "0"); len(page) != 3 || next != "0" {
		t.Errorf("%v, next %s", page, next)
	}
}

// TestSchema_Plans: each query for orders uses an index.
func TestSchema_Plans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const byKey = "orders_idempotency (item_id=? AND user_id=?"
	for name, q := range map[string]struct {
		query  string
		params int
		want   string
	}{
		"periods":         {listPeriods, 2, "INDEX orders_buyer (<expr><?)"},
		"buyer":           {listBuyersIn, 5, "INDEX orders_buyer (<expr>=? AND user_id=?)"},
		"buyer and item":  {listBuyersOf, 5, byKey + ")"},
		"buyer, all":      {`SELECT id FROM ` + BuyersOrders, 1, "INDEX orders_buyer (<expr>=? AND user_id=?)"},
		"idempotency key": {`SELECT * FROM orders WHERE user_id = ? AND item_id = ? AND idempotency_key = ?`, 3, byKey + " AND idempotency_key=?)"},
		"list of an item": {`SELECT * FROM orders WHERE item_id = ? AND id < ? ORDER BY id DESC LIMIT 10`, 2, "INDEX orders_item (item_id=? AND id<?)"},
		"list of all":     {`SELECT * FROM orders WHERE id < ? ORDER BY id DESC LIMIT 10`, 1, "INDEX sqlite_autoindex_orders_1 (id<?)"},
		"orders that expire": {`SELECT id FROM orders WHERE status = 'confirmed' AND expires_at > 0 AND (expires_at, id) > (?, ?) ORDER BY expires_at, id LIMIT 10`, 2,
			"INDEX orders_due"},
	} {
		got := ordertest.Plan(t, s, q.query, make([]any, q.params)...)
		if !strings.Contains(got, q.want) || strings.Contains(got, "SCAN orders") || strings.Contains(got, "SCAN o\n") {
			t.Errorf("%s:\n%s\nwant %s", name, got, q.want)
		}
	}
}
