package items

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
)

// TestStore_Audit_Pages reads the audit page by page while it grows.
func TestStore_Audit_Pages(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("a", 5, 1))
	storetest.MustInsert(t, s, ordertest.NewItem("b", 5, 1))
	rename := func(item string, n int) {
		t.Helper()
		c := Change{Name: ordertest.Ptr(fmt.Sprint("Name ", n))}
		if _, err := changeItem(await.Context(t), s, item, &edit{action: order.ActionItemChange, by: ordertest.Root, apply: c.apply}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 7 {
		rename("a", i)
		rename("b", i)
	}
	var seen []int64
	f := order.AuditFilter{ItemID: "a", Limit: 3}
	for page := 0; ; page++ {
		entries, more, err := s.Audit(await.Context(t), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.ItemID != "a" || len(seen) > 0 && e.ID >= seen[len(seen)-1] || e.At.IsZero() {
				t.Errorf("after %v follows %+v", seen, e)
			}
			seen = append(seen, e.ID)
		}
		rename("a", 100+page) // before the pages, and shifts none
		if !more {
			break
		}
		f.Before = entries[len(entries)-1].ID
	}
	if len(seen) != 8 {
		t.Errorf("%d entries, want 7 changes and the creation", len(seen))
	}
	all, more, err := s.Audit(await.Context(t), order.AuditFilter{Limit: 100})
	if err != nil || more || len(all) != 16+3 {
		t.Errorf("%d entries in all, %v, %v", len(all), more, err)
	}
	if s.Postgres() {
		return
	}
	// Each filter uses an index.
	for index, f := range map[string]order.AuditFilter{"audit_item": {ItemID: "a", Before: 9, Limit: 3}, "audit_order": {OrderID: "a", Limit: 3}} {
		q := store.AuditQuery(s.Reader().Session(&gorm.Session{DryRun: true}), f).Find(&[]store.AuditRow{}).Statement
		var plan []struct{ Detail string }
		err := s.Reader().Raw("EXPLAIN QUERY PLAN "+q.SQL.String(), q.Vars...).Scan(&plan).Error
		if err != nil || !strings.Contains(fmt.Sprint(plan), index) || strings.Contains(fmt.Sprint(plan), "TEMP") {
			t.Errorf("%s: %v, %v", index, plan, err)
		}
	}
}

// TestStore_Audit_Items: the creation of an item is recorded with all its fields, and a
// refused one is not recorded.
func TestStore_Audit_Items(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	n := ordertest.NewItem("item", 5, 2)
	n.By = ordertest.Root
	n.OpensAt = time.Date(2030, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	storetest.MustInsert(t, s, n)
	if _, err := s.InsertItem(await.Context(t), n); !errors.Is(err, order.ErrItemExists) {
		t.Fatal(err)
	}
	c := Change{ClosesAt: ordertest.Ptr(n.OpensAt.Add(time.Hour)), PriceMinor: ordertest.Ptr(int64(1)), ImageURL: ordertest.Ptr("/a.jpg")}
	if _, err := changeItem(await.Context(t), s, "item", &edit{action: order.ActionItemChange, by: order.By{Actor: "ann"}, apply: c.apply}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`root r-1 item.create  -> {"closes_at":null,"control":"open","currency":"EUR","description":"","image_url":"","name":"Thing",` +
			`"opens_at":"2030-01-02T03:04:05.006Z","payment_window_seconds":0,"per_user_limit":2,"price_minor":1999,"stock_total":5}`,
		`ann  item.change {"closes_at":null,"image_url":"","price_minor":1999} -> {"closes_at":"2030-01-02T04:04:05.006Z","image_url":"/a.jpg","price_minor":1}`,
	}
	if got := ordertest.AuditLog(t, s, "item"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("audit\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestStore_Audit_Cancel: an admin's cancellation is recorded once, and a buyer's own is
// not.
func TestStore_Audit_Cancel(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 5, 5))
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "1", 1), ordertest.Bought("o2", "item", "u", "2", 1), ordertest.Bought("o3", "item", "u", "3", 1))
	admin := order.Canceller{UserID: "root", Admin: true, RequestID: "r-2"}
	for range 2 {
		if _, _, err := s.Cancel(await.Context(t), "o1", admin); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Cancel(await.Context(t), "o2", order.Canceller{UserID: "u", RequestID: "r-3"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pay(await.Context(t), "o3", ordertest.Money("psp", 1)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Cancel(await.Context(t), "o3", admin); !errors.Is(err, order.ErrOrderFinal) {
		t.Fatal(err)
	}
	for id, want := range map[string]int{"o1": 1, "o2": 0, "o3": 0} {
		entries, _, err := s.Audit(await.Context(t), order.AuditFilter{OrderID: id, Limit: 100})
		if err != nil || len(entries) != want {
			t.Errorf("%s: %+v, %v, want %d", id, entries, err, want)
		}
	}
	want := `root r-2 order.cancel {"status":"confirmed"} -> {"reason":"admin","status":"cancelled"}`
	if got := ordertest.AuditLog(t, s, "item"); len(got) != 2 || got[1] != want {
		t.Errorf("audit %q, want %q", got, want)
	}
	// If the entry cannot be written, the order is not cancelled.
	ordertest.Refuse(t, s, "INSERT", "audit", "")
	storetest.MustCommit(t, s, ordertest.Bought("o4", "item", "u", "4", 1))
	if _, _, err := s.Cancel(await.Context(t), "o4", admin); err == nil || errors.Is(err, inventory.ErrUnchanged) {
		t.Errorf("cancel without the audit: %v", err)
	}
	if r := ordertest.AllRows(t, s)["o4"]; r.Status != string(order.StatusConfirmed) {
		t.Errorf("order %+v", r)
	}
}
