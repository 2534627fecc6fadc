package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// TestOpenStore_Durability: a committed order is never lost (P2), which requires these
// settings on the writing connection.
func TestOpenStore_Durability(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	settings := map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "5000", "query_only": "0"}
	if s.Postgres() {
		settings = nil
	}
	for pragma, want := range settings {
		var got string
		if err := s.Writer().Raw("PRAGMA " + pragma).Scan(&got).Error; err != nil || got != want {
			t.Errorf("PRAGMA %s is %s, %v, want %s", pragma, got, err, want)
		}
	}
	// Readers run beside a writer during its transaction, and see the state before it.
	mustInsert(t, s, ordertest.NewItem("item", 5, 1))
	ordertest.Occupy(t, s)
	if items, err := s.Items(await.Context(t)); err != nil || len(items) != 1 {
		t.Errorf("reading beside a writer: %v, %v", items, err)
	}
}

func TestStore_Items(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, id := range []string{"b", "c", "a"} {
		mustInsert(t, s, ordertest.NewItem(id, 5, 1))
	}
	mustCommit(t, s, ordertest.Bought("o", "b", "u", "k", 1))
	ids := func(items []catalog.Item, err error) []string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, i := range items {
			out = append(out, fmt.Sprint(i.ID, i.StockLeft))
		}
		slices.Sort(out)
		return out
	}
	if got := ids(s.Items(await.Context(t))); !slices.Equal(got, []string{"a5", "b4", "c5"}) {
		t.Errorf("items %v", got)
	}
	if got := ids(s.ItemsByID(await.Context(t), []string{"c", "none", "b"})); !slices.Equal(got, []string{"b4", "c5"}) {
		t.Errorf("items by id %v", got)
	}
	if got := ids(s.ItemsByID(await.Context(t), nil)); got != nil {
		t.Errorf("items by no id %v", got)
	}
	if _, err := s.InsertItem(await.Context(t), ordertest.NewItem("bad", -1, 1)); err == nil || errors.Is(err, order.ErrItemExists) {
		t.Errorf("an item the database refuses: %v", err)
	}
}

func TestStore_List(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("a", 100, 100))
	mustInsert(t, s, ordertest.NewItem("b", 100, 1))
	for i := range 25 {
		user := []string{"x", "y"}[i%2]
		item := []string{"a", "a", "b"}[i%3]
		mustCommit(t, s, ordertest.Bought(fmt.Sprintf("o%02d", i), item, user, fmt.Sprint(i), 1))
	}
	// all reads the pages to the end and returns the ids.
	all := func(f order.Filter) []string {
		t.Helper()
		var out []string
		for {
			page, next, err := s.List(await.Context(t), f)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) > f.Limit || next != "" && len(page) != f.Limit {
				t.Fatalf("a page of %d with next %q at limit %d", len(page), next, f.Limit)
			}
			for _, o := range page {
				if f.UserID != "" && o.UserID != f.UserID || f.ItemID != "" && o.ItemID != f.ItemID || f.Status != "" && o.Status != f.Status {
					t.Errorf("filter %+v let %+v through", f, o)
				}
				out = append(out, o.ID)
			}
			if next == "" {
				return out
			}
			f.Before = next
		}
	}
	want := map[order.Filter]int{
		{}: 25, {UserID: "x"}: 13, {ItemID: "b"}: 8, {UserID: "y", ItemID: "a"}: 8, {UserID: "nobody"}: 0,
		{Status: order.StatusRejected}: 6, {Status: order.StatusConfirmed, ItemID: "b"}: 2, {Before: "o05"}: 5,
	}
	for f, n := range want {
		for _, limit := range []int{1, 4, 5, 25, 100} {
			f.Limit = limit
			got := all(f)
			newest := slices.Clone(got)
			slices.Sort(newest)
			slices.Reverse(newest)
			if len(got) != n || !slices.Equal(got, newest) {
				t.Errorf("filter %+v: %v, want %d, newest first", f, got, n)
			}
		}
	}
}

func TestStore_Order_NotFound(t *testing.T) {
	t.Parallel()
	if o, err := newStore(t).Order(await.Context(t), "none"); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("order %+v, %v, want ErrNotFound", o, err)
	}
}

// TestStore_CheckPartitions: the first start decides, and a later one can read the number
// while another process holds the write lock.
func TestStore_CheckPartitions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, n := range []int{3, 3, 5} {
		if have, err := CheckPartitions(await.Context(t), s, n); err != nil || have != 3 {
			t.Errorf("with %d: %d, %v, want 3", n, have, err)
		}
	}
	held := s.Writer().Begin()
	defer held.Rollback()
	if have, err := CheckPartitions(await.Context(t), s, 3); err != nil || have != 3 {
		t.Errorf("beside a writer: %d, %v, want 3", have, err)
	}
}
