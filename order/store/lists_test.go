package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
)

// TestStore_Lists_Plans goes through every combination of filters that the lists of
// all buyers' orders and of the audit accept: an index leads to each page.
func TestStore_Lists_Plans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	type search struct {
		query string
		args  []any
		want  string
	}
	var all []search
	for _, item := range []string{"", "i"} {
		for _, status := range []order.Status{"", order.StatusConfirmed, order.StatusPaid, order.StatusRefunded, order.StatusCancelled, order.StatusExpired, order.StatusRejected} {
			for _, before := range []string{"", "o"} {
				q := queryOf(order.Filter{ItemID: item, Status: status, Before: before, Limit: 20})
				want := "id<?)"
				switch {
				case item != "" && isEnded(status):
					want = "(item_id=? AND status=? AND id<?)"
				case isEnded(status):
					want = "(status=? AND id<?)"
				case item != "" && status != "":
					want = "orders_item ((item_id,id)>(?,?) AND (item_id,id)<(?,?))"
				case item != "":
					want = "orders_item (item_id>? AND (item_id,id)<(?,?))"
				case status == order.StatusPaid:
					want = "payments_accepted (order_id>? AND order_id<?)"
				case status != "":
					want = "(id>? AND id<?)"
				}
				args := q.args
				if q.floor != "" {
					args = append(args, "")
					floor := "id<?)"
					if item != "" {
						floor = "orders_item (item_id>? AND (item_id,id)<(?,?))"
					}
					all = append(all, search{q.floor, q.floorArgs, floor})
				}
				all = append(all, search{q.query, args, want})
			}
		}
	}
	for want, f := range map[string]order.AuditFilter{
		"PRIMARY KEY (rowid<?)": {Before: 9}, "audit_item (item_id=? AND id<?)": {ItemID: "i", Before: 9},
		"audit_order (order_id=? AND id<?)": {OrderID: "o", Before: 9}, "audit_order (order_id=?": {OrderID: "o", ItemID: "i"},
	} {
		f.Limit = 20
		q := AuditQuery(s.Reader().Session(&gorm.Session{DryRun: true}), f).Find(&[]AuditRow{}).Statement
		all = append(all, search{q.SQL.String(), q.Vars, want})
	}
	for _, q := range all {
		plan := ordertest.Plan(t, s, q.query, q.args...)
		if !strings.Contains(plan, q.want) || strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("plan of %s:\n%s\nwant %s", q.query, plan, q.want)
		}
	}
}

// TestStore_List_Sparse: a page reads a bounded number of rows even if it finds none, and
// the pages together contain every order once.
func TestStore_List_Sparse(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 100, 100))
	const many = 2*ListScan + 10
	err := s.Writer().Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at)
		SELECT 'o' || substr(CAST(1000000 + i AS TEXT), 2), 'item', 'u' || i, 1, 1, 'EUR', 'confirmed', 'k', 1 FROM n`, many).Error
	if err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprintf("o%06d", ListScan), "o000001"}
	for _, id := range want {
		if _, err := s.Pay(await.Context(t), id, order.Payment{Reference: "r-" + id, AmountMinor: 1, Currency: "EUR"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []order.Filter{{ItemID: "item", Status: order.StatusPaid, Limit: 20}, {Status: order.StatusPaid, Limit: 20}} {
		var got []string
		pages := 0
		for more := true; more; more = f.Before != "" {
			page, next, err := s.List(await.Context(t), f)
			if err != nil {
				t.Fatal(err)
			}
			if f.ItemID != "" && pages == 0 && (len(page) != 0 || next == "") {
				t.Errorf("the first page of %+v has %d orders and next %q; want none, and a next page", f, len(page), next)
			}
			got = append(got, idsListed(page)...)
			f.Before = next
			pages++
		}
		if !slices.Equal(got, want) || f.ItemID != "" && pages != 3 {
			t.Errorf("%+v: %v on %d pages, want %v", f, got, pages, want)
		}
	}
}

func idsListed(orders []order.Order) (ids []string) {
	for i := range orders {
		ids = append(ids, orders[i].ID)
	}
	return ids
}

// TestStore_List_Bound: while the maximum number of lists is being read, another one is
// refused, but a buyer's own list, an order and a payment can be read.
func TestStore_List_Bound(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 10, 10))
	mustCommit(t, s, ordertest.Bought("o1", "item", "u", "k", 1))
	const lists = 2 // that are read at once at most
	begun, release := make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	for range lists {
		reading.Go(func() {
			err := s.ReadList(await.Context(t), "test", func(db *gorm.DB) error {
				var n int // each holds its own connection
				return db.Connection(func(tx *gorm.DB) error {
					err := tx.Raw("SELECT COUNT(*) FROM orders").Scan(&n).Error
					begun <- struct{}{}
					<-release
					return err
				})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range lists {
		<-begun
	}
	if _, _, err := s.List(await.Context(t), order.Filter{Limit: 1}); !errors.Is(err, database.ErrTooManyLists) {
		t.Errorf("list of orders: %v, want ErrTooManyLists", err)
	}
	if own, _, err := s.List(await.Context(t), order.Filter{UserID: "u", Limit: 1}); err != nil || len(own) != 1 {
		t.Errorf("a buyer's list: %v, %v", own, err)
	}
	if _, err := s.Order(await.Context(t), "o1"); err != nil {
		t.Errorf("an order: %v", err)
	}
	close(release)
	reading.Wait()
	if page, _, err := s.List(await.Context(t), order.Filter{Limit: 1}); err != nil || len(page) != 1 {
		t.Errorf("afterwards: %v, %v", page, err)
	}
}
